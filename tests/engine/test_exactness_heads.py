"""Medusa and DFlash write what plain decoding writes, with good heads or bad ones; sampled drafts keep the law."""

from math import exp

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.checkpoints.head import HeadCheckpoint
from foredraft.checkpoints.head_writer import write_head
from foredraft.core.errors import UserError
from foredraft.core.speculation_config import OFF
from foredraft.core.vocabulary import Vocabulary
from foredraft.drafters.dflash import dflash_drafter
from foredraft.drafters.medusa import MedusaDrafter
from foredraft.heads.dflash import DFlashConfig, DFlashHead
from foredraft.heads.layer import LayerSizes
from foredraft.heads.medusa import MedusaConfig, MedusaHeads
from foredraft.heads.shared import Borrowed
from foredraft.model.attention import NAME
from foredraft.model.capability import capability_of
from foredraft.model.devices import CpuDevice
from foredraft.model.features import FINAL_NORM
from foredraft.model.packed_model import PackedModel
from foredraft.model.scripted_target import ScriptedTarget
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import ModelTarget

VOCABULARY, HIDDEN, TOKENS, HEADS, BLOCK = 61, 32, 24, 4, 6
FREQUENT = 51  # a token the random target's texts are full of
PROMPTS = [[1, 2, 3], [7] * 9, list(range(40)), [5], [9, 9, 4, 11], list(range(20, 53)), [3, 1], [44] * 30]
SAMPLINGS = {
    "greedy": SamplingParams(max_new_tokens=TOKENS),
    "seeded": SamplingParams(max_new_tokens=TOKENS, temperature=1.0, seed=7),
    "shaped": SamplingParams(max_new_tokens=TOKENS, temperature=0.7, top_p=0.9, frequency_penalty=0.5, seed=3),
}
SHAPES = {"chain": {}, "tree": {"tree_size": 14}, "named tree": {"speculative_token_tree": "eagle_25"}}
METHODS = ("medusa", "dflash")
CASES = [(method, "good", shape) for method in METHODS for shape in SHAPES]
CASES += [(method, "random", "tree") for method in METHODS]


def random_target() -> ModelTarget:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
        tie_word_embeddings=True,
    )
    module = LlamaForCausalLM._from_config(config, attn_implementation=NAME).float().eval().requires_grad_(False)
    model = PackedModel(module, capability_of(LlamaForCausalLM, config), torch.device("cpu"))
    vocabulary = Vocabulary(rows=VOCABULARY, size=VOCABULARY)
    return ModelTarget("random", model, CpuDevice(), SlotPool(1024), None, vocabulary)


@torch.no_grad()
def spread(module: torch.nn.Module, scale: float) -> torch.nn.Module:
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(scale * noise if parameter.ndim > 1 else parameter + scale * noise)
    return module.eval().requires_grad_(False)


def random_medusa() -> MedusaHeads:
    shape = {"hidden_size": HIDDEN, "vocabulary": VOCABULARY, "draft_vocabulary": VOCABULARY}
    return spread(MedusaHeads(MedusaConfig(heads=HEADS, accuracies=((0.5, 0.2, 0.1),) * HEADS, **shape)), 0.3)


@torch.no_grad()
def good_medusa(texts: list[list[int]]) -> MedusaHeads:
    """Heads fitted by least squares to what the target wrote: from the hidden state of t to token t + 2 + i."""
    heads, twin = random_medusa(), random_target().model.module
    twin.set_attn_implementation("sdpa")
    for index, (blocks, head) in enumerate(zip(heads.blocks, heads.lm_heads, strict=True)):
        blocks[0].linear.weight.zero_()
        blocks[0].linear.bias.fill_(-30.0)  # silu(-30) is nothing
        pairs = [(twin.model(input_ids=torch.tensor([text])).last_hidden_state[0], text) for text in texts]
        rows = torch.cat([hidden[: -2 - index] for hidden, _ in pairs])
        wanted = torch.nn.functional.one_hot(
            torch.tensor([t for _, text in pairs for t in text[2 + index :]]), VOCABULARY
        )
        head.weight.copy_(10 * torch.linalg.lstsq(rows, wanted.float()).solution.T)
    return heads


def dflash_head(target: ModelTarget, scale: float) -> DFlashHead:
    """With small weights it guesses the mask itself, which the texts are full of; with large ones anything."""
    sizes = LayerSizes(hidden_size=HIDDEN, intermediate_size=40, heads=4, kv_heads=2, head_dim=12, head_norms=True)
    config = DFlashConfig(
        sizes=sizes,
        vocabulary=VOCABULARY,
        target_hidden_size=HIDDEN,
        feature_layers=(1, 3),
        layers=2,
        block_size=BLOCK,
        mask_token_id=FREQUENT,
    )
    module = target.model.module
    return spread(DFlashHead(config, Borrowed(module.get_input_embeddings(), module.get_output_embeddings())), scale)


def plain_texts(sampling: SamplingParams) -> list[list[int]]:
    """Each prompt alone, nothing drafted."""
    engine = Engine(random_target(), speculation=OFF)
    return [engine.generate([prompt], sampling)[0].token_ids for prompt in PROMPTS]


@pytest.fixture(scope="module")
def plain() -> dict[str, list[list[int]]]:
    return {name: plain_texts(sampling) for name, sampling in SAMPLINGS.items()}


@pytest.fixture(scope="module")
def engine(plain) -> Engine:
    """One target and four drafters over it, told apart by `model`."""
    target = random_target()
    texts = [prompt + text for prompt, text in zip(PROMPTS, plain["greedy"], strict=True)]
    engine = Engine(target, max_batch=8, speculation=OFF)
    made = {
        ("medusa", "good"): MedusaDrafter(good_medusa(texts)),
        ("medusa", "random"): MedusaDrafter(random_medusa()),
        ("dflash", "good"): dflash_drafter("good", dflash_head(target, 0.1), target.pool, torch.float32),
        ("dflash", "random"): dflash_drafter("random", dflash_head(target, 0.4), target.pool, torch.float32),
    }
    for (method, model), drafter in made.items():
        engine.drafters[SpeculationConfig(method=method, model=model).drafter_key] = drafter
    return engine


def accepted(outputs) -> int:
    return sum(output.statistics.accepted for output in outputs)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize(("method", "model", "shape"), CASES)
def test_a_drafter_changes_no_token(engine, plain, monkeypatch, method, model, shape, sampling):
    """A ragged batch whose long prompts come in chunks."""
    monkeypatch.setattr(engine.scheduler, "step_rows", 24)
    config = SpeculationConfig(method=method, model=model, **SHAPES[shape])
    outputs = engine.generate(PROMPTS, SAMPLINGS[sampling], config)
    assert [output.token_ids for output in outputs] == plain[sampling]
    assert accepted(outputs) > 0
    engine.target.pool.check_integrity([])


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("method", METHODS)
def test_alone_as_in_a_batch(engine, plain, method, sampling):
    config = SpeculationConfig(method=method, model="good", tree_size=10)
    for prompt, text in list(zip(PROMPTS, plain[sampling], strict=True))[:3]:
        assert engine.generate([prompt], SAMPLINGS[sampling], config)[0].token_ids == text


@pytest.mark.parametrize(("method", "form"), [("medusa", "medusa"), ("medusa", "medusa-vllm"), ("dflash", "dflash")])
def test_heads_read_from_files_draft_as_in_memory(engine, plain, tmp_path, method, form):
    """The factory end to end: find, build, prepare, draft."""
    shared = engine.drafters[SpeculationConfig(method=method, model="good").drafter_key]
    network = shared.heads if method == "medusa" else shared.head
    head = HeadCheckpoint(
        name="good", method=method, format=form, config=network.config, tensors=dict(network.state_dict())
    )
    facts = {"target_name": "random", "target_architectures": ["LlamaForCausalLM"], "speculative_tokens": 4}
    write_head(head, tmp_path, format=form, **facts)
    wanted, found = (
        engine.generate(PROMPTS, SAMPLINGS["greedy"], SpeculationConfig(method=method, model=model, tree_size=10))
        for model in ("good", str(tmp_path))
    )
    assert [output.token_ids for output in found] == plain["greedy"]
    assert accepted(found) == accepted(wanted) > 0


@pytest.mark.parametrize("method", METHODS)
def test_a_head_that_is_not_there_is_one_line(method):
    with pytest.raises(UserError, match="head") as refusal:
        Engine(random_target(), speculation=SpeculationConfig(method=method))
    assert "\n" not in str(refusal.value)


RULES = {
    "standard": {},
    "block": {},
    "tree": {"tree_size": 14},
    "traversal": {"tree_size": 14},
    "tree, named": {"speculative_token_tree": "[[0], [2], [0, 0], [0, 1], [2, 0]]"},
}


@pytest.mark.parametrize(
    ("rule", "drafting"), [*((rule, "probabilistic") for rule in RULES), ("standard", "greedy"), ("tree", "greedy")]
)
@pytest.mark.parametrize("method", METHODS)
def test_other_rules(engine, plain, method, rule, drafting):
    """Nothing is drawn at temperature 0, so the text is plain decoding's; at 1 the law is checked below."""
    rule, shape = rule.split(",")[0], RULES[rule]
    options = {"rejection_sample_method": rule, "draft_sample_method": drafting}
    config = SpeculationConfig(method=method, model="good", **options, **shape)
    outputs = engine.generate(PROMPTS, SAMPLINGS["greedy"], config)
    assert [output.token_ids for output in outputs] == plain["greedy"] and accepted(outputs) > 0
    outputs = engine.generate(PROMPTS, SAMPLINGS["shaped"], config)
    assert accepted(outputs) > 0 and all(len(output.token_ids) == TOKENS for output in outputs)
    engine.target.pool.check_integrity([])


def test_good_heads_are_worth_it(engine):
    """Fitted heads are often right, and a tree accepts more than a chain."""
    rates = {}
    for shape in ("chain", "tree"):
        config = SpeculationConfig(method="medusa", model="good", **SHAPES[shape])
        outputs = engine.generate(PROMPTS, SAMPLINGS["greedy"], config)
        rates[shape] = sum(o.statistics.committed for o in outputs) / sum(o.statistics.rounds for o in outputs)
    assert 1.3 < rates["chain"] < rates["tree"]


# The law of sampled drafts: a Markov target over three tokens, heads that know only the token before the root.
MARKOV = {0: [2.0, 0.5, 0.0], 1: [0.0, 1.5, 1.0], 2: [0.3, 0.0, 1.2]}
GUESSES = {0: [0.0, 1.0, 0.5], 1: [0.5, 0.5, 1.5], 2: [1.0, 0.2, 0.0]}
LAW_RULES = {"match": 0, "standard": 0, "block": 0, "tree": 6, "traversal": 6}

# Chi-squared with 2 degrees of freedom in each of 3 states: 6 in all; 27.9 is passed once in 10,000 fair runs.
LIMIT = 27.9


class MarkovHeads:
    """Two heads whose guesses hang on the token before the root alone, from a scripted hidden state."""

    feature_layers = (FINAL_NORM,)
    target_ids = None
    config = MedusaConfig(hidden_size=2, vocabulary=3, heads=2, draft_vocabulary=3)

    def __call__(self, hidden):
        rows = torch.tensor([GUESSES[token] for token in hidden[:, 1].tolist()])
        return torch.stack([rows, rows.flip(-1)])


class Liar(MedusaDrafter):
    """Wrong: says it drew evenly."""

    def tree(self, task, logits):
        tree = super().tree(task, logits)
        tree.laws = [law if law is None else torch.full_like(law, 1 / 3) for law in tree.laws]
        return tree


def chi_squared(texts) -> float:
    """Pearson's statistic of observed transitions against the target's law, summed over states."""
    counts = {state: [0, 0, 0] for state in MARKOV}
    for tokens in texts:
        for state, token in zip(tokens, tokens[1:], strict=False):
            counts[state][token] += 1
    total = 0.0
    for state, seen in counts.items():
        weights = [exp(logit) for logit in MARKOV[state]]
        expected = [sum(seen) * weight / sum(weights) for weight in weights]
        total += sum((s - e) ** 2 / e for s, e in zip(seen, expected, strict=True))
    return total


def markov_texts(drafter, rule: str) -> list[list[int]]:
    target = ScriptedTarget(lambda history: MARKOV[history[-1]], vocabulary=3, slots=4096)
    config = SpeculationConfig(
        method="medusa", num_speculative_tokens=2, tree_size=LAW_RULES[rule], rejection_sample_method=rule
    )
    engine = Engine(target, max_batch=8, speculation=OFF)
    engine.drafters[config.drafter_key] = drafter(MarkovHeads())
    sampling = SamplingParams(max_new_tokens=40, temperature=1.0, seed=11, n=150)
    outputs = engine.generate([0], sampling, config)
    assert accepted(outputs) > 800
    return [[0, *output.token_ids] for output in outputs]


@pytest.mark.parametrize("rule", LAW_RULES)
def test_sampled_drafts_keep_the_law(rule):
    assert chi_squared(markov_texts(MedusaDrafter, rule)) < LIMIT


def test_the_check_sees_a_wrong_law():
    assert chi_squared(markov_texts(Liar, "standard")) > LIMIT
