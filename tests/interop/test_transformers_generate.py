"""`custom_generate=generate` writes what transformers' own `generate` writes, or refuses by name."""

import gc
from functools import partial
from pathlib import Path
from weakref import ref

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LogitsProcessor, StoppingCriteria
from transformers.generation import BaseStreamer, TemperatureLogitsWarper, TopPLogitsWarper

from foredraft import ConfigError, ModelError, SpeculationConfig, VocabularyError
from foredraft.interop.module_engine import engines
from foredraft.interop.transformers_generate import generate

MODELS = Path(__file__).resolve().parents[3] / "shared" / "models"
needs_shared = pytest.mark.skipif(not MODELS.is_dir(), reason=f"{MODELS} does not exist")

SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
KINDS = {
    "llama": {},
    "gemma2": {"sliding_window": 4, "attn_logit_softcapping": 2.0, "query_pre_attn_scalar": 16},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 128, "n_inner": 48},
}


@torch.no_grad()
def tiny(kind: str, seed: int = 0, **sizes):
    """A random model whose text is neither constant nor short."""
    config = AutoConfig.for_model(kind, **(SIZES | KINDS.get(kind, {}) | sizes))
    module = AutoModelForCausalLM.from_config(config, dtype=torch.float32, attn_implementation="eager").eval()
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(0.3 * noise if parameter.ndim > 1 else parameter + 0.1 * noise)
    return module


@pytest.fixture(scope="module")
def llama():
    return tiny("llama")


@pytest.fixture(scope="module")
def assistant():
    """Nearly the model itself, so that some of its drafts are accepted and some are not."""
    module = tiny("llama")
    generator = torch.Generator().manual_seed(9)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    return module


ONE = {"input_ids": torch.tensor([[5, 9, 11, 5, 9, 11, 5]])}
PADDED = {
    "input_ids": torch.tensor([[0, 0, 0, 7, 8, 7, 8], [5, 9, 11, 5, 9, 11, 5], [0, 0, 0, 0, 0, 0, 33]]),
    "attention_mask": torch.tensor([[0, 0, 0, 1, 1, 1, 1], [1] * 7, [0, 0, 0, 0, 0, 0, 1]]),
}
NGRAM = SpeculationConfig(method="ngram", prompt_lookup_min=1, num_speculative_tokens=4)
DRAFTS = {
    "none": {},
    "ngram": {"speculation": NGRAM},
    "suffix-tree": {"speculation": SpeculationConfig(method="suffix", tree_size=9)},
    "prompt_lookup_num_tokens": {"prompt_lookup_num_tokens": 3},
}


@pytest.mark.parametrize("inputs", [ONE, PADDED], ids=["one", "padded"])
@pytest.mark.parametrize("drafts", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_is_that_of_generate(kind, drafts, inputs):
    module = tiny(kind)
    options = {"max_new_tokens": 24, "do_sample": False}
    wanted = module.generate(**inputs, **options)
    assert torch.equal(module.generate(**inputs, **options, **drafts, custom_generate=generate), wanted)
    assert len(set(wanted[0].tolist())) > 4


@pytest.mark.parametrize("inputs", [ONE, PADDED], ids=["one", "padded"])
@pytest.mark.parametrize("tree_size", [None, 0, 9])
def test_an_assistant_drafts(llama, assistant, inputs, tree_size):
    options = {"max_new_tokens": 24, "do_sample": False, "assistant_model": assistant}
    if tree_size is not None:
        options["speculation"] = SpeculationConfig(method="draft_model", tree_size=tree_size)
    engines.pop(llama, None)
    text = llama.generate(**inputs, **options, custom_generate=generate)
    assert torch.equal(text, llama.generate(**inputs, max_new_tokens=24, do_sample=False))
    assert engines[llama].statistics.accepted > 0


@needs_shared
@pytest.mark.parametrize("drafts", ["model", "ngram"])
def test_trained_models_agree_too(drafts):
    target, draft = (AutoModelForCausalLM.from_pretrained(MODELS / n) for n in ("stories260K", "llama2xs-279K"))
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "stories260K", pad_token="</s>", padding_side="left")
    inputs = tokenizer(["Once upon a time", "The dog and the cat went to the"], return_tensors="pt", padding=True)
    chosen = {"assistant_model": draft} if drafts == "model" else {"speculation": NGRAM}
    wanted = target.generate(**inputs, max_new_tokens=40)
    assert torch.equal(target.generate(**inputs, max_new_tokens=40, **chosen, custom_generate=generate), wanted)


@needs_shared
def test_stop_strings_end_the_text_where_transformers_ends_it():
    target = AutoModelForCausalLM.from_pretrained(MODELS / "stories260K")
    tokenizer = AutoTokenizer.from_pretrained(MODELS / "stories260K")
    options = tokenizer("Once upon a time", return_tensors="pt") | {"max_new_tokens": 60}
    wanted = target.generate(**options, tokenizer=tokenizer, stop_strings=["girl"])
    text = target.generate(**options, tokenizer=tokenizer, stop_strings=["girl"], custom_generate=generate)
    assert torch.equal(text, wanted) and text.shape[1] < 60


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.7},
        {"suppress_tokens": [3, 4, 5, 9, 11]},
        {"sequence_bias": {(7,): 4.0, (9,): -3.0}},
        {"min_new_tokens": 12},
        {"min_length": 15},
        {"max_length": 20, "max_new_tokens": None},
        {"num_return_sequences": 2, "do_sample": True, "top_k": 1},
        {"renormalize_logits": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("inputs", [ONE, PADDED], ids=["one", "padded"])
def test_arguments_mean_what_they_mean_in_transformers(llama, inputs, options):
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": ending(llama)} | options
    wanted = llama.generate(**inputs, **options)
    assert torch.equal(llama.generate(**inputs, **options, speculation=NGRAM, custom_generate=generate), wanted)


def ending(module) -> int:
    """A token that `module` writes after a few others, so that rows end early."""
    return module.generate(**ONE, max_new_tokens=8, do_sample=False)[0, -1].item()


def test_bad_words_of_one_and_of_several_tokens(llama):
    plain = llama.generate(**ONE, max_new_tokens=20, do_sample=False)[0, 7:].tolist()
    options = {"max_new_tokens": 20, "do_sample": False, "bad_words_ids": [[plain[0]], plain[4:6]]}
    text = llama.generate(**ONE, **options, speculation=NGRAM, custom_generate=generate)
    assert torch.equal(text, llama.generate(**ONE, **options)) and text[0, 7:].tolist() != plain


def test_an_end_token_ends_rows_and_padding_follows(llama):
    options = {"max_new_tokens": 20, "do_sample": False, "eos_token_id": [ending(llama), 2]}
    text = llama.generate(**PADDED, **options, speculation=NGRAM, custom_generate=generate)
    assert torch.equal(text, llama.generate(**PADDED, **options)) and (text[:, -1] == 0).any()


SAMPLED = {"max_new_tokens": 24, "do_sample": True, "temperature": 0.9, "top_p": 0.95, "min_p": 0.01, "typical_p": 0.97}


def test_a_seed_gives_the_same_text_whatever_drafts(llama, assistant):
    plain = llama.generate(**PADDED, **SAMPLED, seed=4, custom_generate=generate)
    for drafts in ({"speculation": NGRAM}, {"assistant_model": assistant}):
        assert torch.equal(llama.generate(**PADDED, **SAMPLED, **drafts, seed=4, custom_generate=generate), plain)
    assert not torch.equal(llama.generate(**PADDED, **SAMPLED, seed=5, custom_generate=generate), plain)


def test_without_a_seed_torch_decides(llama):
    def sample(seed):
        torch.manual_seed(seed)
        return llama.generate(**ONE, **SAMPLED, num_return_sequences=3, custom_generate=generate)

    assert torch.equal(sample(1), sample(1)) and not torch.equal(sample(1), sample(2))
    assert len({tuple(row) for row in sample(1).tolist()}) == 3


class StopsAt(StoppingCriteria):
    def __init__(self, token: int):
        self.token = token

    def __call__(self, input_ids, scores, **_):
        return input_ids[:, -1] == self.token


@pytest.mark.parametrize("inputs", [ONE, PADDED], ids=["one", "padded"])
def test_stopping_criteria_are_asked_after_every_token(llama, inputs):
    options = {"max_new_tokens": 20, "do_sample": False, "stopping_criteria": [StopsAt(ending(llama))]}
    text = llama.generate(**inputs, **options, speculation=NGRAM, custom_generate=generate)
    assert torch.equal(text, llama.generate(**inputs, **options)) and text.shape[1] <= 7 + 20


def test_no_time_gives_one_token(llama):
    assert llama.generate(**ONE, max_new_tokens=20, max_time=0.0, custom_generate=generate).shape == (1, 8)


class Collector(BaseStreamer):
    def __init__(self):
        self.pieces, self.ends = [], 0

    def put(self, value):
        self.pieces += value.reshape(-1).tolist()

    def end(self):
        self.ends += 1


def test_a_streamer_sees_prompt_and_text(llama):
    streamer = Collector()
    text = llama.generate(**ONE, max_new_tokens=12, streamer=streamer, speculation=NGRAM, custom_generate=generate)
    assert streamer.pieces == text[0].tolist() and streamer.ends == 1


def test_a_dictionary_is_returned_on_request(llama):
    output = llama.generate(**ONE, max_new_tokens=6, return_dict_in_generate=True, custom_generate=generate)
    assert torch.equal(output.sequences, llama.generate(**ONE, max_new_tokens=6, do_sample=False))


class Custom(LogitsProcessor):
    def __call__(self, input_ids, scores):
        return scores


REFUSED = [
    ("num_beams", {"num_beams": 2}),
    ("no_repeat_ngram_size", {"no_repeat_ngram_size": 2}),
    ("sequence_bias", {"sequence_bias": {(3, 4): 1.0}}),
    ("logits_processor", {"logits_processor": [Custom()]}),
    (
        "logits_processor",
        {"logits_processor": [TopPLogitsWarper(0.9), TemperatureLogitsWarper(0.5)], "do_sample": True},
    ),
    ("logits_processor", {"logits_processor": [TopPLogitsWarper(0.5)]}),
    ("prefix_allowed_tokens_fn", {"prefix_allowed_tokens_fn": lambda batch, tokens: [1, 2]}),
    ("forced_eos_token_id", {"forced_eos_token_id": 3}),
    ("exponential_decay_length_penalty", {"exponential_decay_length_penalty": (3, 1.1)}),
    ("guidance_scale", {"guidance_scale": 2.0}),
    ("penalty_alpha", {"penalty_alpha": 0.6, "top_k": 4}),
    ("output_scores", {"output_scores": True, "return_dict_in_generate": True}),
    ("cache_implementation", {"cache_implementation": "static"}),
    ("inputs_embeds", {"inputs_embeds": torch.zeros(1, 7, 32)}),
    ("position_ids", {"position_ids": torch.arange(7)[None] + 2}),
    ("max_new_tokens", {"max_new_tokens": 500}),
    ("speculation", {"speculation": "ngram"}),
    ("assistant_model", {"speculation": SpeculationConfig(method="draft_model", model="elsewhere")}),
    ("prompt_lookup_num_tokens", {"speculation": NGRAM, "prompt_lookup_num_tokens": 3}),
    ("seed", {"seed": -1}),
]


@pytest.mark.parametrize(("name", "options"), REFUSED, ids=[f"{name}-{i}" for i, (name, _) in enumerate(REFUSED)])
def test_what_would_be_ignored_is_refused_by_name(llama, name, options):
    with pytest.raises(ConfigError, match=name):
        llama.generate(**ONE, **({"max_new_tokens": 4, "custom_generate": generate} | options))
    assert llama.config._attn_implementation == "eager"


def test_a_streamer_or_right_padding_or_training_mode_is_refused(llama):
    options = {"max_new_tokens": 4, "custom_generate": generate}
    with pytest.raises(ConfigError, match="streamer"):
        llama.generate(**PADDED, **options, streamer=Collector())
    with pytest.raises(ConfigError, match="attention_mask"):
        llama.generate(**(PADDED | {"attention_mask": PADDED["attention_mask"].flip(1)}), **options)
    with pytest.raises(ConfigError, match="training"):
        tiny("llama").train().generate(**ONE, **options)


def test_the_assistant_must_fit(llama):
    options = {"max_new_tokens": 4, "custom_generate": partial(generate, assistant_model=tiny("llama", vocab_size=50))}
    with pytest.raises(VocabularyError, match="50"):
        llama.generate(**ONE, **options)
    with pytest.raises(ConfigError, match="assistant_model"):
        llama.generate(**ONE, max_new_tokens=4, assistant_model=llama, speculation=NGRAM, custom_generate=generate)
    assert llama.config._attn_implementation == "eager"


def test_an_architecture_without_the_attention_interface_is_refused():
    module = tiny("bloom", n_head=4, n_layer=2)
    with pytest.raises(ModelError, match="BloomForCausalLM"):
        module.generate(**ONE, max_new_tokens=4, custom_generate=generate)


def test_the_engine_is_kept_with_its_module_and_no_longer():
    module = tiny("llama")
    weights = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.generate(**ONE, max_new_tokens=4, custom_generate=generate)
    engine = engines[module]
    module.generate(**ONE, max_new_tokens=3, custom_generate=generate)
    assert engines[module] is engine and all(torch.equal(module.state_dict()[n], w) for n, w in weights.items())
    module.generate(**ONE, max_new_tokens=90, custom_generate=generate)
    assert engines[module].target.pool.size >= 97
    del engine
    gone = ref(module)
    del module
    gc.collect()
    assert gone() is None


def test_other_callables_see_what_transformers_gives_them(llama, assistant):
    """The arguments we keep for ourselves are kept for nobody else."""
    seen = {}

    def other(model, input_ids, logits_processor, stopping_criteria, generation_config, assistant_model=None, **rest):
        seen.update(rest, assistant_model=assistant_model)
        return input_ids

    llama.generate(**ONE, max_new_tokens=4, assistant_model=assistant, custom_generate=other)
    assert seen["assistant_model"] is None and "streamer" not in seen
