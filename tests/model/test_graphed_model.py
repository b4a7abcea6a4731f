"""Forwards on a grid, captured and replayed, say what plain transformers says for each row's own path."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from packed_scene import PROMPTS, assert_rows_are_their_own_path
from packed_sequence import PackedSequence, take_in_runs, take_interleaved
from recorded_graphs import RecordedGraphs
from test_plans import row_sets
from tiny_models import ARCHITECTURES, load_packed, load_plain, save_tiny, tiny_config

from foredraft.core.plan_builder import build_plan
from foredraft.model import graphed_model
from foredraft.model.devices import CpuDevice
from foredraft.model.features import FINAL_NORM
from foredraft.model.graphed_model import GraphedModel
from foredraft.model.grid_plan import GridPlan, GridShape, shape_of
from foredraft.model.layer_skips import LayerSkips
from foredraft.model.packed_model import PackedModel
from foredraft.model.slot_pool import SlotPool

CPU = torch.device("cpu")
# It looks for padding in the tokens themselves, which waits for the device.
WITHOUT_GRAPHS = ("gpt2",)


def graphed(folder: str, slots: int = 160) -> tuple[PackedModel, RecordedGraphs, SlotPool]:
    model, graphs, pool = load_packed(folder), RecordedGraphs(), SlotPool(slots)
    model.attach(pool, "target")
    model.decoder = GraphedModel(model, lambda: graphs)
    return model, graphs, pool


def loaded(kind: str, folder, monkeypatch: pytest.MonkeyPatch, graphs: RecordedGraphs) -> PackedModel:
    """As on a device with graphs."""
    monkeypatch.setattr(CpuDevice, "decoder", lambda self, model: GraphedModel(model, lambda: graphs))
    return load_packed(save_tiny(tiny_config(kind), folder))


@pytest.mark.parametrize(
    ("take", "expected"), [(take_interleaved, 1), (take_in_runs, 40)], ids=["scattered", "contiguous"]
)
@pytest.mark.parametrize("kind", [kind for kind in ARCHITECTURES if kind not in WITHOUT_GRAPHS])
def test_rows_equal_their_own_path(kind, take, expected, tmp_path):
    folder = save_tiny(tiny_config(kind), tmp_path)
    (model, graphs, pool), plain = graphed(folder), load_plain(folder)
    for _ in range(3):  # as it is, captured, replayed
        assert_rows_are_their_own_path(model, plain, pool, take, expected)
    assert graphs.captures > 0 and graphs.replays > 2 * graphs.captures


def chain(pool: SlotPool, count: int) -> PackedSequence:
    """The first `count` tokens of a prompt, staged."""
    sequence = PackedSequence(pool, PROMPTS[1], 20)
    sequence.stage(count)
    take_in_runs([sequence])
    return sequence


@pytest.mark.parametrize(
    "plans",
    [((6, 3, 1), (4, 7, 5), (8, 1, 2)), ((8, 1, 1, 1, 1), (1, 1, 1, 7, 2), (1, 1, 1, 1, 6))],
    ids=["few", "one"],
)
def test_hidden_states_and_wanted_rows_come_in_the_plans_order(plans, tmp_path):
    """Also where one request has many rows and the others one each."""
    folder = save_tiny(tiny_config("llama"), tmp_path)
    model, graphs, pool = graphed(folder)
    whole = load_packed(folder)
    whole.attach(SlotPool(160), "target")
    features = (0, 2, FINAL_NORM)
    for counts in plans:
        staged = [[chain(where, count) for count in counts] for where in (pool, SlotPool(160))]
        mine, other = [build_plan([one.rows(logits=min(2, len(one.row_tokens))) for one in own], CPU) for own in staged]
        logits, states = model.forward_with_features(mine, features)
        wanted, wanted_states = whole.forward_with_features(other, features)
        torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-5)
        for boundary in features:
            torch.testing.assert_close(states[boundary], wanted_states[boundary], rtol=1e-4, atol=1e-5)
        for sequence in staged[0]:
            sequence.commit([])
            pool.close(sequence.table)
    assert graphs.captures == 1 and graphs.replays == 2  # one grid of sixteen rows


def test_what_was_handed_out_stays_when_the_graph_runs_again(tmp_path):
    model, graphs, pool = graphed(save_tiny(tiny_config("llama"), tmp_path))
    kept = []
    for token in range(4):
        sequence = PackedSequence(pool, [token + 1, 7], 20)
        sequence.stage(2)
        take_in_runs([sequence])
        plan = build_plan([sequence.rows()], CPU)
        logits, states = model.forward_with_features(plan, (1,))
        kept.append((logits, logits.clone(), states[1], states[1].clone()))
    assert graphs.replays == 3
    for logits, then, state, state_then in kept:
        assert torch.equal(logits, then) and torch.equal(state, state_then)


def test_grids_of_as_many_rows_share_what_they_write_to(tmp_path):
    folder = save_tiny(tiny_config("llama"), tmp_path)
    (model, graphs, pool), plain = graphed(folder), load_packed(folder)
    plain.attach(SlotPool(160), "target")
    for _ in range(3):
        for counts in ((4,), (3, 1), (1, 1, 1)):
            plan = build_plan([chain(pool, count).rows() for count in counts], CPU)
            other = build_plan([chain(SlotPool(64), count).rows() for count in counts], CPU)
            torch.testing.assert_close(model.forward(plan), plain.forward(other), rtol=1e-4, atol=1e-5)
    shelf = model.decoder.shelves[model.layers]
    assert graphs.captures == 3 and list(shelf.outputs) == [4]


def test_left_out_sublayers_have_graphs_of_their_own(tmp_path):
    folder = save_tiny(tiny_config("llama"), tmp_path)
    (model, graphs, pool), plain = graphed(folder), load_packed(folder)
    plain.attach(SlotPool(160), "target")
    skips = LayerSkips(frozenset({1}), frozenset({1, 2}))
    for _ in range(3):
        plan = build_plan([chain(pool, 4).rows()], CPU)
        other = build_plan([chain(SlotPool(64), 4).rows()], CPU)
        torch.testing.assert_close(model.forward(plan), plain.forward(other), rtol=1e-4, atol=1e-5)
        shortened = model.forward_skipping(plan, skips), plain.forward_skipping(other, skips)
        torch.testing.assert_close(*shortened, rtol=1e-4, atol=1e-5)
    assert graphs.captures == 2


def test_what_cannot_be_captured_runs_as_it_is_and_is_told(tmp_path, caplog, monkeypatch):
    model, graphs, pool = graphed(save_tiny(tiny_config("llama"), tmp_path))
    model.decoder.proven = True

    def refuse(work):
        raise RuntimeError("operation not permitted when stream is capturing\nand more")

    monkeypatch.setattr(graphs, "captured", refuse)
    plan = build_plan([chain(pool, 4).rows()], CPU)
    first, *others = [model.forward(plan) for _ in range(4)]
    assert all(torch.equal(first, other) for other in others)
    [said] = [record.message for record in caplog.records]
    assert said.endswith("runs without a graph: operation not permitted when stream is capturing")


def test_a_model_is_tried_with_graphs_when_it_is_loaded(tmp_path, monkeypatch):
    graphs = RecordedGraphs()
    model = loaded("qwen3", tmp_path, monkeypatch, graphs)
    assert graphs.captures == 2  # the trial is at two places, each with storage of its own
    assert "; few rows run as captured graphs; " in model.path


def test_graphs_that_say_something_else_are_not_taken(tmp_path, monkeypatch):
    monkeypatch.setattr(RecordedGraphs, "load", lambda self, buffer, numbers: None)
    model = loaded("qwen3", tmp_path, monkeypatch, RecordedGraphs())
    assert model.decoder is None and "graphs" not in model.path


@pytest.mark.parametrize("kind", WITHOUT_GRAPHS)
def test_a_model_that_cannot_be_captured_runs_as_it_is(kind, tmp_path, monkeypatch):
    graphs = RecordedGraphs()
    model = loaded(kind, tmp_path, monkeypatch, graphs)
    assert model.decoder is None and "graphs" not in model.path and graphs.captures == 0


def test_the_number_of_graphs_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(graphed_model, "MOST_GRIDS", 2)
    model, graphs, pool = graphed(save_tiny(tiny_config("llama"), tmp_path))
    for count in (1, 2, 4, 8):
        plan = build_plan([chain(pool, count).rows()], CPU)
        for _ in range(3):
            model.forward(plan)
    assert graphs.captures == 2 and len(model.decoder.shelves[model.layers].recordings) == 2


def test_graphs_go_with_the_storage_they_read(tmp_path):
    model, _, pool = graphed(save_tiny(tiny_config("llama"), tmp_path))
    model.forward(build_plan([chain(pool, 4).rows()], CPU))
    assert len(model.decoder.shelves) == 1
    pool.groups.clear()
    model.layers = None
    assert len(model.decoder.shelves) == 0


def test_a_plan_takes_the_smallest_grid(monkeypatch):
    def plan(*lengths: int):
        pool = SlotPool(4096)
        sequences = [PackedSequence(pool, [1] * length, 1024) for length in lengths]
        [sequence.stage(len(sequence.tokens)) for sequence in sequences]
        take_in_runs(sequences)
        return build_plan([sequence.rows() for sequence in sequences], CPU)

    assert shape_of(plan(1)) == GridShape(size=1, requests=1, rows=1, keys=128)
    assert shape_of(plan(1, 5, 3)) == GridShape(size=16, requests=4, rows=5, keys=128)
    assert shape_of(plan(3, 1)) == GridShape(size=4, requests=2, rows=4, keys=128)
    assert shape_of(plan(*[1] * 15, 17)) == GridShape(size=32, requests=16, rows=17, keys=128)
    assert shape_of(plan(129)) == GridShape(size=256, requests=1, rows=256, keys=256)
    assert shape_of(plan(257)) is None  # of a prompt: as good as launched
    assert shape_of(plan(*[17] * 16)) is None


@settings(max_examples=40, deadline=None)
@given(rows=st.lists(row_sets(), min_size=1, max_size=4), window=st.sampled_from([None, 2, 4]))
def test_rows_see_what_segments_say(rows, window):
    """The grid's masks are those of the plan's segments, and every row sees something."""

    plan = build_plan(rows, CPU)
    shape = shape_of(plan)
    grid = GridPlan(shape, 999, CPU)
    numbers, sees = grid.staged(plan)
    grid.numbers.copy_(torch.from_numpy(numbers))
    grid.sees.copy_(torch.from_numpy(sees))
    for place, slots in grid.scattered(plan):
        place.copy_(slots)
    seen = grid.bunch(window).seen[:, 0]
    for index, segment in enumerate(plan.segments):
        reach = segment.context + segment.rows
        wanted = segment.visible(window)
        wanted = torch.ones(segment.rows, reach, dtype=torch.bool) if wanted is None else wanted
        assert torch.equal(seen[index, : segment.rows, :reach], wanted)
        assert not seen[index, : segment.rows, reach:].any()
        own = segment.keys
        own = list(range(own.start, own.stop)) if isinstance(own, slice) else own.tolist()
        assert grid.slots[index].tolist() == own + [999] * (shape.keys - reach)
    assert seen.any(-1).all()
    count = len(plan.ids)
    assert grid.tokens[0, :count].tolist() == plan.ids and (grid.write[count:] == 999).all()
    assert grid.row_at[grid.place_of[:count]].tolist() == list(range(count))
