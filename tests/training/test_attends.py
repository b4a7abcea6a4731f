"""The attention of training against attention over explicit masks, and against drafting with a plain cache."""

import pytest
import torch
from torch import Tensor

from foredraft.heads.dflash import DFlashConfig, DFlashHead
from foredraft.heads.eagle import Eagle3Config, Eagle3Head
from foredraft.heads.layer import LayerSizes
from foredraft.heads.shared import Borrowed
from foredraft.training.attends import BlockAttend, UnrolledAttend, causal
from foredraft.training.methods.unrolled import ChosenRows, unrolled

HEADS, GROUPS, SIZE = 4, 2, 8
SIZES = LayerSizes(hidden_size=32, intermediate_size=48, heads=HEADS, kv_heads=GROUPS, head_dim=SIZE)
VOCABULARY = 50


def dense(query: Tensor, key: Tensor, value: Tensor, allowed: Tensor) -> Tensor:
    """Attention with one key head a query head and a mask [Q, K] or [B, Q, K] written out."""
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scores = torch.einsum("bhqd,bhkd->bhqk", query, key) / query.shape[-1] ** 0.5
    allowed = allowed if allowed.ndim == 3 else allowed[None]
    weights = scores.masked_fill(~allowed[:, None], -torch.inf).softmax(-1)
    return torch.einsum("bhqk,bhkd->bqhd", weights, value).flatten(2)


def random_rows(rows: int, batch: int = 2) -> list[Tensor]:
    """Queries, keys and values that want gradients."""
    shapes = ((HEADS, rows), (GROUPS, rows), (GROUPS, rows))
    return [torch.randn(batch, heads, count, SIZE, dtype=torch.float64).requires_grad_() for heads, count in shapes]


def same(ours: Tensor, theirs: Tensor, inputs: list[Tensor]) -> None:
    """Equal outputs, and equal gradients of a random direction."""
    torch.testing.assert_close(ours, theirs)
    direction = torch.randn_like(ours)
    one = torch.autograd.grad((ours * direction).sum(), inputs, allow_unused=True, materialize_grads=True)
    other = torch.autograd.grad((theirs * direction).sum(), inputs, allow_unused=True, materialize_grads=True)
    torch.testing.assert_close(one, other)


def test_causal_sees_itself_and_what_was_before():
    torch.manual_seed(0)
    inputs = random_rows(6)
    same(causal(0, *inputs), dense(*inputs, torch.ones(6, 6, dtype=torch.bool).tril()), inputs)


@pytest.mark.parametrize("rows", [[[0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]], [[1, 3, 4], [0, 4, 5]]])
def test_unrolled_attention_is_one_dense_softmax(rows):
    torch.manual_seed(1)
    length, steps, rows = 6, 4, torch.tensor(rows)
    attend, calls = UnrolledAttend(rows), [random_rows(length)] + [random_rows(rows.shape[1]) for _ in range(steps - 1)]
    outputs = [attend(0, *inputs) for inputs in calls]
    for step in range(1, steps):
        keys, values = (torch.cat([call[part] for call in calls[: step + 1]], dim=2) for part in (1, 2))
        own = torch.eye(rows.shape[1], dtype=torch.bool).repeat(len(rows), 1, step)
        allowed = torch.cat([torch.arange(length) <= rows[..., None], own], dim=-1)
        inputs = [tensor for call in calls for tensor in call]
        same(outputs[step], dense(calls[step][0], keys, values, allowed), inputs)


def test_layers_of_an_unrolled_head_keep_their_keys_apart():
    torch.manual_seed(2)
    rows = torch.arange(3)[None].expand(2, 3)
    both, alone = UnrolledAttend(rows), UnrolledAttend(rows)
    first, second = [random_rows(3) for _ in range(2)], [random_rows(3) for _ in range(2)]
    for layer, calls in ((0, first), (1, second)):
        both(layer, *calls[0])
    alone(1, *second[0])
    both(0, *first[1])
    torch.testing.assert_close(both(1, *second[1]), alone(1, *second[1]))


@pytest.mark.parametrize("causal_block", [False, True])
def test_block_attention_is_one_dense_softmax(causal_block):
    torch.manual_seed(3)
    length, size, anchors = 7, 3, torch.tensor([[1, 4], [0, 6]])
    context, block = random_rows(length), random_rows(anchors.shape[1] * size)
    ours = BlockAttend([(context[1], context[2])], anchors, causal_block=causal_block)(0, *block)
    keys, values = (torch.cat([context[part], block[part]], dim=2) for part in (1, 2))
    before = (torch.arange(length) < anchors[..., None]).repeat_interleave(size, 1)
    inside = torch.ones(size, size, dtype=torch.bool)
    inside = torch.block_diag(*[(inside.tril() if causal_block else inside).int()] * 2).bool()
    allowed = torch.cat([before, inside.expand(2, -1, -1)], dim=-1)
    same(ours, dense(block[0], keys, values, allowed), [*context[1:], *block])


class Cache:
    """A plain cache: every row sees all keys and values stored so far, then its own call's up to itself."""

    def __init__(self):
        self.stored: dict[int, tuple[Tensor, Tensor]] = {}

    def __call__(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        before = self.stored.get(layer)
        keys, values = (
            (key, value)
            if before is None
            else (torch.cat([a, b], 2) for a, b in zip(before, (key, value), strict=True))
        )
        self.stored[layer] = (keys, values)
        rows, total = query.shape[2], keys.shape[2]
        allowed = torch.arange(total) <= torch.arange(total - rows, total)[:, None]
        return dense(query, keys, values, allowed)


def borrowed() -> Borrowed:
    return Borrowed(torch.nn.Embedding(VOCABULARY, 32), torch.nn.Linear(32, VOCABULARY, bias=False))


@pytest.mark.parametrize("layers", [1, 2])
@torch.no_grad()
def test_an_unrolled_head_guesses_what_it_drafts_step_by_step(layers):
    torch.manual_seed(4)
    length, steps = 9, 4
    config = Eagle3Config(
        sizes=SIZES, vocabulary=VOCABULARY, draft_vocabulary=VOCABULARY, target_hidden_size=16, feature_layers=(1, 2),
        layers=layers,
    )  # fmt: skip
    head = Eagle3Head(config, borrowed())
    features, tokens = torch.randn(1, length, 32), torch.randint(VOCABULARY, (1, length))
    everything = ChosenRows(torch.arange(length - 1)[None], torch.arange(length)[None])
    trained = list(unrolled(head, features, tokens, everything, steps))
    for row in range(length - 1 - steps):
        cache = Cache()
        committed = head.fuse(features[:, : row + 1])
        out = head(tokens[:, 1 : row + 2], committed, torch.arange(row + 1)[None], cache)[:, -1:]
        for step in range(steps):
            torch.testing.assert_close(trained[step][:, row], out[:, 0])
            position = torch.tensor([[row + 1 + step]])
            out = head(tokens[:, row + 2 + step :][:, :1], head.fed_back(out), position, cache)


@torch.no_grad()
def test_blocks_on_anchors_guess_what_a_block_after_its_context_does():
    torch.manual_seed(5)
    length, size, anchors = 8, 4, torch.tensor([[2, 5]])
    config = DFlashConfig(
        sizes=SIZES, vocabulary=VOCABULARY, target_hidden_size=32, feature_layers=(1,), layers=2, block_size=size,
        mask_token_id=3,
    )  # fmt: skip
    head = DFlashHead(config, borrowed())
    features, roots = torch.randn(1, length, 32), torch.tensor([[7, 9]])
    blocks = torch.full((1, 2, size), 3)
    blocks[..., 0] = roots
    positions = anchors[..., None] + torch.arange(size)
    context = head.context(head.fuse(features), torch.arange(length)[None])
    together = head(blocks.flatten(1), positions.flatten(1), BlockAttend(context, anchors, causal_block=False))
    for index, anchor in enumerate(anchors[0].tolist()):
        committed = head.context(head.fuse(features[:, :anchor]), torch.arange(anchor)[None])

        def whole(layer: int, query: Tensor, key: Tensor, value: Tensor, committed=committed) -> Tensor:
            keys, values = torch.cat([committed[layer][0], key], 2), torch.cat([committed[layer][1], value], 2)
            return dense(query, keys, values, torch.ones(size, keys.shape[2], dtype=torch.bool))

        alone = head(blocks[:, index], positions[:, index], whole)
        torch.testing.assert_close(together[:, index * size : (index + 1) * size], alone)
