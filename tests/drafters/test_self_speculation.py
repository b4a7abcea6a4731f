"""Drafts by a part of the target: what that part would say alone, and nothing of them stays in the cache."""

from itertools import count

import pytest
import torch
from transformers import Gemma2Config, Gemma2ForCausalLM, LlamaConfig, LlamaForCausalLM

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.draft_tree import DraftTree
from foredraft.core.errors import ConfigError
from foredraft.core.speculation_config import OFF
from foredraft.core.vocabulary import Vocabulary
from foredraft.drafters import self_speculation
from foredraft.drafters.self_speculation import SelfSpeculationDrafter, SkipMeasurement, make_self_speculation
from foredraft.drafters.skip_search import SkipSearch
from foredraft.model.attention import NAME
from foredraft.model.capability import capability_of
from foredraft.model.devices import CpuDevice
from foredraft.model.layer_skips import LayerSkips
from foredraft.model.packed_model import PackedModel
from foredraft.model.scripted_target import ScriptedTarget
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import ModelTarget

VOCABULARY, LAYERS, EXIT = 61, 4, 2
PROMPTS = [[1, 2, 3], [7] * 9, list(range(40)), [5]]
FAMILIES = {"llama": (LlamaConfig, LlamaForCausalLM), "gemma2": (Gemma2Config, Gemma2ForCausalLM)}
GREEDY, SEEDED = SamplingParams(max_new_tokens=40), SamplingParams(max_new_tokens=40, temperature=1.0, seed=4)
METHOD = "self_speculation"


def module(kind: str, attention: str) -> torch.nn.Module:
    """A random model whose later layers change its mind now and then."""
    torch.manual_seed(0)
    config_class, model_class = FAMILIES[kind]
    config = config_class(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=256,
        initializer_range=0.3,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    loaded = model_class._from_config(config, attn_implementation=attention).float().eval().requires_grad_(False)
    for layer in loaded.model.layers[EXIT:]:
        for parameter in layer.parameters():
            parameter.mul_(0.5)
    return loaded


def model_target(kind: str = "llama") -> ModelTarget:
    loaded = module(kind, NAME)
    packed = PackedModel(loaded, capability_of(type(loaded), loaded.config), torch.device("cpu"))
    vocabulary = Vocabulary(rows=VOCABULARY, size=VOCABULARY)
    return ModelTarget("random", packed, CpuDevice(), SlotPool(1024), None, vocabulary)


def plain(kind: str, sampling: SamplingParams) -> list[list[int]]:
    return [output.token_ids for output in Engine(model_target(kind), speculation=OFF).generate(PROMPTS, sampling)]


def run(target: ModelTarget, drafter, sampling: SamplingParams, config: SpeculationConfig):
    engine = Engine(target, max_batch=4, speculation=OFF)
    engine.drafters[config.drafter_key] = drafter
    outputs = engine.generate(PROMPTS, sampling, config)
    target.pool.check_integrity([])
    return outputs


class CheckedDrafter(SelfSpeculationDrafter):
    """Compares every early-exit draft with the first layers run alone on the whole text, without any cache."""

    def __init__(self, target: ModelTarget, kind: str):
        super().__init__(target.model, target.pool, given=LayerSkips.after(EXIT, LAYERS))
        self.twin = module(kind, "eager")
        self.twin.model.layers = self.twin.model.layers[:EXIT]
        self.checked = 0

    def propose(self, tasks):
        trees = super().propose(tasks)
        for task, tree in zip(tasks, trees, strict=True):
            assert (len(tree) == 0) == (task.request.pending > 1)
            for node in range(len(tree)):
                self.check(task, tree, node)
        return trees

    @torch.inference_mode()
    def check(self, task, tree, node):
        context = task.request.tokens + tree.path_tokens(node)[:-1]
        logits = self.twin(torch.tensor([context]), use_cache=False).logits[0, -1]
        width = task.speculation.tree_width if task.speculation.tree_size else 1
        assert tree.tokens[node] in logits.topk(width).indices.tolist()
        self.checked += 1


SHAPES = {
    "chain": {},
    "one token": {"num_speculative_tokens": 1},
    "tree": {"tree_size": 10, "num_speculative_tokens": 4},
    "early stop": {"draft_confidence_threshold": 0.4},
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("kind", FAMILIES)
def test_drafts_are_those_of_the_first_layers_alone(kind, shape):
    target = model_target(kind)
    drafter = CheckedDrafter(target, kind)
    outputs = run(target, drafter, GREEDY, SpeculationConfig(method=METHOD, **SHAPES[shape]))
    assert [output.token_ids for output in outputs] == plain(kind, GREEDY)
    accepted, drafted = (sum(getattr(o.statistics, key) for o in outputs) for key in ("accepted", "drafted"))
    assert 0 < accepted < drafted and drafter.checked >= drafted - 4 * 10
    assert not drafter.filled and not drafter.ran


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
@pytest.mark.parametrize("options", [{}, {"tree_size": 8}, {"rejection_sample_method": "standard"}])
def test_the_whole_target_drafts_what_is_accepted(sampling, options):
    """A coupled draft is the token itself; a sampled one is accepted because both laws are the same."""
    target = model_target()
    drafter = SelfSpeculationDrafter(target.model, target.pool, given=LayerSkips())
    outputs = run(target, drafter, sampling, SpeculationConfig(method=METHOD, **options))
    for output in outputs:
        rate = output.statistics.accepted / (output.statistics.committed - output.statistics.rounds)
        assert rate == 1 and output.statistics.tau > (4 if not options.get("tree_size") else 2)
        if not options.get("tree_size"):
            assert output.statistics.acceptance_rate == 1


class Sometimes(SelfSpeculationDrafter):
    """Is asked in every third step only."""

    calls = 0

    def propose(self, tasks):
        self.calls += 1
        return super().propose(tasks) if self.calls % 3 == 0 else [DraftTree() for _ in tasks]


@pytest.mark.parametrize("given", [LayerSkips(), LayerSkips.after(EXIT, LAYERS)], ids=["whole", "exit"])
def test_a_drafter_not_asked_for_some_steps_lacks_nothing(given):
    target = model_target()
    drafter = Sometimes(target.model, target.pool, given=given)
    outputs = run(target, drafter, SEEDED, SpeculationConfig(method=METHOD))
    assert [output.token_ids for output in outputs] == plain("llama", SEEDED)
    rates = [output.statistics.acceptance_rate for output in outputs]
    assert all(rate == 1 for rate in rates) if given == LayerSkips() else max(rates) > 0


def committed(engine: Engine, target: ModelTarget) -> dict[int, list[torch.Tensor]]:
    """Keys and values of the one running request's first 30 positions, by layer."""
    [running] = engine.scheduler.running
    slots, group = running.table.slots[:30], target.pool.groups["target"]
    return {layer: [group.keys[layer][slots].clone(), group.values[layer][slots].clone()] for layer in group.keys}


def stepped(target: ModelTarget, config: SpeculationConfig, drafter=None) -> dict[int, list[torch.Tensor]]:
    engine = Engine(target, speculation=OFF)
    if drafter is not None:
        engine.drafters[config.drafter_key] = drafter
    [running] = engine.submit([[1, 2, 3]], GREEDY, config)
    while running.request.computed < 30:
        engine.step()
    stored = committed(engine, target)
    engine.cancel([running])
    return stored


class Watching(SelfSpeculationDrafter):
    """Notes the root's keys in the last layer it runs, as its drafts leave them."""

    def __init__(self, target: ModelTarget, given: LayerSkips):
        super().__init__(target.model, target.pool, given=given)
        self.left: dict[int, torch.Tensor] = {}

    def propose(self, tasks):
        trees = super().propose(tasks)
        for task in tasks:
            keys = self.pool.groups["target"].keys[LAYERS - 1]
            self.left[task.request.computed] = keys[task.table.tail[0]].clone()
        return trees


@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_nothing_approximate_stays_in_the_cache(shape):
    target = model_target()
    drafter = Watching(target, LayerSkips(mlp=frozenset([2])))
    stored = stepped(target, SpeculationConfig(method=METHOD, **SHAPES[shape]), drafter)
    assert len(drafter.left) < 27  # some drafts were accepted
    exact = stepped(model_target(), OFF)
    for layer, tensors in exact.items():
        for got, wanted in zip(stored[layer], tensors, strict=True):
            assert torch.allclose(got, wanted, atol=1e-5 * float(wanted.abs().max()))
    wrong = [float((keys - exact[LAYERS - 1][0][at]).abs().max()) for at, keys in drafter.left.items() if 3 <= at < 30]
    assert len(wrong) >= 5 and min(wrong) > 1e-3  # what the drafts had left there would have shown


class Finds:
    """The search's side of a measurement: always wants one set, and notes what it finds."""

    finished = False

    def __init__(self, skips: LayerSkips):
        self.best, self.told, self.windows = skips, [], 0

    def candidate(self) -> LayerSkips:
        return self.best

    def begin_window(self, depth: int) -> None:
        self.windows += 1

    def tell(self, skips: LayerSkips, found: int, rows: int, seconds: float) -> bool:
        self.told.append((found, rows))
        return False


class CheckedMeasurement(SkipMeasurement):
    """Counts by the first layers alone what an early exit must find."""

    def __init__(self, target: ModelTarget, search, exit_layer: int):
        super().__init__(target.model, target.pool, search)
        self.twin, self.wanted = module("llama", "eager"), []
        self.twin.model.layers = self.twin.model.layers[:exit_layer]

    @torch.inference_mode()
    def found(self, task, skips):
        found = super().found(task, skips)
        tokens, first, stop = task.request.tokens, self.window.first, self.window.first + self.window.rows
        likeliest = self.twin(torch.tensor([tokens[:stop]]), use_cache=False).logits[0, first:].argmax(-1).tolist()
        assert first + 1 >= len(task.request.prompt) and stop <= task.request.computed
        self.wanted.append(sum(a == b for a, b in zip(likeliest, tokens[first + 1 : stop + 1], strict=True)))
        return found


@pytest.mark.parametrize("exit_layer", [EXIT, LAYERS])
def test_a_measurement_finds_what_the_set_finds_without_a_cache(exit_layer):
    target = model_target()
    search = Finds(LayerSkips.after(exit_layer, LAYERS))
    measurement = CheckedMeasurement(target, search, exit_layer)
    drafter = SelfSpeculationDrafter(target.model, target.pool, measurement=measurement)
    outputs = run(target, drafter, GREEDY, SpeculationConfig(method=METHOD, num_speculative_tokens=3))
    assert [output.token_ids for output in outputs] == plain("llama", GREEDY)
    assert [found for found, _ in search.told] == measurement.wanted and len(search.told) > 3
    assert all(16 <= rows <= 32 and rows % 3 == 0 for _, rows in search.told)
    if exit_layer == LAYERS:
        assert all(found == rows for found, rows in search.told)


class GuardedMeasurement(SkipMeasurement):
    """Looks whether a measurement touches what is committed."""

    def found(self, task, skips):
        keys = self.pool.groups["target"].keys
        before = {layer: rows[task.table.slots].clone() for layer, rows in keys.items()}
        found = super().found(task, skips)
        assert all(torch.equal(keys[layer][task.table.slots], rows) for layer, rows in before.items())
        return found


def test_a_measurement_leaves_the_cache_as_it_was():
    """Not an early exit: what that stores is exact wherever it is put."""
    target = model_target()
    search = Finds(LayerSkips(mlp=frozenset([0])))
    measurement = GuardedMeasurement(target.model, target.pool, search)
    drafter = SelfSpeculationDrafter(target.model, target.pool, measurement=measurement)
    outputs = run(target, drafter, SEEDED, SpeculationConfig(method=METHOD))
    assert [output.token_ids for output in outputs] == plain("llama", SEEDED) and len(search.told) > 3


def test_windows_are_renewed_and_survive_their_request():
    target = model_target()
    search = Finds(LayerSkips())
    drafter = SelfSpeculationDrafter(
        target.model, target.pool, measurement=SkipMeasurement(target.model, target.pool, search)
    )
    for _ in range(2):
        run(target, drafter, SamplingParams(max_new_tokens=120), SpeculationConfig(method=METHOD))
    assert search.windows >= 3 and len(search.told) / search.windows <= 16


def test_the_search_keeps_to_its_budget_one_measurement_a_step():
    target = model_target()
    search = SkipSearch(target.model.skippable.shares, seconds=9)
    ticks = count()
    measurement = SkipMeasurement(target.model, target.pool, search, clock=lambda: float(next(ticks)))
    drafter = SelfSpeculationDrafter(target.model, target.pool, measurement=measurement)
    first, config = drafter.skips, SpeculationConfig(method=METHOD)
    engine = Engine(target, speculation=OFF)
    engine.drafters[config.drafter_key] = drafter
    requests, spent = engine.submit(PROMPTS, SamplingParams(max_new_tokens=60), config), [0.0]
    assert drafter.skips == first and first != LayerSkips()
    while not all(running.request.finished for running in requests):
        engine.step()
        spent.append(search.spent)
    assert {later - earlier for earlier, later in zip(spent, spent[1:], strict=False)} == {0.0, 1.0}
    assert search.finished and spent[-1] == 9 and drafter.skips == search.best in search.counts


def tiny(config: SpeculationConfig, **options) -> Engine:
    return Engine.from_pretrained("tiny", speculation=config, dtype="fp32", threads=1, cache_tokens=2048, **options)


def test_what_is_found_is_there_at_the_next_start(tmp_path, monkeypatch):
    monkeypatch.setenv("FOREDRAFT_CACHE", str(tmp_path))
    config = SpeculationConfig(method=METHOD, self_search_seconds=4, num_speculative_tokens=4)
    engine, ticks = tiny(config), count()
    measurement = engine.drafter_for(config).measurement
    measurement.clock = lambda: float(next(ticks))
    engine.generate(["Once there was a dog", "def add(a, b):"], SamplingParams(max_new_tokens=40))
    assert measurement.search.finished and len(list((tmp_path / "skips").iterdir())) == 1
    again = make_self_speculation(config, engine.target)
    assert again.measurement.search.finished and again.skips == engine.drafter_for(config).skips
    more = make_self_speculation(SpeculationConfig(method=METHOD, self_search_seconds=5), engine.target)
    assert not more.measurement.search.finished and more.skips == again.skips


CONFIGS = {
    "exit": {"self_exit_layer": 6},
    "exit tree": {"self_exit_layer": 6, "tree_size": 10},
    "set": {"self_skip": "attention 4, mlp 3"},
    "set and exit": {"self_skip": "attention 4", "self_exit_layer": 7, "draft_confidence_threshold": 0.3},
    "search": {"self_search_seconds": 30.0},
    "search tree": {"self_search_seconds": 30.0, "tree_size": 10},
}


@pytest.fixture(scope="module")
def engine(tmp_path_factory) -> Engine:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FOREDRAFT_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield tiny(OFF)


@pytest.fixture(scope="module")
def texts(engine) -> dict[str, list]:
    prompts = ["def add(a, b):", "Once there was a dog. The dog had a ball and", '{"name": "Ada", "age":', "A box"]
    samplings = {
        "greedy": SamplingParams(max_new_tokens=24),
        "seeded": SamplingParams(max_new_tokens=24, temperature=1.0, seed=7),
    }
    return {
        name: (prompts, sampling, [engine.generate([prompt], sampling)[0].token_ids for prompt in prompts])
        for name, sampling in samplings.items()
    }


@pytest.mark.parametrize("sampling", ["greedy", "seeded"])
@pytest.mark.parametrize("name", CONFIGS)
def test_a_part_of_tiny_changes_no_token(engine, texts, name, sampling):
    prompts, params, wanted = texts[sampling]
    config = SpeculationConfig(method=METHOD, **CONFIGS[name])
    together = engine.generate(prompts, params, config)
    alone = engine.generate(prompts[3], params, config)
    assert [output.token_ids for output in together] == wanted
    assert alone[0].token_ids == wanted[3]
    assert sum(output.statistics.accepted for output in together) > 0 and alone[0].statistics.drafted > 0
    engine.target.pool.check_integrity([])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"self_exit_layer": 8}, "self_exit_layer is 8; the target has 8 layers, so 1 to 7"),
        ({"self_skip": "mlp 3, attention 8"}, "'attention 8'; the target has 8 layers, 0 to 7"),
        ({"self_skip": "layer 3"}, "'layer 3'; give sublayers"),
    ],
)
def test_layers_the_target_has_not_are_refused(engine, options, message):
    with pytest.raises(ConfigError, match=message):
        engine.drafter_for(SpeculationConfig(method=METHOD, **options))


def test_a_target_without_layers_is_refused():
    with pytest.raises(ConfigError, match="is no loaded model; it has no layers to leave out"):
        Engine(ScriptedTarget(lambda history: [0.0] * 8, vocabulary=8), speculation=SpeculationConfig(method=METHOD))


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_a_chain_in_one_call_leaves_out_what_one_by_levels_does(engine, monkeypatch, temperature):
    config = SpeculationConfig(method=METHOD, self_exit_layer=2, num_speculative_tokens=3)
    params = SamplingParams(temperature=temperature, seed=5, max_new_tokens=40, ignore_eos=True)
    drafter = engine.drafter_for(config)
    if drafter.loop is None:
        pytest.skip("this target drafts by levels anyway: foredraft-native is not built")

    def counts() -> tuple[list[int], list[int], list[int]]:
        [output] = engine.generate("def add(a, b):", params, config)
        return output.token_ids, output.statistics.accepted_at, output.statistics.drafted_at

    together = counts()
    monkeypatch.setattr(self_speculation, "loop_of", lambda model, skips: None)
    assert counts() == together
    assert together[1][0] < together[2][0]  # a part of the target is not the target
