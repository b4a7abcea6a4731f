"""The search finds sets that decode faster, is not fooled for long by a lucky window, and goes on where it stopped."""

import json
from random import Random

import pytest

from foredraft.drafters.skip_search import PATIENCE, KeptSearch, SkipSearch, expected_speed, structured
from foredraft.model.layer_skips import LayerSkips, ReadShares

LAYERS, DEPTH, ROWS = 8, 4, 32
SHARES = ReadShares(attention=(0.03,) * LAYERS, mlp=(0.07,) * LAYERS, head=0.2)


class Text:
    """Says what a set finds in a window: each sublayer left out loses tokens at a rate of its own."""

    def __init__(self, seed: int):
        self.random = Random(seed)
        self.harms = {kind: [self.random.uniform(0, 0.2) for _ in range(LAYERS)] for kind in ("attention", "mlp")}

    def agreement(self, skips: LayerSkips) -> float:
        agreement = 1.0
        for kind, layers in (("attention", skips.attention), ("mlp", skips.mlp)):
            for layer in layers:
                agreement *= 1 - self.harms[kind][layer]
        return agreement

    def found(self, skips: LayerSkips) -> int:
        return sum(self.random.random() < self.agreement(skips) for _ in range(ROWS))

    def speed(self, skips: LayerSkips) -> float:
        return expected_speed(self.agreement(skips), SHARES.of(skips), DEPTH)


def searched(text: Text, *, seconds: float, uses: int = 16) -> tuple[SkipSearch, list[LayerSkips]]:
    """A search to its end, each measurement one second, and the sets in the order they were measured."""
    search, measured = SkipSearch(SHARES, seconds=seconds), []
    while not search.finished:
        search.begin_window(DEPTH)
        for _ in range(uses):
            if not search.finished:
                measured.append(search.candidate())
                search.tell(measured[-1], text.found(measured[-1]), ROWS, 1.0)
    return search, measured


def test_speed_of_a_chain():
    assert expected_speed(1, 0.5, 4) == pytest.approx(5 / 3)
    assert expected_speed(0, 0.5, 4) == pytest.approx(1 / 3)
    assert expected_speed(0.5, 0.25, 2) == pytest.approx(1.75 / 1.5)
    assert expected_speed(1, 1, 7) == pytest.approx(1)  # a draft as dear as the target wins nothing


@pytest.mark.parametrize("layers", [1, 2, 3, 8, 32, 61])
def test_the_first_sets_lie_within_the_model(layers):
    sets = structured(layers)
    assert len(sets) == len(set(sets)) > 0
    assert all(LayerSkips.parse(str(skips), layers) == skips for skips in sets)
    assert all(len(skips.whole) < layers for skips in sets[:1])


@pytest.mark.parametrize("seed", range(6))
def test_the_search_ends_better_than_it_began(seed):
    text = Text(seed)
    search, measured = searched(text, seconds=400)
    fast = sorted(text.speed(skips) for skips in structured(LAYERS))
    assert text.speed(search.best) > text.speed(measured[0])
    assert text.speed(search.best) > fast[-1]
    assert len(set(measured)) > 50


def test_the_same_search_twice():
    assert searched(Text(3), seconds=150)[1] == searched(Text(3), seconds=150)[1]


def test_one_lucky_window_is_forgotten():
    search = SkipSearch(SHARES, seconds=1e9)
    steady = search.best
    for _ in range(4):
        search.begin_window(DEPTH)
        search.tell(search.candidate(), 28, ROWS, 1.0)
    lucky = search.candidate()
    assert lucky != steady and search.tell(lucky, ROWS, ROWS, 1.0) and search.best == lucky
    search.begin_window(DEPTH)
    assert search.candidate() == lucky  # the best is measured in every window
    assert search.tell(lucky, 4, ROWS, 1.0) and search.best == steady


def test_what_may_be_better_is_measured_again():
    search = SkipSearch(SHARES, seconds=1e9)
    search.begin_window(DEPTH)
    best = search.candidate()
    search.tell(best, 24, ROWS, 1.0)
    near = search.candidate()
    search.tell(near, 23, ROWS, 1.0)
    hopeless = search.candidate()
    search.tell(hopeless, 0, ROWS, 1.0)
    search.begin_window(DEPTH)
    first = search.candidate()
    search.tell(first, 24, ROWS, 1.0)
    second = search.candidate()
    assert {first, second} == {best, near} and hopeless not in search.contenders()


@pytest.mark.parametrize("seconds", [0, 1, 7, 30])
def test_no_measurement_beyond_the_budget(seconds):
    search, measured = searched(Text(0), seconds=seconds)
    assert len(measured) == seconds == search.spent


def test_the_search_gives_up_where_nothing_is_better():
    search = SkipSearch(SHARES, seconds=1e9)
    count = 0
    while not search.finished:
        search.begin_window(DEPTH)
        best = search.candidate()
        for _ in range(16):
            skips = search.candidate()
            search.tell(skips, ROWS if skips == best else 0, ROWS, 1.0)
            count += 1
    assert search.best == best == structured(LAYERS)[0] and count - PATIENCE <= 16


def test_a_window_that_has_no_more_to_tell():
    search = SkipSearch(ReadShares(attention=(0.3,), mlp=(0.4,), head=0.3), seconds=1e9)
    search.begin_window(DEPTH)
    measured = []
    while (skips := search.candidate()) is not None:
        measured.append(skips)
        search.tell(skips, 8, ROWS, 1.0)
    assert len(measured) == len(set(measured)) == 4  # with or without either sublayer
    search.begin_window(DEPTH)
    assert search.candidate() == search.best


@pytest.fixture
def kept(tmp_path, monkeypatch) -> KeptSearch:
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "cache"))
    return KeptSearch("/models/a", 1000, LAYERS)


def test_a_search_goes_on_at_the_next_start(kept):
    search, measured = searched(Text(1), seconds=60)
    kept.save(search)
    again = SkipSearch(SHARES, seconds=60)
    kept.load(again)
    assert again.finished and again.best == search.best and again.spent == 60
    assert again.speed(again.best) == search.speed(search.best)
    longer = SkipSearch(SHARES, seconds=90)
    kept.load(longer)
    longer.begin_window(DEPTH)
    assert not longer.finished and longer.candidate() == search.best
    assert len(list(kept.path.parent.iterdir())) == 1


def test_models_do_not_share_a_file(kept):
    others = [("/models/b", 1000, LAYERS), ("/models/a", 1001, LAYERS), ("/models/a", 1000, LAYERS + 1)]
    assert len({kept.path, *(KeptSearch(*other).path for other in others)}) == 4
    assert KeptSearch("/models/a", 1000, LAYERS).path == kept.path


GOOD = {"skips": "mlp 3", "found": 3, "rows": 4}
RECORD = {"spent": 1.0, "fruitless": 0, "depth": 4, "sets": [GOOD]}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "{}",
        json.dumps(RECORD | {"sets": [GOOD | {"skips": "mlp 99"}]}),
        json.dumps(RECORD | {"sets": [GOOD | {"found": 5}]}),
        json.dumps(RECORD | {"sets": [GOOD, "mlp 4"]}),
        json.dumps(RECORD | {"sets": []}),
        json.dumps(RECORD | {"spent": None}),
    ],
)
def test_a_file_that_is_not_understood_changes_nothing(kept, text):
    kept.path.parent.mkdir(parents=True)
    search = SkipSearch(SHARES, seconds=1)
    kept.path.write_text(text)
    kept.load(search)
    assert search.best == structured(LAYERS)[0] and not search.counts and not search.spent
    kept.path.write_text(json.dumps(RECORD))
    kept.load(search)
    assert str(search.best) == "mlp 3" and search.finished


def test_a_folder_that_cannot_be_written_is_told(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path / "file"))
    kept = KeptSearch("/models/a", 1000, LAYERS)
    with pytest.warns(UserWarning, match="cannot be kept for the next start"):
        kept.save(searched(Text(1), seconds=5)[0])
    kept.load(search := SkipSearch(SHARES, seconds=1))
    assert not search.counts
