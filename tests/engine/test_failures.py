"""A request that cannot be served ends alone, whatever part of the step it breaks."""

import random

import pytest

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.draft_tree import DraftTree
from foredraft.core.speculation_config import OFF
from foredraft.drafters.drafter import DrafterNeeds, registry
from foredraft.drafters.scripted import ScriptedDrafter
from foredraft.engine.engine import Engine as LoopEngine
from foredraft.model.scripted_target import ScriptedTarget

VOCABULARY, POISON = 7, 6
PROMPTS = [[1, 2, 3], [4, POISON], [5, 5, 5], [0, 1]]
SAMPLING = SamplingParams(max_new_tokens=20, temperature=1.0, seed=4)


def law(history):
    rng = random.Random(hash(history[-3:]))
    return [rng.gauss(0, 2) for _ in range(VOCABULARY)]


def engine(**options) -> Engine:
    return LoopEngine(ScriptedTarget(law, vocabulary=VOCABULARY), **({"speculation": OFF} | options))


def poisoned(running) -> bool:
    return running.request.prompt == PROMPTS[1]


class Poison(Exception):
    """What the poisoned request raises."""


def checked(served: Engine) -> None:
    """The poisoned request failed, the others wrote what they write alone, and no slot was lost."""
    served.submit(PROMPTS, SAMPLING, served.speculation)
    ended = []
    while not served.scheduler.idle:
        ended += [output for *_, output in served.step() if output is not None]
    outputs = sorted(ended, key=lambda output: output.index)
    alone = engine().generate(PROMPTS, SAMPLING)
    assert [output.finish_reason == "error" for output in outputs] == [False, True, False, False]
    assert "Poison" in outputs[1].error and outputs[0].error is None
    for output, expected in zip(outputs, alone, strict=True):
        if output.error is None:
            assert output.token_ids == expected.token_ids
    served.target.pool.check_integrity([])
    assert served.scheduler.idle and not served.quarantine.suspects


def test_a_processor_that_fails(monkeypatch):
    served = engine()
    prepare = served.prepare

    def prepared(*arguments, **options):
        running = prepare(*arguments, **options)
        if poisoned(running):
            monkeypatch.setattr(running.sampler, "processors", [failing])
            running.sampler.look_at_processors()
        return running

    monkeypatch.setattr(served, "prepare", prepared)
    checked(served)


def failing(scores, rows):
    raise Poison


failing.divisor, failing.spent = None, False


def test_stop_conditions_that_fail(monkeypatch):
    served = engine()
    prepare = served.prepare

    def prepared(*arguments, **options):
        running = prepare(*arguments, **options)
        if poisoned(running):
            monkeypatch.setattr(running.stopper, "push", pushed)
        return running

    monkeypatch.setattr(served, "prepare", prepared)
    checked(served)


def pushed(tokens):
    raise Poison


def test_a_drafter_that_fails():
    checked(engine(speculation=SpeculationConfig(method="random")))


def test_a_forward_that_fails(monkeypatch):
    served = engine()
    forward = served.target.forward

    def failing_forward(plan, features=()):
        for segment in plan.segments:
            if not segment.context and plan.tokens[0, segment.start :][: segment.rows].tolist() == PROMPTS[1]:
                raise Poison
        return forward(plan, features)

    monkeypatch.setattr(served.target, "forward", failing_forward)
    checked(served)


@pytest.fixture(autouse=True)
def random_drafter(monkeypatch):
    def drafted(task) -> DraftTree:
        if task.request.prompt == PROMPTS[1]:
            raise Poison
        return DraftTree.chain([len(task.request.tokens) % VOCABULARY], "random")

    needs = DrafterNeeds(told=False)
    monkeypatch.setitem(registry, "random", lambda config, target: ScriptedDrafter(drafted, needs=needs))


def test_who_asks_for_all_texts_at_once_is_told_of_the_first_that_fails():
    served = engine(speculation=SpeculationConfig(method="random"))
    with pytest.raises(Poison):
        served.generate(PROMPTS, SAMPLING)
    assert served.scheduler.idle
    served.target.pool.check_integrity([])


def test_a_request_ends_before_its_time():
    served = engine(max_batch=1)
    first, second = served.submit([[1, 2], [3]], SAMPLING, OFF)
    for _ in range(3):
        served.step()
    ended, waiting = served.end(first, "timeout"), served.end(second, "shutdown")
    assert (ended.finish_reason, len(ended.token_ids)) == ("timeout", 3)
    assert (waiting.finish_reason, waiting.token_ids, waiting.seconds) == ("shutdown", [], 0.0)
    assert served.scheduler.idle and served.statistics.committed == 3
    served.target.pool.check_integrity([])
