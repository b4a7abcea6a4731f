"""A draft model of another vocabulary changes no token, and drafts what it would say without any cache."""

from collections import Counter

import pytest
import torch
from other_vocabularies import bridge_of, byte_level
from transformers import LlamaConfig, LlamaForCausalLM

from foredraft import Engine, SamplingParams, SpeculationConfig
from foredraft.core.draft_tree import DraftTree
from foredraft.core.errors import ConfigError, UserError, VocabularyError
from foredraft.core.speculation_config import OFF
from foredraft.core.vocabulary import Vocabulary
from foredraft.drafters.draft_cache import DraftCache
from foredraft.drafters.draft_model import DraftModelDrafter, make_draft_model
from foredraft.drafters.foreign_draft_model import ForeignDraftModel
from foredraft.drafters.string_alignment import StringAlignment
from foredraft.drafters.token_intersection import TokenIntersection
from foredraft.model.attention import NAME
from foredraft.model.capability import capability_of
from foredraft.model.devices import CpuDevice
from foredraft.model.loading import embedded_folder
from foredraft.model.packed_model import PackedModel
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import ModelTarget

MATCHINGS = {"tokens": TokenIntersection, "strings": StringAlignment}
SHAPES = {"chain": {}, "tree": {"tree_size": 12, "num_speculative_tokens": 4}}
SAMPLINGS = {
    "greedy": SamplingParams(max_new_tokens=32),
    "seeded": SamplingParams(max_new_tokens=32, temperature=1.0, seed=7),
    "shaped": SamplingParams(max_new_tokens=32, temperature=0.8, top_p=0.9, frequency_penalty=0.5, seed=3),
}
QUESTIONS = [
    "Write a Python function that reverses a list.",
    "Repeat: caf\u00e9, \u4f60\u597d, \U0001f600!",
    "Passage:\nThe king had three sons. The youngest was kind to birds. He left home.\n\nRepeat the passage.",
    "Name a colour.",
]
DRAFT = {"method": "draft_model", "model": "tiny-draft"}


def tokens_of(outputs) -> list[list[int]]:
    return [output.token_ids for output in outputs]


def check_all_freed(drafter: ForeignDraftModel) -> None:
    assert not drafter.contexts and not drafter.cache.texts
    drafter.cache.pool.check_integrity([])


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine.from_pretrained("tiny", dtype="fp32", threads=1, cache_tokens=2048, speculation=OFF)


@pytest.fixture(scope="module")
def prompts(engine) -> list[list[int]]:
    return [engine.chat([{"role": "user", "content": question}]) for question in QUESTIONS]


@pytest.fixture(scope="module")
def plain(engine, prompts) -> dict[str, list[list[int]]]:
    return {name: tokens_of(engine.generate(prompts, sampling)) for name, sampling in SAMPLINGS.items()}


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("matching", MATCHINGS)
def test_it_changes_no_token(engine, prompts, plain, matching, shape, sampling):
    config = SpeculationConfig(**DRAFT, **SHAPES[shape], vocabulary_matching=matching)
    outputs = engine.generate(prompts, SAMPLINGS[sampling], config)
    assert tokens_of(outputs) == plain[sampling]
    assert sum(output.statistics.accepted for output in outputs) > 0
    check_all_freed(engine.drafter_for(config))
    engine.target.pool.check_integrity([])


@pytest.mark.parametrize("matching", MATCHINGS)
def test_it_changes_no_token_alone(engine, prompts, plain, matching):
    config = SpeculationConfig(**DRAFT, vocabulary_matching=matching)
    for name in ("greedy", "seeded"):
        assert tokens_of(engine.generate(prompts[0], SAMPLINGS[name], config)) == plain[name][:1]


@pytest.mark.parametrize("rule", ["standard", "block", "tree", "traversal"])
def test_every_rule_keeps_the_greedy_text(engine, prompts, plain, rule):
    config = SpeculationConfig(**DRAFT, vocabulary_matching="tokens", rejection_sample_method=rule)
    assert tokens_of(engine.generate(prompts, SAMPLINGS["greedy"], config)) == plain["greedy"]


def test_shared_tokens_of_one_vocabulary_are_drafted_as_ever(engine, prompts):
    """Both caches hold the same text then, as long as the target cuts its words as the tokenizer would."""
    rates = []
    for matching in ("auto", "tokens"):
        config = SpeculationConfig(**DRAFT, num_speculative_tokens=1, vocabulary_matching=matching)
        outputs = engine.generate(prompts[:3], SAMPLINGS["greedy"], config)
        rates.append([(output.statistics.accepted, output.statistics.drafted) for output in outputs])
    assert rates[0] == rates[1]


def test_the_same_vocabulary_shares_the_targets_slots(engine):
    same = make_draft_model(SpeculationConfig(**DRAFT), engine.target)
    assert isinstance(same, DraftModelDrafter) and same.pool is engine.target.pool


def test_drafts_through_text_are_not_sampled(engine):
    wanted = {"draft_sample_method": "probabilistic", "rejection_sample_method": "standard"}
    config = SpeculationConfig(**DRAFT, vocabulary_matching="strings", **wanted)
    with pytest.raises(ConfigError, match="no law to sample drafts from"):
        engine.generate("a", SAMPLINGS["greedy"], config)
    assert engine.drafter_for(SpeculationConfig(**DRAFT, vocabulary_matching="tokens")).needs.samples


def test_a_model_without_a_tokenizer_is_refused(engine, tmp_path):
    for file in embedded_folder("tiny-draft").iterdir():
        if "token" not in file.name:
            (tmp_path / file.name).symlink_to(file)
    with pytest.raises(UserError, match="tokenizer") as caught:
        make_draft_model(SpeculationConfig(method="draft_model", model=str(tmp_path)), engine.target)
    assert "\n" not in str(caught.value)
    bare = ModelTarget("bare", packed(0, len(TARGET_TOKENS)), CpuDevice(), SlotPool(8), None, engine.target.vocabulary)
    with pytest.raises(VocabularyError, match="bare came without a tokenizer"):
        make_draft_model(SpeculationConfig(**DRAFT), bare)


# From here on: random models.

TARGET_TOKENS, DRAFT_TOKENS = byte_level(60, every_byte=False), byte_level(40, every_byte=False)
PROMPTS = ["the king and the birds", "three sons", "the youngest of them " * 5, "a"]


def module(seed: int, vocabulary: int, attention: str) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=256,
        initializer_range=0.3,
    )
    return LlamaForCausalLM._from_config(config, attn_implementation=attention).float().eval()


def packed(seed: int, vocabulary: int) -> PackedModel:
    loaded = module(seed, vocabulary, NAME)
    return PackedModel(loaded, capability_of(LlamaForCausalLM, loaded.config), torch.device("cpu"))


def random_target() -> ModelTarget:
    size = len(TARGET_TOKENS)
    vocabulary = Vocabulary(rows=size, size=size)
    return ModelTarget("random", packed(0, size), CpuDevice(), SlotPool(1024), TARGET_TOKENS, vocabulary)


class CheckedCache(DraftCache):
    """Compares the logits of every row with the draft model run over the same tokens without a cache."""

    def __init__(self, pool: SlotPool):
        model = packed(1, len(DRAFT_TOKENS))
        model.attach(pool, "draft")
        super().__init__(model, pool, expected=pool.size)
        self.twin = module(1, len(DRAFT_TOKENS), "sdpa")
        self.seen = Counter()

    def begin(self, texts):
        self.seen["kept"] += sum(text.filled for text in texts)
        self.seen["run"] += sum(len(text.tokens) - text.filled for text in texts)
        logits = super().begin(texts)
        for text, own in zip(texts, logits, strict=True):
            self.check(text.tokens, own)
        return logits

    def forward(self, rows):
        logits = super().forward(rows)
        texts = self.texts.values()
        owned = {slot: token for text in texts for slot, token in zip(text.table.slots, text.tokens, strict=True)}
        for own, row in zip(logits.split([row.logits for row in rows]), rows, strict=True):
            if row.logits and not row.parents and row.pending == 1:
                known = torch.arange(self.pool.size)[row.context_slots].tolist()
                drafted = self.drafted_tokens()
                self.check([owned.get(slot, drafted.get(slot)) for slot in known] + row.tokens, own[-1])
        return logits

    def drafted_tokens(self) -> dict[int, int]:
        """Token of each slot that drafts under way have run."""
        return {slot: token for text in self.texts.values() for (_, token), slot in text.drafted.items()}

    @torch.inference_mode()
    def check(self, tokens, logits):
        if None not in tokens:
            torch.testing.assert_close(self.twin(torch.tensor([tokens])).logits[0, -1], logits, atol=1e-4, rtol=1e-4)
            self.seen["checked"] += 1


class Resting(ForeignDraftModel):
    """Is asked in every third step only, as a policy may do."""

    steps = 0

    def propose(self, tasks):
        self.steps += 1
        return super().propose(tasks) if self.steps % 3 == 0 else [DraftTree() for _ in tasks]


def run(matching: str, config: SpeculationConfig, sampling: SamplingParams, *, kind=ForeignDraftModel, slots=1024):
    target = random_target()
    bridge = bridge_of(TARGET_TOKENS, DRAFT_TOKENS)
    cache = CheckedCache(SlotPool(slots))
    drafter = kind(MATCHINGS[matching](bridge, cache), bridge, cache, context_length=120)
    engine = Engine(target, max_batch=4, speculation=OFF)
    engine.drafters[config.drafter_key] = drafter
    outputs = engine.generate(PROMPTS, sampling, config)
    check_all_freed(drafter)
    return outputs, drafter


@pytest.mark.parametrize(
    ("shape", "kind"),
    [("chain", ForeignDraftModel), ("tree", ForeignDraftModel), ("chain", Resting)],
    ids=["chain", "tree", "asked in every third step"],
)
@pytest.mark.parametrize("matching", MATCHINGS)
def test_the_cache_holds_what_the_text_is(matching, shape, kind):
    config = SpeculationConfig(method="draft_model", vocabulary_matching=matching, **SHAPES[shape])
    sampling = SamplingParams(max_new_tokens=40, temperature=1.0, seed=5)
    outputs, drafter = run(matching, config, sampling, kind=kind)
    assert tokens_of(outputs) == tokens_of(
        Engine(random_target(), max_batch=4, speculation=OFF).generate(PROMPTS, sampling)
    )
    seen = drafter.cache.seen
    assert seen["checked"] > 60
    assert seen["kept"] > 2 * seen["run"]
    assert sum(output.statistics.drafted for output in outputs) > 50


@pytest.mark.parametrize("matching", MATCHINGS)
def test_without_room_nothing_is_drafted(matching):
    config = SpeculationConfig(method="draft_model", vocabulary_matching=matching)
    sampling = SamplingParams(max_new_tokens=40)
    outputs, drafter = run(matching, config, sampling, slots=60)
    assert tokens_of(outputs) == tokens_of(
        Engine(random_target(), max_batch=4, speculation=OFF).generate(PROMPTS, sampling)
    )
    drafts = [output.statistics.drafts for output in outputs]
    assert min(drafts) < max(drafts)
    outputs, _ = run(matching, config, sampling, slots=4)
    assert sum(output.statistics.drafted for output in outputs) == 0


@pytest.mark.parametrize("matching", MATCHINGS)
def test_a_cancelled_request_leaves_nothing(engine, prompts, matching):
    config = SpeculationConfig(**DRAFT, vocabulary_matching=matching)
    stream = engine.stream(prompts, SAMPLINGS["greedy"], config)
    drafter = engine.drafter_for(config)
    for _ in range(6):
        next(stream)
    assert drafter.contexts and drafter.cache.pool.free < drafter.cache.pool.size
    stream.close()
    check_all_freed(drafter)
    engine.target.pool.check_integrity([])
