"""What the arguments of `generate` mean here. What has no meaning here is refused by name, never ignored."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import logits_process as hf
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria

from foredraft.core.errors import require
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.interop.module_engine import ASSISTANT

# Values that ask for nothing, by argument; any other value is refused.
NEUTRAL = {
    "num_beams": (None, 1),
    "num_beam_groups": (None, 1),
    "constraints": (None,),
    "force_words_ids": (None,),
    "penalty_alpha": (None, 0, 0.0),
    "dola_layers": (None,),
    "use_mtp": (None, False),
    "assistant_early_exit": (None,),
    "assistant_ensemble_weight": (None,),
    "speculation_type": (None,),
    "output_scores": (None, False),
    "output_logits": (None, False),
    "output_attentions": (None, False),
    "output_hidden_states": (None, False),
    "cache_implementation": (None, "dynamic"),
    "prefill_chunk_size": (None,),
    "compile_config": (None,),
}
# What transformers itself hands to every decoding method; `unpadded_prompts` and `check_cache` look at these.
PREPARED = ("attention_mask", "position_ids", "past_key_values", "use_cache", "logits_to_keep")
LOOKUP_NGRAM = 2  # transformers' own default of max_matching_ngram_size

# Every processor with a meaning here and the parameters it stands for, in the order in which foredraft applies them.
READERS: dict[type, Callable] = {
    hf.SequenceBiasLogitsProcessor: lambda p, _: {"logit_bias": single_biases(p)},
    hf.RepetitionPenaltyLogitsProcessor: lambda p, batch: {"repetition_penalty": penalty_of(p, batch)},
    hf.NoBadWordsLogitsProcessor: lambda p, _: {},  # see `bad_words_of`
    hf.MinLengthLogitsProcessor: lambda p, batch: {"min_new_tokens": max(0, p.min_length - batch.width)},
    hf.MinNewTokensLengthLogitsProcessor: lambda p, _: {"min_new_tokens": p.min_new_tokens},
    hf.SuppressTokensLogitsProcessor: lambda p, batch: {"allowed_token_ids": batch.others(p.suppress_tokens)},
    hf.TemperatureLogitsWarper: lambda p, _: {"temperature": p.temperature},
    hf.TopKLogitsWarper: lambda p, _: {"top_k": p.top_k},
    hf.TopPLogitsWarper: lambda p, _: {"top_p": p.top_p},
    hf.MinPLogitsWarper: lambda p, _: {"min_p": p.min_p},
    hf.TypicalLogitsWarper: lambda p, _: {"typical_p": p.mass},
    hf.LogitNormalization: lambda p, _: {},  # changes neither the law nor the argmax
}
# The argument that asks for each of transformers' other processors; whatever is not here came as logits_processor.
ASKED_BY = {
    hf.NoRepeatNGramLogitsProcessor: "no_repeat_ngram_size",
    hf.EncoderRepetitionPenaltyLogitsProcessor: "encoder_repetition_penalty",
    hf.EncoderNoRepeatNGramLogitsProcessor: "encoder_no_repeat_ngram_size",
    hf.PrefixConstrainedLogitsProcessor: "prefix_allowed_tokens_fn",
    hf.ForcedBOSTokenLogitsProcessor: "forced_bos_token_id",
    hf.ForcedEOSTokenLogitsProcessor: "forced_eos_token_id",
    hf.InfNanRemoveLogitsProcessor: "remove_invalid_values",
    hf.ExponentialDecayLengthPenalty: "exponential_decay_length_penalty",
    hf.SuppressTokensAtBeginLogitsProcessor: "begin_suppress_tokens",
    hf.UnbatchedClassifierFreeGuidanceLogitsProcessor: "guidance_scale",
    hf.WatermarkLogitsProcessor: "watermarking_config",
    hf.SynthIDTextWatermarkLogitsProcessor: "watermarking_config",
    hf.TopHLogitsWarper: "top_h",
    hf.EpsilonLogitsWarper: "epsilon_cutoff",
    hf.EtaLogitsWarper: "eta_cutoff",
}
ORDER = {kind: place for place, kind in enumerate(READERS)}
WARPERS = (hf.TopKLogitsWarper, hf.TopPLogitsWarper, hf.MinPLogitsWarper, hf.TypicalLogitsWarper)


@dataclass(frozen=True, kw_only=True, slots=True)
class Batch:
    """The prompts of a call as transformers lays them out.

    Attributes:
        width: Columns of `input_ids`, padding included.
        padding: Padding columns on the left of each row, [rows].
        vocabulary: Rows of the logits.
    """

    width: int
    padding: list[int]
    vocabulary: int

    @classmethod
    def of(cls, input_ids: Tensor, prompts: list[list[int]], model: PreTrainedModel) -> "Batch":
        width = input_ids.shape[1]
        padding = [width - len(prompt) for prompt in prompts]
        return cls(width=width, padding=padding, vocabulary=model.config.get_text_config().vocab_size)

    def others(self, tokens: Tensor) -> tuple[int, ...]:
        """Every token id but `tokens`."""
        return tuple(sorted(set(range(self.vocabulary)) - set(tokens.tolist())))


def check_arguments(model: PreTrainedModel, config: GenerationConfig, model_kwargs: dict) -> None:
    """Raise `ConfigError` naming an argument that foredraft would have to ignore."""
    require(not model.training, "the model is in training mode, where dropout decides its text; call model.eval()")
    for name, neutral in NEUTRAL.items():
        value = getattr(config, name, None)
        require(value in neutral, f"{name} is {value!r}; foredraft.generate does not support it, leave it out")
    for name, value in model_kwargs.items():
        known = value is None or name in PREPARED
        require(known, f"{name} was given; foredraft.generate takes input_ids and attention_mask only")
    given = getattr(model_kwargs.get("past_key_values"), "_is_user_defined", False)
    require(not given, "past_key_values was given; foredraft.generate keeps a cache of its own, leave it out")


def check_context(prompts: list[list[int]], new: int, context: int) -> None:
    """Raise `ConfigError` where a text could outgrow the model's context, at which foredraft ends it."""
    longest = max(map(len, prompts))
    require(
        longest + new <= context,
        f"max_new_tokens is {new} after a prompt of {longest} tokens; both must fit in the context, {context}",
    )


def unpadded_prompts(input_ids: Tensor, model_kwargs: dict) -> list[list[int]]:
    """Each row of `input_ids` [B, W] less its left padding. Raises `ConfigError` for any other mask or positions."""
    mask, positions = model_kwargs.get("attention_mask"), model_kwargs.get("position_ids")
    mask = torch.ones_like(input_ids) if mask is None else (mask != 0).long()
    left_padded = bool((mask.diff(dim=-1) >= 0).all() and mask[:, -1].all())
    require(
        left_padded, "attention_mask must be 0 for padding on the left and 1 from there on; set padding_side='left'"
    )
    if positions is not None:
        usual = ((mask.cumsum(-1) - 1 == positions) | (mask == 0)).all()
        require(bool(usual), "position_ids must count from 0 at each row's first token; leave them out")
    return [row[seen].tolist() for row, seen in zip(input_ids, mask.bool(), strict=True)]


def sampling_params(
    config: GenerationConfig, processors: LogitsProcessorList, criteria: StoppingCriteriaList, batch: Batch
) -> SamplingParams:
    """Parameters that mean what the prepared processors and criteria mean. Raises `ConfigError` for one that cannot."""
    check_processors(processors, bool(config.do_sample))
    read: dict = {}
    for processor in processors:
        for name, value in READERS[type(processor)](processor, batch).items():
            read[name] = max(value, read[name]) if name in read else value
    longest = min(c.max_length for c in criteria if isinstance(c, MaxLengthCriteria)) - batch.width
    read["min_new_tokens"] = min(read.get("min_new_tokens", 0), longest)
    read["temperature"] = read.get("temperature", 1.0) if config.do_sample else 0.0
    return SamplingParams(max_new_tokens=longest, stop_token_ids=eos_of(criteria), **read)


def check_processors(processors: LogitsProcessorList, samples: bool) -> None:
    """Raise `ConfigError` for a processor without a counterpart, or an order that gives another law than ours."""
    for processor in processors:
        name, argument = type(processor).__name__, ASKED_BY.get(type(processor), "logits_processor")
        require(type(processor) in READERS, f"{argument} asks for {name}, which foredraft.generate does not have")
        require(
            samples or not isinstance(processor, WARPERS),
            f"logits_processor holds {name} with do_sample=False; leave it out",
        )
        whole = getattr(processor, "filter_value", -torch.inf) == -torch.inf
        least = getattr(processor, "min_tokens_to_keep", 1)
        require(whole and least == 1, f"logits_processor holds {name} with its own filter_value or min_tokens_to_keep")
    places = [ORDER[type(processor)] for processor in processors]
    order = ", ".join(type(processor).__name__ for processor in processors)
    right = places == sorted(set(places))
    require(right, f"logits_processor gives the order {order}; foredraft.generate keeps transformers' own, each once")


def penalty_of(processor: hf.RepetitionPenaltyLogitsProcessor, batch: Batch) -> float:
    """The penalty, where padding is all that it leaves out of the prompt."""
    skipped = processor.prompt_ignore_length
    skipped = skipped.tolist() if isinstance(skipped, Tensor) else [skipped or 0] * len(batch.padding)
    require(skipped == batch.padding, f"prompt_ignore_length is {skipped}; it must be the padding, {batch.padding}")
    return processor.penalty


def single_biases(processor: hf.SequenceBiasLogitsProcessor) -> dict[int, float]:
    longer = [tokens for tokens in processor.sequence_bias if len(tokens) > 1]
    require(not longer, f"sequence_bias holds {longer[:1]}; foredraft.generate takes sequences of one token")
    return {tokens[0]: bias for tokens, bias in processor.sequence_bias.items()}


def bad_words_of(processors: LogitsProcessorList) -> list[list[int]]:
    """Token sequences that must not be written, those left out that are an end of text."""
    bans = [processor for processor in processors if isinstance(processor, hf.NoBadWordsLogitsProcessor)]
    return [list(tokens) for ban in bans for tokens in ban.sequence_bias]


def eos_of(criteria: StoppingCriteriaList) -> tuple[int, ...]:
    ends = [criterion for criterion in criteria if isinstance(criterion, EosTokenCriteria)]
    return tuple(token for end in ends for token in end.eos_token_id.tolist())


def other_criteria(criteria: StoppingCriteriaList) -> StoppingCriteriaList:
    """Criteria that sampling parameters do not cover: stop strings, time, the caller's own."""
    return StoppingCriteriaList(c for c in criteria if not isinstance(c, MaxLengthCriteria | EosTokenCriteria))


def speculation_config(
    config: GenerationConfig, given: SpeculationConfig | None, assistant: PreTrainedModel | None
) -> SpeculationConfig:
    """How to draft: what the caller said, or what transformers' own arguments for assisted generation ask for.

    Raises `ConfigError` where two of them contradict each other.
    """
    lookup = config.prompt_lookup_num_tokens
    require(
        given is None or isinstance(given, SpeculationConfig), f"speculation is {given!r}; give a SpeculationConfig"
    )
    require(lookup is None or given is None, "prompt_lookup_num_tokens and speculation were given; give one of them")
    require(lookup is None or assistant is None, "prompt_lookup_num_tokens and assistant_model were given; give one")
    if assistant is not None:
        return assisted(given or assistant_defaults(config, assistant))
    if lookup is not None:
        longest = config.max_matching_ngram_size or LOOKUP_NGRAM
        return SpeculationConfig(
            method="ngram", num_speculative_tokens=lookup, prompt_lookup_max=longest, prompt_lookup_min=1
        )
    given = given or SpeculationConfig()
    require(given.method != "draft_model", "speculation method 'draft_model' needs the loaded model as assistant_model")
    return given


def assistant_defaults(config: GenerationConfig, assistant: PreTrainedModel) -> SpeculationConfig:
    """Draft length and early stop of transformers' assisted generation: the assistant's own, else the call's."""
    own = assistant.generation_config
    return SpeculationConfig(
        method="draft_model",
        num_speculative_tokens=own.num_assistant_tokens or config.num_assistant_tokens,
        draft_confidence_threshold=own.assistant_confidence_threshold or config.assistant_confidence_threshold or 0.0,
    )


def assisted(config: SpeculationConfig) -> SpeculationConfig:
    require(
        config.method == "draft_model" and config.model is None,
        f"speculation is {config.method}, model {config.model!r}; assistant_model needs draft_model without a model",
    )
    return replace(config, model=ASSISTANT)
