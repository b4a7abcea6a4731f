"""A text that begins as an earlier one is the text of a cold run, whoever drafts, shares, waits or was cancelled."""

import random

import pytest
import torch
from fitted_heads import HIDDEN, LAYERS, SIZES, make_drafter, make_target

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.draft_tree import DraftTree
from foredraft.core.speculation_config import OFF
from foredraft.drafters.cascade import CascadeDrafter
from foredraft.drafters.combination import Part
from foredraft.drafters.dflash import dflash_drafter
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.drafters.drafter import registry
from foredraft.drafters.medusa import MedusaDrafter
from foredraft.drafters.ngram import NgramDrafter
from foredraft.drafters.scripted import ScriptedDrafter
from foredraft.engine.prefix_tree import pairs
from foredraft.heads.dflash import DFlashConfig, DFlashHead
from foredraft.heads.medusa import MedusaConfig, MedusaHeads
from foredraft.heads.shared import Borrowed
from foredraft.model.scripted_target import ScriptedTarget

VOCABULARY = 7
SYSTEM = [i * i % 7 for i in range(40)]
GREEDY = SamplingParams(max_new_tokens=12)


def law(history):
    """Logits that hang on the last three tokens and, a little, on the first ones: a wrong prefix shows."""
    rng = random.Random(hash(history[-3:]) + hash(history[:5]))
    return [rng.gauss(0, 2) for _ in range(VOCABULARY)]


def scripted(*, slots: int = 2048, **options) -> Engine:
    return Engine(ScriptedTarget(law, vocabulary=VOCABULARY, slots=slots), **({"speculation": OFF} | options))


def cold(prompt: list[int], sampling: SamplingParams) -> list[int]:
    return scripted(prefix_cache=False).generate(prompt, sampling)[0].token_ids


def check(engine: Engine) -> None:
    """Every slot has one owner, and every lock a request."""
    tables = [running.table for running in engine.scheduler.running]
    engine.target.pool.check_integrity(tables)
    engine.prefix_cache.check_integrity()
    if engine.scheduler.idle:
        assert engine.prefix_cache.evictable == engine.prefix_cache.cached_tokens
        assert engine.target.pool.free + engine.prefix_cache.cached_tokens == engine.target.pool.size


def finish(engine: Engine) -> None:
    while not engine.scheduler.idle:
        engine.step()
        check(engine)


def computed(engine: Engine) -> int:
    """Rows of all forwards so far."""
    return sum(engine.target.forwards)


def test_a_conversation_computes_only_what_is_new():
    engine, text = scripted(), SYSTEM
    for turn in range(4):
        before = computed(engine)
        [output] = engine.generate(text, GREEDY)
        assert output.token_ids == cold(text, GREEDY)
        if turn:
            # The answer's last token and the new ones of the prompt, then one row a token but the last.
            assert computed(engine) - before == 1 + 3 + 11
        check(engine)
        text = text + output.token_ids + [turn, 5, 1]
    cache = engine.prefix_cache
    assert (cache.queries, cache.hits) == (4, 3)
    assert cache.hit_tokens == sum(len(SYSTEM) + 12 - 1 + 15 * turn for turn in range(3))


def test_the_next_turn_goes_on_in_place():
    """No row is copied, and attention reads one run."""
    engine, moves, text = scripted(), [], SYSTEM
    engine.target.move = lambda *rows: moves.append(rows)
    for turn in range(3):
        requests = engine.submit(text, GREEDY, OFF)
        engine.step()
        table = requests[0].table
        assert table.run and table.slots[0] == 0 and bool(table.borrowed) and bool(table.inherited) == (turn > 0)
        finish(engine)
        text = requests[0].request.tokens + [turn, 5]
    assert not moves and engine.prefix_cache.hits == 2


def test_requests_that_grow_side_by_side_take_copies():
    """Four of them behind one system prompt: each reads a run of its own."""
    engine = scripted()
    engine.generate(SYSTEM + [1], GREEDY)
    prompts = [[*SYSTEM, token, 3] for token in (2, 3, 4, 5)]
    before = computed(engine)
    requests = engine.submit(prompts, GREEDY, OFF)
    while not engine.scheduler.idle:
        engine.step()
        check(engine)
        assert all(running.table.run for running in engine.scheduler.running)
    assert [running.request.output for running in requests] == [cold(prompt, GREEDY) for prompt in prompts]
    assert engine.prefix_cache.hits == 4 and engine.prefix_cache.hit_tokens == 4 * (len(SYSTEM) - 1)
    assert computed(engine) - before == 4 * (3 + 11)


def test_without_room_for_copies_slots_are_read_where_they_are():
    engine = scripted(slots=72)
    engine.generate(SYSTEM, SamplingParams(max_new_tokens=3))
    prompts, sampling = [[*SYSTEM, token] for token in (2, 3, 4)], SamplingParams(max_new_tokens=8)
    requests = engine.submit(prompts, sampling, OFF)
    scattered = 0
    while not engine.scheduler.idle:
        engine.step()
        check(engine)
        scattered += sum(not running.table.run for running in engine.scheduler.running)
    assert [running.request.output for running in requests] == [cold(prompt, sampling) for prompt in prompts]
    assert scattered and engine.prefix_cache.hits >= 2


def test_a_request_that_shares_a_copy_has_room_for_its_drafts(monkeypatch):
    """Beside it and the text that it has copied there would be none."""
    monkeypatch.setitem(registry, "random", lambda config, target: ScriptedDrafter(random_tree))
    engine, sampling = scripted(slots=90), SamplingParams(max_new_tokens=8)
    engine.generate(SYSTEM, SamplingParams(max_new_tokens=3))
    drafted = SpeculationConfig(method="random", num_speculative_tokens=4, tree_size=12)
    [running] = engine.submit([*SYSTEM, 6], sampling, drafted)
    finish(engine)
    assert running.request.output == cold([*SYSTEM, 6], sampling)
    assert engine.prefix_cache.hit_tokens == len(SYSTEM) - 1


def test_a_running_request_shares_its_prompt():
    engine = scripted()
    first, second = (SYSTEM + tail for tail in ([1, 1], [1, 2]))
    requests = engine.submit(first, GREEDY, OFF)
    engine.step()
    requests += engine.submit(second, GREEDY, OFF)
    finish(engine)
    assert [running.request.output for running in requests] == [cold(first, GREEDY), cold(second, GREEDY)]
    assert engine.prefix_cache.hit_tokens == len(SYSTEM)


def test_continuations_of_one_prompt_follow_the_first():
    engine = scripted(max_batch=1)
    sampling = SamplingParams(max_new_tokens=9, temperature=1.0, seed=4, n=3)
    outputs = engine.generate(SYSTEM, sampling)
    assert [o.token_ids for o in outputs] == [
        o.token_ids for o in scripted(prefix_cache=False).generate(SYSTEM, sampling)
    ]
    assert engine.prefix_cache.hit_tokens == 2 * (len(SYSTEM) - 1)


def test_what_was_not_used_for_longest_makes_room():
    engine = scripted(slots=150)
    texts = [[token] * 30 for token in range(5)]
    for text in [*texts[:3], texts[0], *texts[3:]]:
        engine.generate(text, SamplingParams(max_new_tokens=4))
        check(engine)
    paths = [engine.prefix_cache.tree.path(pairs(text)) for text in texts]
    # The gap that the second one leaves is one slot short, so the third goes too.
    assert [sum(matching for _, matching in path) for path in paths] == [29, 0, 0, 29, 29]


def test_evict_frees_what_is_asked_and_nothing_in_use():
    engine = scripted()
    cache, pool = engine.prefix_cache, engine.target.pool
    engine.generate([SYSTEM, [3] * 20], GREEDY)
    before = pool.free
    assert cache.evict(1) >= 1 and pool.free > before
    requests = engine.submit([*SYSTEM, 6], GREEDY, OFF)
    engine.step()
    cache.evict(pool.size)
    check(engine)
    assert cache.evictable == 0
    finish(engine)
    assert requests[0].request.output == cold([*SYSTEM, 6], GREEDY)


@pytest.mark.parametrize("steps", [1, 2, 5, 9])
def test_a_cancelled_request_leaves_what_it_has_computed(steps):
    """In the middle of its prompt, or of its answer."""
    engine = scripted(step_rows=9)
    requests = engine.submit(SYSTEM, GREEDY, OFF)
    for _ in range(steps):
        engine.step()
    done = requests[0].request.computed
    engine.cancel(requests)
    check(engine)
    assert engine.scheduler.idle and engine.prefix_cache.cached_tokens == done
    [output] = engine.generate(SYSTEM, GREEDY)
    assert output.token_ids == cold(SYSTEM, GREEDY)
    assert engine.prefix_cache.hit_tokens == min(done, len(SYSTEM) - 1)


def test_log_probabilities_of_a_prompt_are_all_computed():
    engine = scripted()
    engine.generate(SYSTEM, GREEDY)
    running = engine.submit(SYSTEM, SamplingParams(max_new_tokens=2, prompt_logprobs=1), OFF)[0]
    engine.scheduler.admit()
    assert running.request.computed == 0 and engine.prefix_cache.queries == 1
    finish(engine)


def test_a_stop_inside_an_accepted_run_leaves_no_token_that_was_cut(monkeypatch):
    """The prediction is right, so the run is longer than the text."""
    whole = cold(SYSTEM, GREEDY)
    stop = next(token for place, token in enumerate(whole) if place >= 2 and token not in whole[:place])
    answers = {"right": lambda task: whole[len(task.request.tokens) - len(SYSTEM) :]}
    monkeypatch.setitem(registry, "right", lambda config, target: ScriptedDrafter(answers["right"]))
    engine = scripted(speculation=SpeculationConfig(method="right", num_speculative_tokens=8))
    [output] = engine.generate(SYSTEM, SamplingParams(max_new_tokens=12, stop_token_ids=(stop,)))
    assert output.token_ids == whole[: whole.index(stop) + 1]
    check(engine)
    assert engine.prefix_cache.cached_tokens == len(SYSTEM) + len(output.token_ids) - 1
    [again] = engine.generate(SYSTEM + output.token_ids, GREEDY)
    assert again.token_ids == cold(SYSTEM + output.token_ids, GREEDY)


def random_tree(task):
    """Paths of random tokens: now and then some are accepted."""
    rng = random.Random(len(task.request.tokens) * 31)
    paths = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(1, task.depth))] for _ in range(4)]
    return DraftTree.from_paths(paths, "random", task.nodes)


@pytest.mark.parametrize("seed", range(6))
def test_a_crowd_in_a_small_cache(monkeypatch, seed):
    """Requests come and go, share, branch, are cancelled and evict each other; texts are those of cold runs."""
    monkeypatch.setitem(registry, "random", lambda config, target: ScriptedDrafter(random_tree))
    rng = random.Random(seed)
    engine = scripted(slots=rng.choice([110, 160, 400]), step_rows=rng.choice([7, 64]), max_batch=4)
    drafted = SpeculationConfig(method="random", num_speculative_tokens=4, tree_size=9)
    beginnings = [[rng.randrange(VOCABULARY) for _ in range(rng.randint(5, 40))] for _ in range(3)]
    finished, running = [], []
    for _ in range(220):
        if rng.random() < 0.3 and len(engine.scheduler.waiting) < 6:
            text = rng.choice(beginnings)[: rng.randint(1, 40)] + [rng.randrange(VOCABULARY)] * rng.randint(1, 3)
            if finished and rng.random() < 0.4:
                text = rng.choice(finished).request.tokens[:60] + [rng.randrange(VOCABULARY)]
            sampling = SamplingParams(max_new_tokens=rng.randint(1, 14), temperature=rng.choice([0.0, 1.0]), seed=seed)
            running += engine.submit([text], sampling, rng.choice([OFF, drafted, SpeculationConfig(method="ngram")]))
        if running and rng.random() < 0.04:
            engine.cancel([running.pop(rng.randrange(len(running)))])
        if not engine.scheduler.idle:
            engine.step()
        check(engine)
        finished += [own for own in running if own.request.finished]
        running = [own for own in running if not own.request.finished]
    finish(engine)
    for own in finished:
        assert own.request.output == cold(own.request.prompt, own.request.params)
    assert len(finished) > 20 and engine.prefix_cache.hit_tokens > 100


# Drafters whose state hangs on positions, over a random model.

TURNS = [[5, 11, 2, 9, 30, 8, 41, 7, 3] * 3, [17, 22], [40, 4, 4], [9]]
SAMPLINGS = {
    "greedy": SamplingParams(max_new_tokens=10),
    "seeded": SamplingParams(max_new_tokens=10, temperature=1.0, seed=6),
}
HEADS = ("eagle", "eagle3 reduced", "mtp", "dflash", "medusa")
METHODS = ("none", "ngram", "suffix", "draft_model", *HEADS)
SHAPES = {"chain": {"num_speculative_tokens": 4}, "tree": {"num_speculative_tokens": 4, "tree_size": 12}}


@torch.no_grad()
def spread(module: torch.nn.Module, scale: float) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(scale * noise if parameter.ndim > 1 else parameter + scale * noise)
    return module.eval().requires_grad_(False)


def dflash(target):
    config = DFlashConfig(
        sizes=SIZES,
        vocabulary=48,
        target_hidden_size=HIDDEN,
        feature_layers=(1, LAYERS),
        layers=2,
        block_size=5,
        mask_token_id=1,
    )
    module = target.model.module
    head = DFlashHead(config, Borrowed(module.get_input_embeddings(), module.get_output_embeddings()))
    return dflash_drafter("dflash", spread(head, 0.3), target.pool, torch.float32)


def medusa(target):
    config = MedusaConfig(hidden_size=HIDDEN, vocabulary=48, heads=4, draft_vocabulary=48)
    return MedusaDrafter(spread(MedusaHeads(config), 0.3))


def draft_model(target):
    """The target's twin: always right at temperature 0."""
    twin = make_target().model
    twin.attach(target.pool, f"twin {len(target.pool.groups)}")
    return DraftModelDrafter(twin, target.pool, context_length=target.context_length)


def engine_with(method: str, **options) -> Engine:
    target = make_target()
    engine = Engine(target, speculation=OFF, **options)
    made = {"dflash": dflash, "medusa": medusa, "draft_model": draft_model}
    config = SpeculationConfig(method=method)
    if method in made:
        engine.drafters[config.drafter_key] = made[method](target)
    elif method in HEADS:
        engine.drafters[config.drafter_key] = make_drafter(method, target, config)
    return engine


def conversation(engine: Engine, config: SpeculationConfig, sampling: SamplingParams) -> list:
    outputs, text = [], []
    for turn in TURNS:
        text = text + turn
        outputs += engine.generate([text], sampling, config)
        text = text + outputs[-1].token_ids
        if engine.prefix_cache is not None:
            check(engine)
    return outputs


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", METHODS)
def test_a_conversation_is_drafted_as_in_cold_runs(method, shape, sampling):
    """Tokens and, where nothing is learned from text to text, every draft: what drafters take over is whole."""
    config = SpeculationConfig(method=method, **SHAPES[shape])
    warm, first = engine_with(method), engine_with(method, prefix_cache=False)
    outputs = conversation(warm, config, SAMPLINGS[sampling])
    wanted = conversation(first, config, SAMPLINGS[sampling])
    assert [output.token_ids for output in outputs] == [output.token_ids for output in wanted]
    assert warm.prefix_cache.hits == len(TURNS) - 1
    lengths = [len(output.prompt_token_ids) + len(output.token_ids) - 1 for output in outputs[:-1]]
    assert warm.prefix_cache.hit_tokens == sum(lengths)
    if method in (*HEADS, "draft_model"):
        assert [output.sources for output in outputs] == [output.sources for output in wanted]
        drafted, plain = ([output.statistics.drafted for output in run] for run in (outputs, wanted))
        assert drafted == plain and all(drafted)


@pytest.mark.parametrize("method", [*HEADS, "draft_model", "ngram"])
def test_four_requests_share_a_system_prompt(method):
    system, tails = TURNS[0], [[1, 2], [1, 3], [44], [2, 2, 2]]
    config = SpeculationConfig(method=method, **SHAPES["tree"])
    sampling = [SAMPLINGS["greedy"], SAMPLINGS["seeded"]] * 2
    prompts = [system + tail for tail in tails]
    warm, first = engine_with(method), engine_with(method, prefix_cache=False)
    warm.generate([system + [6]], SAMPLINGS["greedy"], config)
    outputs, wanted = (engine.generate(prompts, sampling, config) for engine in (warm, first))
    assert [output.token_ids for output in outputs] == [output.token_ids for output in wanted]
    assert [output.sources for output in outputs] == [output.sources for output in wanted]
    assert warm.prefix_cache.hit_tokens == 4 * (len(system) - 1)
    check(warm)


@pytest.mark.parametrize("method", [*HEADS, "draft_model"])
def test_a_text_that_nobody_drafted_for_serves_as_far_as_it_can(method):
    """A head that needs all features computes the text itself, and from then on it is known to it too."""
    config = SpeculationConfig(method=method, **SHAPES["chain"])
    warm, first = engine_with(method), engine_with(method, prefix_cache=False)
    wanted = conversation(first, config, SAMPLINGS["greedy"])
    warm.generate([TURNS[0]], SAMPLINGS["greedy"], OFF)
    for expected in (0 if method in HEADS and method != "medusa" else len(TURNS[0]) - 1, len(TURNS[0]) - 1):
        before = warm.prefix_cache.hit_tokens
        [output] = warm.generate([TURNS[0]], SAMPLINGS["greedy"], config)
        assert output.token_ids == wanted[0].token_ids and output.sources == wanted[0].sources
        assert warm.prefix_cache.hit_tokens - before == expected
        check(warm)


class Rare:
    """Asks a drafter in every third step of a request only, so that features wait."""

    def __init__(self, drafter, asked):
        self.drafter, self.asked, self.turn = drafter, asked, 0
        self.name, self.needs = drafter.name, drafter.needs
        self.observe, self.close = drafter.observe, drafter.close
        self.leave, self.resume = drafter.leave, drafter.resume

    def propose(self, tasks):
        self.turn += 1
        asked = self.asked and self.turn % self.asked == 0
        return self.drafter.propose(tasks) if asked else [DraftTree() for _ in tasks]


@pytest.mark.parametrize("asked", [0, 3])
@pytest.mark.parametrize("method", ["eagle", "mtp", "dflash", "draft_model"])
def test_features_wait_in_the_cache(method, asked):
    """Served by a drafter that is never or seldom asked; then by one that is, from what has waited."""
    config, greedy = SpeculationConfig(method=method, **SHAPES["chain"]), SAMPLINGS["greedy"]
    warm, first = engine_with(method), engine_with(method, prefix_cache=False)
    rare = Rare(warm.drafters[config.drafter_key], asked)
    warm.drafters[config.drafter_key] = rare
    warm.options.clear()
    [output] = warm.generate([TURNS[0]], greedy, config)
    rare.asked = 1
    prompts = [TURNS[0] + output.token_ids + tail for tail in ([1], [2, 3], [4])]
    outputs, wanted = (engine.generate(prompts, greedy, config) for engine in (warm, first))
    assert [output.token_ids for output in outputs] == [output.token_ids for output in wanted]
    assert [output.sources for output in outputs] == [output.sources for output in wanted]
    assert warm.prefix_cache.hit_tokens >= 3 * (len(TURNS[0]) + 8)
    check(warm)


def test_a_combination_takes_over_what_its_parts_knew():
    config = SpeculationConfig(method="cascade", drafters="ngram, eagle", **SHAPES["chain"])
    engines = [engine_with("none"), engine_with("none", prefix_cache=False)]
    for engine in engines:
        eagle = make_drafter("eagle", engine.target, SpeculationConfig(method="eagle"))
        parts = [Part(NgramDrafter(), "ngram", None), Part(eagle, "eagle", None)]
        engine.drafters[config.drafter_key] = CascadeDrafter(parts, engine.target.pool)
    warm, first = (conversation(engine, config, SAMPLINGS["greedy"]) for engine in engines)
    assert [output.sources for output in warm] == [output.sources for output in first]
    assert {"eagle"} <= {source for output in warm for source in output.sources}
    assert engines[0].prefix_cache.hits == len(TURNS) - 1


def test_copies_that_are_known_better_take_the_place_of_cached_rows():
    """Many texts behind one beginning, first served without a head: it is computed once more and no third time."""
    config = SpeculationConfig(method="eagle", **SHAPES["chain"])
    engine, beginning = engine_with("eagle"), TURNS[0]
    engine.generate([beginning + [tail] for tail in (1, 2)], SAMPLINGS["greedy"], OFF)
    for tail, hits in ((3, 0), (4, 1), (5, 1)):
        before = engine.prefix_cache.hits
        engine.generate([beginning + [tail]], SAMPLINGS["greedy"], config)
        assert engine.prefix_cache.hits - before == hits
        check(engine)


def test_engines_may_share_a_target():
    """What one of them keeps is no obstacle to the other."""
    target = ScriptedTarget(law, vocabulary=VOCABULARY, slots=70)
    engines = [Engine(target, speculation=OFF) for _ in range(2)]
    for turn in range(6):
        [output] = engines[turn % 2].generate([*SYSTEM, turn], GREEDY)
        assert output.token_ids == cold([*SYSTEM, turn], GREEDY)
        target.pool.check_integrity([])
