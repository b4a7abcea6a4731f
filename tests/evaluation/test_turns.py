"""Contestants take turns prompt by prompt, from the same seed, and nobody always begins."""

from collections import Counter

from counting import counting_engine, scripted

from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import OFF
from foredraft.evaluation.turns import PLAIN, Contestant, first_difference, take_turns

PROMPTS = {"a": [[1], [2]], "b": [[3]]}


def test_the_first_moves_on_and_everybody_runs_where_it_is_written(monkeypatch):
    log = []

    def logging(name):
        def script(task) -> list[int]:
            if not task.request.written:
                log.append((name, task.request.prompt, task.request.params.temperature, task.request.seed))
            return []

        return scripted(monkeypatch, name, script)

    engine, seen = counting_engine(), []
    configs = {PLAIN: OFF, "x": logging("x"), "y": logging("y")}
    turns = take_turns(
        {name: Contestant(engine=engine, config=config) for name, config in configs.items()},
        PROMPTS,
        temperatures=(0.0, 1.0),
        sampling=SamplingParams(max_new_tokens=3, seed=5),
        rounds=2,
        progress=lambda done, whole: seen.append((done, whole)),
    )
    orders = [turn.order for turn in turns if turn.temperature == 0]
    assert orders == [turn.order for turn in turns if turn.temperature == 1]
    assert [order[0] for order in orders] == [PLAIN, "x", "y", "x", "y", PLAIN]
    assert orders[1] == ("x", "y", PLAIN)
    assert Counter(order[0] for order in orders) == {PLAIN: 2, "x": 2, "y": 2}
    ran = log[4:]  # x and y warmed up at both temperatures
    prompts = {(group, index): its for group, whole in PROMPTS.items() for index, its in enumerate(whole)}
    assert ran == [
        (name, prompts[turn.group, turn.prompt], turn.temperature, turn.seed)
        for turn in turns
        for name in turn.order
        if name != PLAIN
    ]
    assert seen == [(done, 12) for done in range(1, 13)]


def test_warm_up_does_not_show_the_prompt(monkeypatch):
    prompts, longest = [], [*range(64), 7, 7]
    config = scripted(monkeypatch, "seen", lambda task: prompts.append(task.request.prompt) or [])
    ways = {
        PLAIN: Contestant(engine=counting_engine(), config=OFF),
        "seen": Contestant(engine=counting_engine(), config=config),
    }
    sampling = SamplingParams(max_new_tokens=2, seed=0)
    take_turns(ways, {"a": [[1], longest]}, temperatures=(0.0,), sampling=sampling, rounds=1)
    assert prompts == [longest[::-1], [1], longest]


def test_first_difference():
    assert first_difference([1, 2], (1, 2)) is None
    assert first_difference([1, 2], (1, 3)) == 1
    assert first_difference([1], (1, 3)) == 1
    assert first_difference([1, 3, 4], (1, 3)) == 2
