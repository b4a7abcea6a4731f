"""The draft model drafts what it would say alone, whatever was accepted or rejected before."""

from functools import cache

import pytest
import torch
from random_heads import PATHS, take_path
from transformers import LlamaConfig, LlamaForCausalLM

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.speculation_config import OFF
from foredraft.core.vocabulary import Vocabulary
from foredraft.drafters.draft_model import DraftModelDrafter
from foredraft.model.attention import NAME
from foredraft.model.capability import capability_of
from foredraft.model.devices import CpuDevice
from foredraft.model.packed_model import PackedModel
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import ModelTarget

VOCABULARY = 61
PROMPTS = [[1, 2, 3], [7] * 9, list(range(40)), [5]]
PATH = "torch"


def module(seed: int, hidden: int, attention: str) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=hidden,
        intermediate_size=2 * hidden,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    return LlamaForCausalLM._from_config(config, attn_implementation=attention).float().eval()


@cache
def twin(seed: int, hidden: int):
    """A model's logits [V] of the token after a text, without any cache; many tests ask for the same texts."""
    alone = module(seed, hidden, "sdpa")
    return cache(lambda text: alone(torch.tensor([text])).logits[0, -1])


@pytest.fixture(params=PATHS, autouse=True)
def path(request, monkeypatch):
    """Every model here takes it."""
    monkeypatch.setitem(globals(), "PATH", request.param)
    return request.param


def packed(seed: int, hidden: int) -> PackedModel:
    loaded = module(seed, hidden, NAME)
    model = PackedModel(loaded, capability_of(LlamaForCausalLM, loaded.config), torch.device("cpu"))
    take_path(model, PATH)
    return model


def model_target() -> ModelTarget:
    vocabulary = Vocabulary(rows=VOCABULARY, size=VOCABULARY)
    return ModelTarget("random", packed(0, 32), CpuDevice(), SlotPool(1024), None, vocabulary)


class CheckedDrafter(DraftModelDrafter):
    """Compares every draft with the draft model run alone on the whole text, without any cache."""

    def __init__(self, pool: SlotPool, seed: int, *, context_length: int = 256):
        hidden = 32 if seed == 0 else 16
        model = packed(seed, hidden)
        model.attach(pool, "draft")
        super().__init__(model, pool, context_length=context_length)
        self.twin = twin(seed, hidden)
        self.checked = 0

    def propose(self, tasks):
        trees = super().propose(tasks)
        for task, tree in zip(tasks, trees, strict=True):
            for node in range(len(tree)):
                self.check(task, tree, node)
        return trees

    @torch.inference_mode()
    def check(self, task, tree, node):
        context = task.request.tokens + tree.path_tokens(node)[:-1]
        logits = self.twin(tuple(context))
        width = task.speculation.tree_width if task.speculation.tree_size else 1
        assert tree.tokens[node] in logits.topk(width).indices.tolist()
        self.checked += 1


def run(seed: int, config: SpeculationConfig, sampling: SamplingParams, **options):
    target = model_target()
    engine = Engine(target, max_batch=4, speculation=OFF)
    engine.drafters[config.drafter_key] = drafter = CheckedDrafter(target.pool, seed, **options)
    outputs = engine.generate(PROMPTS, sampling, config)
    target.pool.check_integrity([])
    return outputs, drafter


CONFIGS = {
    "chain": {},
    "one token": {"num_speculative_tokens": 1},
    "tree": {"tree_size": 12, "num_speculative_tokens": 4},
    "wide tree": {"tree_size": 3, "num_speculative_tokens": 3, "tree_width": 8},
    "early stop": {"draft_confidence_threshold": 0.4},
}


@pytest.mark.parametrize("draft_seed", [0, 1], ids=["perfect drafter", "poor drafter"])
@pytest.mark.parametrize("name", CONFIGS)
def test_drafts_are_the_draft_models_own(name, draft_seed):
    """A drafter equal to the target is accepted whole, which leaves its last token out of its cache each time."""
    config = SpeculationConfig(method="draft_model", **CONFIGS[name])
    sampling = SamplingParams(max_new_tokens=40)
    plain = Engine(model_target(), speculation=OFF).generate(PROMPTS, sampling)
    outputs, drafter = run(draft_seed, config, sampling)
    assert [o.token_ids for o in outputs] == [o.token_ids for o in plain]
    assert drafter.checked >= 60 and not drafter.filled and not drafter.ran
    if draft_seed == 0:
        assert all(sum(o.statistics.accepted_at) == o.statistics.committed - o.statistics.rounds for o in outputs)
        assert all(rate == 1 for o in outputs for rate in chain_rates(o, config))


def chain_rates(output, config: SpeculationConfig) -> list[float]:
    """Acceptance per position where a perfect drafter must be accepted whole."""
    return output.statistics.acceptance_per_position if not config.tree_size else []


def test_coupled_drafts_guess_the_token_that_will_be_drawn():
    """A drafter equal to the target is right at temperature 1 as well, since both see one noise."""
    sampling = SamplingParams(max_new_tokens=40, temperature=1.0, seed=4)
    config = SpeculationConfig(method="draft_model")
    target = model_target()
    engine = Engine(target, speculation=OFF)
    model = packed(0, 32)
    model.attach(target.pool, "draft")
    engine.drafters[config.drafter_key] = DraftModelDrafter(model, target.pool, context_length=256)
    outputs = engine.generate(PROMPTS, sampling, config)
    assert all(o.statistics.acceptance_rate == 1 for o in outputs)
    assert [o.token_ids for o in outputs] == [
        o.token_ids for o in Engine(model_target(), speculation=OFF).generate(PROMPTS, sampling)
    ]


def test_nothing_is_drafted_past_the_draft_models_context():
    config = SpeculationConfig(method="draft_model")
    outputs, drafter = run(0, config, SamplingParams(max_new_tokens=40), context_length=30)
    assert outputs[2].statistics.drafted == 0 and outputs[0].statistics.drafted > 0


def test_two_engines_may_draft_over_one_target():
    sampling = SamplingParams(max_new_tokens=12)
    config = SpeculationConfig(method="draft_model", model="tiny-draft", num_speculative_tokens=3)
    first = Engine.from_pretrained("tiny", speculation=config, dtype="fp32", cache_tokens=512)
    second = Engine(first.target, speculation=config)
    assert first.generate("def add", sampling)[0].token_ids == second.generate("def add", sampling)[0].token_ids
