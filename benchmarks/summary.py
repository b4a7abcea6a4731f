"""From samples to figures: ratios within a prompt and round, their spread, and whose text differs."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from statistics import median, quantiles

from contestants import FOREDRAFT, PEER_ASSISTED, PEER_PLAIN, PLAIN, Sample

ALL = "all"


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One prompt in one round: a sample of every contestant.

    Attributes:
        workload, prompt, round: Which; `prompt` counts within the workload.
        prompt_tokens: Length of the prompt.
        samples: By contestant.
    """

    workload: str
    prompt: int
    round: int
    prompt_tokens: int
    samples: dict[str, Sample]

    def record(self) -> dict:
        place = {name: getattr(self, name) for name in ("workload", "prompt", "round", "prompt_tokens")}
        return place | {"samples": {name: sample.record() for name, sample in self.samples.items()}}


def spread(values: Iterable[float]) -> dict[str, float]:
    """Median and quartiles."""
    values = sorted(values)
    low, middle, high = quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {"median": middle, "p25": low, "p75": high}


def ratios(turns: list[Turn], name: str, reference: str, speed: Callable[[Sample], float | None]) -> dict | None:
    """Speed of one contestant over another's on the same prompt in the same round; none where none was measured."""
    pairs = [(speed(turn.samples[name]), speed(turn.samples[reference])) for turn in turns]
    values = [own / other for own, other in pairs if own and other]
    return spread(values) if values else None


def figures(turns: list[Turn], name: str) -> dict:
    """Everything said of one contestant on some turns."""
    samples = [turn.samples[name] for turn in turns]
    seconds = sum(sample.seconds for sample in samples)
    parts = samples[0].shares
    return {
        "ratio": ratios(turns, name, PLAIN, lambda sample: sample.speed),
        "decode_ratio": ratios(turns, name, PLAIN, lambda sample: sample.decode_speed),
        "ratio_to_hf_plain": ratios(turns, name, PEER_PLAIN, lambda sample: sample.speed),
        "ratio_to_hf_assisted": ratios(turns, name, PEER_ASSISTED, lambda sample: sample.speed),
        "tokens_per_second": spread(sample.speed for sample in samples),
        "tau": sum(len(sample.tokens) for sample in samples) / sum(sample.forwards for sample in samples),
        "time_shares": {part: sum(sample.shares[part] for sample in samples) / seconds for part in parts},
        "prompts_unlike_plain": unlike(turns, name, PLAIN),
        "prompts_unlike_hf_plain": unlike(turns, name, PEER_PLAIN),
    }


def unlike(turns: list[Turn], name: str, reference: str) -> int:
    """Prompts whose text differs from the reference's in any round."""
    differ = {(t.workload, t.prompt) for t in turns if t.samples[name].tokens != t.samples[reference].tokens}
    return len(differ)


def summarise(turns: list[Turn]) -> dict[str, dict[str, dict]]:
    """Figures by workload and contestant, all workloads together under `all`."""
    groups = {workload: [t for t in turns if t.workload == workload] for workload in {t.workload: None for t in turns}}
    groups |= {ALL: turns} if len(groups) > 1 else {}
    return {group: {name: figures(its, name) for name in its[0].samples} for group, its in groups.items()}


def best_drafter(group: dict[str, dict]) -> str:
    """foredraft's own contestant with the highest median ratio, plain decoding left out."""
    present = [name for name in FOREDRAFT if name != PLAIN and name in group]
    return max(present, key=lambda name: group[name]["ratio"]["median"])


def plain_step(turns: list[Turn], *, weight_bytes: int, bytes_per_token: int, bandwidth: float) -> dict:
    """What a plain decoding step costs against reading its bytes once: weights, and keys and values of the context."""
    samples = [(turn, turn.samples[PLAIN]) for turn in turns if turn.samples[PLAIN].decode_speed]
    seconds = median(1 / sample.decode_speed for _, sample in samples)
    context = median(turn.prompt_tokens + len(sample.tokens) / 2 for turn, sample in samples)
    read = weight_bytes + bytes_per_token * context
    return {
        "seconds": seconds,
        "bytes_read": read,
        "floor_seconds": read / bandwidth,
        "bandwidth_share": read / bandwidth / seconds,
    }
