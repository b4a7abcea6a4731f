"""foredraft's loop behind transformers' own call: `model.generate(..., custom_generate=foredraft.generate)`."""

from contextlib import closing
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel, StoppingCriteriaList
from transformers.generation import BaseStreamer, GenerateDecoderOnlyOutput

from foredraft.core.errors import require
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine.output import TokenEvent
from foredraft.engine.policy.portfolio import most_scratch
from foredraft.interop.generation_arguments import (
    Batch,
    bad_words_of,
    check_arguments,
    check_context,
    other_criteria,
    sampling_params,
    speculation_config,
    unpadded_prompts,
)
from foredraft.interop.kept_arguments import keep_arguments_for
from foredraft.interop.module_engine import ModuleEngine, engine_for, packed_attention_of

SEEDS = 2**62


@keep_arguments_for
def generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    *,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: GenerationConfig,
    speculation: SpeculationConfig | None = None,
    seed: int | None = None,
    assistant_model: PreTrainedModel | None = None,
    tokenizer=None,
    assistant_tokenizer=None,
    streamer: BaseStreamer | None = None,
    synced_gpus: bool = False,
    **model_kwargs,
) -> Tensor | GenerateDecoderOnlyOutput:
    """A decoding method for `model.generate(**inputs, custom_generate=foredraft.generate, ...)`.

    Give the arguments you give to `generate`, and two more:

        speculation: How to draft. `prompt_lookup_num_tokens` and `assistant_model` are understood as well: the
            assistant becomes the draft model, with `speculation` for its tree or length. None of these drafts nothing.
        seed: Row i of the batch writes the text of seed + i, whatever the speculation. None draws one from torch's
            generator, so that `torch.manual_seed` fixes the text.

    The module is used as it is; its attention implementation is switched during the call and put back. A row's text is
    that of the row alone: padding is taken away first. Stopping criteria are asked after every token, with no scores.

    Returns what `generate` returns: sequences [B, W + longest output], ended rows padded on the right, int64.

    Raises `ConfigError` naming an argument that would have to be ignored (beams, other logits processors, a cache,
    scores), `ModelError` for a model that cannot be run exactly, `VocabularyError` for an assistant of another one.
    """
    check_arguments(model, generation_config, model_kwargs)
    require(assistant_tokenizer is None, "assistant_tokenizer was given; the assistant must have the model's tokenizer")
    require(not synced_gpus, "synced_gpus is set; foredraft.generate runs in one process")
    require(streamer is None or len(input_ids) == 1, f"streamer was given with {len(input_ids)} rows; it follows one")
    prompts = unpadded_prompts(input_ids, model_kwargs)
    batch = Batch.of(input_ids, prompts, model)
    params = sampling_params(generation_config, logits_processor, stopping_criteria, batch)
    texts = [Text(row, other_criteria(stopping_criteria), streamer) for row in input_ids.cpu()]
    with packed_attention_of(model, assistant_model):
        config = speculation_config(generation_config, speculation, assistant_model)
        engine = engine_for(model, assistant_model, slots=sum(slots_for(prompt, params, config) for prompt in prompts))
        check_context(prompts, params.max_new_tokens, engine.target.context_length)
        engine.set_up(rows=len(prompts), bad_words=bad_words_of(logits_processor), config=config)
        write(engine, prompts, seeded(params, seed, len(prompts)), config, texts)
    sequences = padded(input_ids, [text.tokens for text in texts], generation_config._pad_token_tensor)
    return GenerateDecoderOnlyOutput(sequences=sequences) if generation_config.return_dict_in_generate else sequences


@dataclass(eq=False)
class Text:
    """What one row writes.

    Attributes:
        row: The row's prompt, padding included, [W].
        criteria: Asked after every token whether the text ends.
        streamer: Told every token.
        tokens: Written so far.
        ended: Whether it has ended.
    """

    row: Tensor
    criteria: StoppingCriteriaList
    streamer: BaseStreamer | None
    tokens: list[int] = field(default_factory=list)
    ended: bool = False

    def take(self, event: TokenEvent) -> None:
        """Add an event's tokens up to the end of the text."""
        for token in [] if self.ended else event.tokens:
            self.tokens.append(token)
            if self.streamer is not None:
                self.streamer.put(torch.tensor([token]))
            if self.criteria and self.meets_criteria():
                return self.end()
        if event.finish_reason is not None and not self.ended:
            self.end()

    def end(self) -> None:
        self.ended = True
        if self.streamer is not None:
            self.streamer.end()

    def meets_criteria(self) -> bool:
        text = torch.cat([self.row, torch.tensor(self.tokens)])[None]  # [1, W + written]
        return bool(self.criteria(text, None).all())


def write(
    engine: ModuleEngine,
    prompts: list[list[int]],
    sampling: list[SamplingParams],
    config: SpeculationConfig,
    texts: list[Text],
) -> None:
    """Run the engine until every text has ended."""
    with closing(engine.stream(prompts, sampling, config)) as events:
        for event in events:
            if isinstance(event, TokenEvent):
                texts[event.index].take(event)
            if all(text.ended for text in texts):
                break


def slots_for(prompt: list[int], params: SamplingParams, config: SpeculationConfig) -> int:
    return len(prompt) + params.max_new_tokens + most_scratch(config)


def seeded(params: SamplingParams, seed: int | None, rows: int) -> list[SamplingParams]:
    """The parameters of each row: noise of its own, from `seed` or else from torch's generator."""
    first = int(torch.randint(SEEDS, ())) if seed is None and params.temperature else seed or 0
    return [replace(params, seed=first + row) for row in range(rows)]


def padded(input_ids: Tensor, rows: list[list[int]], pad: Tensor | None) -> Tensor:
    """Prompts and outputs, [B, W + longest output]; shorter rows end in padding."""
    longest = max(map(len, rows))
    even = all(len(row) == longest for row in rows)
    require(even or pad is not None, "rows ended at different lengths and there is no padding; give pad_token_id")
    filled = [row + [int(pad)] * (longest - len(row)) if len(row) < longest else row for row in rows]
    return torch.cat([input_ids, torch.tensor(filled, device=input_ids.device)], dim=-1)
