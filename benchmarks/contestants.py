"""Who takes part: foredraft with each drafter, transformers with each way of generating. Settings are data."""

from collections.abc import Callable
from contextlib import closing
from dataclasses import asdict, dataclass, field
from time import perf_counter

import torch
from plain_model import load_plain
from transformers import PreTrainedModel
from transformers.generation import BaseStreamer

from foredraft import Engine, SamplingParams, SpeculationConfig, TokenEvent, UserError
from foredraft.model.loading import eos_of, find_checkpoint

PLAIN, PEER_PLAIN, PEER_ASSISTED, PEER_LOOKUP = "foredraft plain", "hf plain", "hf assisted", "hf prompt lookup"
DRAFT_MODEL = "{draft model}"  # where a setting names the draft model of the run

# Outputs of past requests would hold the text of earlier rounds, so suffix drafts come from the request alone.
SUFFIX = {"method": "suffix", "suffix_decoding_max_cached_requests": 0, "suffix_decoding_max_spec_factor": 2.0}
MODEL = {"method": "draft_model", "model": DRAFT_MODEL}
FOREDRAFT: dict[str, dict] = {
    PLAIN: {"method": "none"},
    "ngram chain 6": {"method": "ngram", "num_speculative_tokens": 6},
    "ngram tree 16": {"method": "ngram", "num_speculative_tokens": 8, "tree_size": 16},
    "suffix chain": SUFFIX | {"num_speculative_tokens": 12},
    "suffix tree 16": SUFFIX | {"num_speculative_tokens": 12, "tree_size": 16},
    "draft model 3": MODEL | {"num_speculative_tokens": 3},
    "draft model 5": MODEL | {"num_speculative_tokens": 5, "draft_confidence_threshold": 0.4},
    "draft model 7": MODEL | {"num_speculative_tokens": 7, "draft_confidence_threshold": 0.4},
    "draft model tree 16": MODEL | {"num_speculative_tokens": 4, "tree_size": 16, "tree_width": 3},
    "mtp 3": {"method": "mtp", "num_speculative_tokens": 3},
    "eagle3 5": {"method": "eagle3", "num_speculative_tokens": 5},
    "dflash 7": {"method": "dflash", "num_speculative_tokens": 7},
    "auto": {"method": "auto", "suffix_decoding_max_cached_requests": 0},
}
# The assistant keeps transformers' own defaults: up to 20 tokens, stopped early when it is unsure.
TRANSFORMERS: dict[str, dict] = {
    PEER_PLAIN: {},
    PEER_ASSISTED: {"assistant_model": DRAFT_MODEL},
    PEER_LOOKUP: {"prompt_lookup_num_tokens": 10},
}


@dataclass(kw_only=True)
class Sample:
    """One contestant on one prompt.

    Attributes:
        tokens: What it wrote.
        seconds: The whole request, prefill included.
        first_seconds, first_tokens: Up to the first tokens handed out, and how many those were.
        forwards: Target forwards that decided tokens.
        shares: Seconds by part where the contestant books them: draft, verify, other.
    """

    tokens: list[int]
    seconds: float
    first_seconds: float
    first_tokens: int
    forwards: int
    shares: dict[str, float] = field(default_factory=dict)

    @property
    def speed(self) -> float:
        """Tokens a second over the whole request."""
        return len(self.tokens) / self.seconds

    @property
    def decode_speed(self) -> float | None:
        """Tokens a second after the first step; none where nothing came after it."""
        after, seconds = len(self.tokens) - self.first_tokens, self.seconds - self.first_seconds
        return after / seconds if after else None

    @property
    def tau(self) -> float:
        return len(self.tokens) / self.forwards

    def record(self) -> dict:
        return asdict(self) | {"speed": self.speed, "decode_speed": self.decode_speed, "tau": self.tau}


Contestant = Callable[[list[int]], Sample]


def foredraft_contestant(engine: Engine, config: SpeculationConfig, sampling: SamplingParams) -> Contestant:
    def write(prompt: list[int]) -> Sample:
        start, first, output = perf_counter(), None, None
        with closing(engine.stream([prompt], sampling, config)) as events:
            for event in events:
                if isinstance(event, TokenEvent):
                    first = first or (perf_counter() - start, len(event.tokens))
                else:
                    output = event
        seconds, statistics = perf_counter() - start, output.statistics
        shares = {part: getattr(statistics, f"{part}_seconds") for part in ("draft", "verify", "other")}
        return Sample(
            tokens=output.token_ids,
            seconds=seconds,
            first_seconds=first[0],
            first_tokens=first[1],
            forwards=statistics.rounds,
            shares=shares,
        )

    return write


class Clock(BaseStreamer):
    """Notes when `generate` hands out its first tokens; the first call brings the prompt."""

    def __init__(self):
        self.calls, self.first = 0, None

    def put(self, value: torch.Tensor) -> None:
        self.calls += 1
        if self.calls == 2:
            self.first = perf_counter(), value.numel()

    def end(self) -> None:
        """Nothing is left to note."""


def transformers_contestant(model: PreTrainedModel, options: dict) -> Contestant:
    forwards = [0]
    model.register_forward_hook(lambda *_: forwards.__setitem__(0, forwards[0] + 1))

    def write(prompt: list[int]) -> Sample:
        clock, ids = Clock(), torch.tensor([prompt])
        before, start = forwards[0], perf_counter()
        text = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, streamer=clock, **options)
        seconds = perf_counter() - start
        return Sample(
            tokens=text[0, len(prompt) :].tolist(),
            seconds=seconds,
            first_seconds=clock.first[0] - start,
            first_tokens=clock.first[1],
            forwards=forwards[0] - before,
        )

    return write


def make_contestants(
    engine: Engine, target: str, draft: str, new: int, ends: list[int]
) -> tuple[dict[str, Contestant], dict[str, str]]:
    """Everybody in this process, over the same weights in the same dtype, greedy; and why others take no part, as where
    the target has no such heads.

    A text ends at one of `ends`, the target's own end tokens, or goes on to `new` tokens where there are none.
    """
    dtype = engine.target.model.dtype
    model, assistant = load_plain(target, dtype), load_plain(draft, dtype)
    for module in (model, assistant):
        module.generation_config.eos_token_id = ends or None
        module.generation_config.pad_token_id = 0
    sampling = SamplingParams(max_new_tokens=new, ignore_eos=not ends)
    configs, left_out = configs_for(engine, draft)
    entrants = {name: foredraft_contestant(engine, config, sampling) for name, config in configs.items()}
    for name, setting in TRANSFORMERS.items():
        options = with_model(setting, assistant) | {"max_new_tokens": new}
        entrants[name] = transformers_contestant(model, options)
    return entrants, left_out


def configs_for(engine: Engine, draft: str) -> tuple[dict[str, SpeculationConfig], dict[str, str]]:
    """Those of foredraft's contestants that the engine can run, and why not the others."""
    configs, left_out = {}, {}
    for name, setting in FOREDRAFT.items():
        config = SpeculationConfig(**with_model(setting, draft))
        try:
            engine.options_of(config)
            configs[name] = config
        except UserError as error:
            left_out[name] = str(error)
    return configs, left_out


def ends_of(engine: Engine, target: str, ignore_eos: bool) -> list[int]:
    return [] if ignore_eos else list(eos_of(find_checkpoint(target), engine.target.tokenizer))


def with_model(setting: dict, model) -> dict:
    return {key: model if value == DRAFT_MODEL else value for key, value in setting.items()}
