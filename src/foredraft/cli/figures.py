"""The figures of a finished text: one line to read, or one object to parse."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from rich.text import Text

from foredraft.cli.comparison import Comparison
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine.output import RequestOutput


def method_name(output: RequestOutput, rule: str) -> str:
    """The drafter, with the acceptance rule where that is not lossless."""
    return output.drafter if output.lossless else f"{output.drafter} (lossy: {rule})"


def summary(output: RequestOutput, rule: str, colours: Mapping[str, str]) -> Text:
    """One line: speed, acceptance, and where the time went. Names of drafters have the colour of their tokens."""
    statistics = output.statistics
    line = Text(f"{method_name(output, rule)}: {output.tokens_per_second:.1f} tokens/s, tau {statistics.tau:.2f}")
    if statistics.drafted:
        accepted = [Text(f"{name} {count}", colours.get(name, "")) for name, count in statistics.accepted_by.items()]
        line.append(f", acceptance rate {statistics.acceptance_rate:.0%} (")
        line.append_text(Text(", ").join(accepted or [Text("0")]))
        line.append(f" of {statistics.drafted})")
    parts = {"draft": statistics.draft_seconds, "verify": statistics.verify_seconds, "rest": statistics.other_seconds}
    line.append("".join(f", {part} {seconds:.2f} s" for part, seconds in parts.items()))
    if statistics.speed_up is not None:
        line.append(f"; estimated speed-up {statistics.speed_up:.2f}, chose {chosen(statistics.choices)}")
    return line


def chosen(choices: Mapping[str, int]) -> str:
    """Ways to draft by how often they were chosen, in words."""
    often = sorted(choices.items(), key=lambda choice: -choice[1])
    return ", ".join(f"{way} {count / sum(choices.values()):.0%}" for way, count in often)


def verdict(comparison: Comparison, config: SpeculationConfig) -> Text:
    """One line: the ratio of speeds, and whether both ways wrote the same tokens."""
    line = Text(f"ratio {comparison.ratio:.2f}, ")
    if comparison.identical:
        return line.append(f"identical: all {len(comparison.plain.token_ids)} tokens are the same")
    return line.append(f"not identical: token {comparison.first_difference} is the first that differs{reason(config)}")


def reason(config: SpeculationConfig) -> str:
    if config.rejection_sample_method != "match":
        return f"; rule {config.rejection_sample_method} does not promise the same tokens"
    return "; in 16 bits rounding may settle a near-tie, --dtype fp32 tells"


def total(outputs: Sequence[RequestOutput], seconds: float) -> Text:
    """One line over texts that took `seconds` together."""
    tokens = sum(len(output.token_ids) for output in outputs)
    return Text(f"{len(outputs)} texts: {tokens} tokens in {seconds:.2f} s, {tokens / seconds:.1f} tokens/s together")


def total_comparison(comparisons: Sequence[Comparison]) -> Text:
    """One line over texts written both ways: the ratio of their mean speeds, and how many are identical."""
    speculative, plain = (speed([getattr(pair, way) for pair in comparisons]) for way in ("speculative", "plain"))
    same = sum(pair.identical for pair in comparisons)
    ratio = speculative / plain if plain else 0.0
    return Text(f"{len(comparisons)} texts: ratio {ratio:.2f}, {same} of {len(comparisons)} identical")


def speed(outputs: Sequence[RequestOutput]) -> float:
    """Tokens a second over the texts' own times, each text's weighed by its length."""
    seconds = sum(output.seconds for output in outputs)
    return sum(len(output.token_ids) for output in outputs) / seconds if seconds else 0.0


def record(output: RequestOutput, config: SpeculationConfig) -> dict[str, Any]:
    """The members of one JSON line."""
    statistics = output.statistics
    members = {
        "index": output.index,
        "sample": output.sample,
        "text": output.text,
        "token_ids": output.token_ids,
        "finish_reason": output.finish_reason,
        "seed": output.seed,
        "drafter": output.drafter,
        "rejection_sample_method": config.rejection_sample_method,
        "lossless": output.lossless,
        "tokens_per_second": output.tokens_per_second,
        "tau": statistics.tau,
        "acceptance_rate": statistics.acceptance_rate,
        "draft_tokens": statistics.drafted,
        "accepted_tokens": statistics.accepted,
        "accepted_per_position": statistics.accepted_at,
        "draft_seconds": statistics.draft_seconds,
        "verify_seconds": statistics.verify_seconds,
        "other_seconds": statistics.other_seconds,
    }
    if statistics.speed_up is not None:
        members |= {"estimated_speed_up": statistics.speed_up, "choices": statistics.choices}
    if output.logprobs is not None:
        members["logprobs"] = [asdict(entry) for entry in output.logprobs]
    if output.prompt_logprobs is not None:
        members["prompt_logprobs"] = [entry and asdict(entry) for entry in output.prompt_logprobs]
    return members


def comparison_record(comparison: Comparison, config: SpeculationConfig) -> dict[str, Any]:
    """The members of one JSON line with `--compare`."""
    return record(comparison.speculative, config) | {
        "plain_tokens_per_second": comparison.plain.tokens_per_second,
        "ratio": comparison.ratio,
        "identical": comparison.identical,
    }
