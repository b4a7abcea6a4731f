"""What does not fit is refused with a line that says so; nothing is read or written out of bounds."""

import foredraft_native as native
import pytest
import torch
from small_decoder import KERNELS, VOCABULARY, Given, native_decoder, text


@pytest.fixture
def program():
    return native.Program("fp32", KERNELS[0], native.Threads(1))


def test_names_that_do_not_exist():
    threads = native.Threads(1)
    with pytest.raises(ValueError, match="dtype is 'fp16'; it must be bf16 or fp32"):
        native.Program("fp16", KERNELS[0], threads)
    with pytest.raises(ValueError, match="kernels 'sse' cannot run on this machine"):
        native.Program("fp32", "sse", threads)
    with pytest.raises(ValueError, match="count is 0"):
        native.Threads(0)
    with pytest.raises(ValueError, match="activation is 'relu'"):
        p = native.Program("fp32", KERNELS[0], threads)
        b = (p.buffer(4), 0, 4)
        p.activation(b, b, "relu")


def test_parts_that_do_not_fit(program):
    a, b = (program.buffer(8), 0, 8), (program.buffer(6), 0, 6)
    matrix = program.matrix(torch.randn(6, 8))
    program.linear(b, a, matrix)
    for wrong in (
        lambda: program.linear(a, b, matrix),
        lambda: program.linear(b, a, matrix, torch.randn(5)),
        lambda: program.linear(b, a, matrix, None, a),
        lambda: program.linear(b, a, 7),
        lambda: program.gated(b, a, matrix, "silu"),
        lambda: program.add(a, a, b),
        lambda: program.norm(a, a, torch.ones(7), 1e-6, False),
        lambda: program.norm((a[0], 4, 8), a, torch.ones(8), 1e-6, False),
        lambda: program.scale((99, 0, 8), a, 2.0),
        lambda: program.attend(a, a, layer=0, heads=3, kv_heads=2, head_size=2, scale=1.0),
        lambda: program.attend(a, a, layer=0, heads=2, kv_heads=1, head_size=2, scale=1.0, rotary=3),
        lambda: program.logits(a, matrix),
        lambda: program.matrix(torch.randn(6, 8), "int4"),
        lambda: program.matrix(torch.randn(6, 8), "int8"),
        lambda: program.matrix(torch.randn(8, 6).T),
        lambda: program.gated_matrix(torch.randn(6, 8), torch.randn(5, 8)),
        lambda: program.tokens_embedded(a, torch.randn(3, 8, dtype=torch.bfloat16)),
        lambda: program.matrix_of(native.Program("bf16", KERNELS[0], native.Threads(1)), 0),
        lambda: program.matrix_of(program, matrix, "int8"),
        lambda: program.matrix_of(program, matrix, "int4"),
        lambda: program.buffer(0),
        lambda: program.scale((a[0], 2**31 - 1, 8), a, 2.0),
        lambda: program.attend(a, a, layer=0, heads=0, kv_heads=1, head_size=4, scale=1.0),
        lambda: program.matrix(torch.randn(0, 8)),
        lambda: program.input(a, 16),
    ):
        with pytest.raises(ValueError):
            wrong()


def test_bf16_needs_pairs_of_inputs():
    program = native.Program("bf16", KERNELS[0], native.Threads(1))
    with pytest.raises(ValueError, match="7 inputs; bf16 needs an even number"):
        program.matrix(torch.randn(4, 7))


@pytest.mark.parametrize(
    "given",
    [
        Given([VOCABULARY], [0], [0], [(0, 1, 0, 0, None, None)]),
        Given([-1], [0], [0], [(0, 1, 0, 0, None, None)]),
        Given([1], [-1], [0], [(0, 1, 0, 0, None, None)]),
        Given([1], [0], [256], [(0, 1, 0, 0, None, None)]),
        Given([1], [0], [0], [(0, 1, 256, 0, None, None)]),
        Given([1], [2**40], [0], [(0, 1, 0, 0, None, None)]),
        Given([1], [0], [0], [(0, 1, 2**63 - 1, 0, None, None)]),
        Given([1], [0], [0], [(0, 1, 0, 2**63 - 1, None, None)]),
        Given([1], [0], [0], [(0, 1, -1, -1, torch.tensor([0]), None)]),
        Given([1], [0], [0], [(0, 1, 0, 0)]),
        Given([1], [0], [0], [(0, 1, 1, -1, torch.tensor([0, 256]), None)]),
        Given([1], [0], [0], [(0, 1, 1, -1, torch.tensor([0]), None)]),
        Given([1], [0], [0], [(0, 1, 0, -1, None, None)]),
        Given([1, 2], [0, 1], [0, 1], [(0, 1, 0, 0, None, None)]),
        Given([1, 2], [0, 1], [0, 1], [(1, 1, 0, 0, None, None), (0, 1, 0, 0, None, None)]),
        Given([1, 2], [0, 1], [0, 1], [(0, 2, 0, 0, None, torch.ones(1, 2, dtype=torch.bool))]),
        Given([1, 2], [0, 1], [0, 1], [(0, 2, 0, 0, None, [0])]),
        Given([1, 2], [0, 1], [0, 1], [(0, 2, 0, 0, None, [-2])]),
        Given([1, 2], [0, 1], [0, 1], [(0, 2, 0, 0, None, [-1, 0])]),
        Given([1, 2], [0, 1], [0], [(0, 2, 0, 0, None, None)]),
        Given([1, 2], [0], [0, 1], [(0, 2, 0, 0, None, None)]),
        Given([1], [0], [0], [(0, 1, 0, 0, None, None)], wanted=[1]),
        Given([1], [0], [0], [(0, 1, 0, 0, None, None)], features=[9]),
    ],
)
def test_orders_out_of_bounds(given):
    with pytest.raises(ValueError):
        native_decoder(KERNELS[0], "fp32").run(given)


def test_a_feature_is_kept_once(program):
    a = (program.buffer(8), 0, 8)
    program.keep(0, a)
    with pytest.raises(ValueError, match="feature 0 is kept already"):
        program.keep(0, a)


def test_what_is_read_or_written_in_two_widths_at_once(program):
    wide, narrow = (program.buffer(8), 0, 8), (program.buffer(4), 0, 4)
    rows = [0]
    for section, view in enumerate((wide, narrow)):
        program.section(section)
        program.input(view, 0)
    with pytest.raises(ValueError, match="an input is read in two widths"):
        program.run(None, rows, rows, rows, [], rows, inputs=[torch.randn(1, 8)])
    program.run(None, rows, rows, rows, [], rows, inputs=[torch.randn(1, 8)], skip=[1])


# depth, width, nodes, context, first slot, slots, pending tokens, slots for drafted rows, divisor, keys, least
# log-chance, candour, costs of a row and a run, chance of another token, what chains pay together
DRAFT = (2, 1, 2, 3, 0, None, [4], [4], 1.0, [], float("-inf"), 1.0, 0.0, 0.0, 1.0, [])


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (0, 0),
        (1, 0),
        (1, 2),
        (2, 0),
        (3, -1),
        (3, 2**40),
        (3, 2**63 - 2),
        (4, -1),
        (4, 253),
        (4, 2**63 - 2),
        (5, torch.arange(3)),
        (5, torch.tensor([0, 1, 2, 256])),
        (6, []),
        (6, [VOCABULARY]),
        (7, []),
        (7, [256]),
        (7, [-1]),
        (8, 0.0),
        (9, [1]),
        (10, 0.1),
        (10, float("nan")),
        (14, 0.0),
        (14, 1.1),
        (14, float("nan")),
        (15, [0.0]),
        (15, [0.0, float("nan")]),
        (15, [0.0, -1.0]),
        (15, [0.0, 2.0, 1.0]),
    ],
)
def test_drafts_out_of_bounds(place, value):
    decoder = native_decoder(KERNELS[0], "fp32")
    decoder.run(text([1, 2, 3]))
    draft = (*DRAFT[:place], value, *DRAFT[place + 1 :])
    with pytest.raises(ValueError):
        native.draft(decoder.program, decoder.cache, [draft], None, None, VOCABULARY)
    native.draft(decoder.program, decoder.cache, [DRAFT], None, None, VOCABULARY)


@pytest.mark.parametrize("draft", [DRAFT[:-1], (*DRAFT, 0)])
def test_drafts_of_other_parts(draft):
    decoder = native_decoder(KERNELS[0], "fp32")
    with pytest.raises(ValueError, match="a draft is depth, width"):
        native.draft(decoder.program, decoder.cache, [draft], None, None, VOCABULARY)


def test_features_of_another_shape(program):
    """The rows that drafts begin with read them; those that go on read what others hand on."""
    view, chosen = ((program.buffer(8), 0, 8) for _ in range(2))
    program.input(view, 0)
    program.select_rows(chosen, view)
    program.logits(chosen, program.matrix(torch.randn(5, 8)))
    program.output(chosen)
    for features in (None, torch.zeros(2, 8), torch.zeros(1, 6), torch.zeros(1, 8, dtype=torch.bfloat16)):
        with pytest.raises(ValueError, match="features"):
            native.draft(program, None, [DRAFT], features, None, 5)
    native.draft(program, None, [DRAFT], torch.zeros(1, 8), None, 5)


def test_a_refused_order_leaves_the_program_usable():
    decoder = native_decoder(KERNELS[0], "fp32")
    wanted, _ = decoder.run(text([1, 2, 3]))
    with pytest.raises(ValueError):
        decoder.run(Given([VOCABULARY], [0], [0], [(0, 1, 0, 0, None, None)]))
    assert torch.equal(decoder.run(text([1, 2, 3]))[0], wanted)
