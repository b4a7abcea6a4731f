"""Every contestant on every prompt, taking turns, so that a machine that slows down slows everybody."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from foredraft.core.outcome import SpeculationStatistics
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine.engine import Engine
from foredraft.engine.output import RequestOutput, TokenEvent

PLAIN = "plain"

Prompts = Mapping[str, Sequence[list[int]]]  # token ids by group
Progress = Callable[[int, int], None]  # turns done, turns in all


@dataclass(frozen=True, kw_only=True, slots=True)
class Contestant:
    """One way of writing: an engine and how it speculates."""

    engine: Engine
    config: SpeculationConfig

    def write(self, prompt: list[int], sampling: SamplingParams) -> tuple[RequestOutput, int]:
        """The finished text, and how many tokens its first step wrote."""
        first, output = 0, None
        with self.engine.cold(), closing(self.engine.stream([prompt], sampling, self.config)) as events:
            for event in events:
                if isinstance(event, TokenEvent):
                    first = first or len(event.tokens)
                else:
                    output = event
        return output, first


@dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """One contestant on one prompt.

    Attributes:
        tokens: How many it wrote.
        first_tokens: How many of them in its first step, which reads the prompt.
        seconds, first_seconds: The whole request, and up to its first tokens.
        first_difference: Output position where its text leaves plain's; none where the two are the same.
        statistics: Counts and times of its speculation.
    """

    tokens: int
    first_tokens: int
    seconds: float
    first_seconds: float
    first_difference: int | None
    statistics: SpeculationStatistics

    @property
    def speed(self) -> float:
        """Tokens a second over the whole request."""
        return self.tokens / self.seconds

    @property
    def decode_speed(self) -> float | None:
        """Tokens a second after the first step; none where nothing came after it."""
        after, seconds = self.tokens - self.first_tokens, self.seconds - self.first_seconds
        return after / seconds if after else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Turn:
    """One prompt at one temperature in one round: a sample of every contestant, all from one seed.

    Attributes:
        group, prompt: Which prompt; `prompt` counts within the group.
        prompt_tokens: Its length.
        temperature, round, seed: How it was sampled, and when.
        order: The contestants as they took their turns.
        text: Token ids that plain decoding wrote.
        samples: By contestant.
    """

    group: str
    prompt: int
    prompt_tokens: int
    temperature: float
    round: int
    seed: int
    order: tuple[str, ...]
    text: tuple[int, ...]
    samples: dict[str, Sample]


@dataclass(frozen=True, kw_only=True, slots=True)
class Place:
    """Where a turn stands: its prompt among all prompts and in its group, its temperature and its round."""

    round: int
    position: int
    group: str
    prompt: int
    temperature: float


def take_turns(
    contestants: Mapping[str, Contestant],
    prompts: Prompts,
    *,
    temperatures: Sequence[float],
    sampling: SamplingParams,
    rounds: int,
    progress: Progress | None = None,
) -> list[Turn]:
    """All turns, after a warm-up of every contestant; `plain` must be one of them.

    The contestant that begins moves on by one from prompt to prompt and from round to round. Turn i, counted over
    everything, samples with seed `sampling.seed + i`.
    """
    assert PLAIN in contestants and sampling.seed is not None
    places = every_place(prompts, temperatures, rounds)
    warm_up(contestants, prompts, temperatures, sampling.max_new_tokens)
    turns = []
    for count, place in enumerate(places):
        seed = (sampling.seed + count) % 2**63
        order = rotated(list(contestants), place.round + place.position)
        own = replace(sampling, temperature=place.temperature, seed=seed)
        turns.append(turn_of(contestants, order, place, prompts[place.group][place.prompt], own))
        if progress is not None:
            progress(count + 1, len(places))
    return turns


def every_place(prompts: Prompts, temperatures: Sequence[float], rounds: int) -> list[Place]:
    prompts_in_order = [(group, index) for group, its in prompts.items() for index in range(len(its))]
    return [
        Place(round=number, position=position, group=group, prompt=index, temperature=temperature)
        for number in range(rounds)
        for position, (group, index) in enumerate(prompts_in_order)
        for temperature in temperatures
    ]


def turn_of(
    contestants: Mapping[str, Contestant], order: list[str], place: Place, prompt: list[int], sampling: SamplingParams
) -> Turn:
    written = {name: contestants[name].write(prompt, sampling) for name in order}
    text = tuple(written[PLAIN][0].token_ids)
    return Turn(
        group=place.group,
        prompt=place.prompt,
        prompt_tokens=len(prompt),
        temperature=place.temperature,
        round=place.round,
        seed=sampling.seed,
        order=tuple(order),
        text=text,
        samples={name: sample_of(*written[name], text) for name in contestants},
    )


def rotated(names: list[str], count: int) -> list[str]:
    first = count % len(names)
    return names[first:] + names[:first]


def warm_up(contestants: Mapping[str, Contestant], prompts: Prompts, temperatures: Sequence[float], new: int) -> None:
    """One text of everybody, as long as any that follows, so that none is the first to touch the cache's memory.

    The longest prompt is read backwards: a drafter that learns must not have seen the answer.
    """
    longest = max((prompt for its in prompts.values() for prompt in its), key=len)[::-1]
    for temperature in temperatures:
        sampling = SamplingParams(temperature=temperature, max_new_tokens=new, ignore_eos=True, seed=0)
        for contestant in contestants.values():
            contestant.write(longest, sampling)


def sample_of(output: RequestOutput, first_tokens: int, text: tuple[int, ...]) -> Sample:
    return Sample(
        tokens=len(output.token_ids),
        first_tokens=first_tokens,
        seconds=output.seconds,
        first_seconds=output.first_token_seconds,
        first_difference=first_difference(output.token_ids, text),
        statistics=output.statistics,
    )


def first_difference(ours: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Position of the first token that differs; where one text goes on after the other, the shorter one's length."""
    if tuple(ours) == tuple(theirs):
        return None
    pairs = zip(ours, theirs, strict=False)
    return next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(ours), len(theirs)))
