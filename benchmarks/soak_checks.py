"""Whether a soak went well: each answer by itself, the server's own counts, and its memory."""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import linear_regression, median

from prometheus_client.parser import text_string_to_metric_families
from soak_calls import AT_ONCE, BEFORE, READING, WAITING, Call
from soak_client import DONE, Answer

SHOWN = 50  # problems that a report quotes
WARM_UP = 0.2  # share of the calls after which memory is to be flat
WINDOW = 0.1  # share of the calls that a level of memory is the median of
INVALID = (400, 404, 405)  # statuses that the server counts as invalid calls
SERVED = ("stop", "length")


def problem_of(call: Call, answer: Answer) -> str | None:
    """What is wrong with an answer; none where it is as it should be."""
    if answer.problem is not None:
        return answer.problem
    if call.leaves not in (None, READING):
        return None
    if answer.status not in call.answers:
        return f"answered {answer.status}: {answer.body[:200]!r}"
    if call.leaves == READING or call.spoken:
        return None
    if answer.status != 200:
        return problem_of_refusal(answer)
    if call.texts and call.stream:
        return problem_of_stream(call, answer)
    return problem_of_texts(call, answer) if call.texts else None


def problem_of_refusal(answer: Answer) -> str | None:
    error = answer.json().get("error", {})
    whole = error.keys() == {"message", "type", "param", "code"} and error["message"]
    return None if whole else f"an error without OpenAI's form: {answer.body[:200]!r}"


def problem_of_texts(call: Call, answer: Answer) -> str | None:
    choices = answer.json()["choices"]
    places = [choice["index"] for choice in choices]
    ended = all(choice["finish_reason"] for choice in choices)
    return None if places == list(range(call.texts)) and ended else f"choices {places}, {call.texts} were asked for"


def problem_of_stream(call: Call, answer: Answer) -> str | None:
    if answer.events.count(DONE) != 1 and not failed(answer):
        return "a stream without one end"
    ends = Counter(choice["index"] for choice in choices_of(answer) if choice["finish_reason"])
    whole = ends == Counter(range(call.texts)) or failed(answer)
    return None if whole else f"ends of choices {dict(ends)}, {call.texts} were asked for"


def choices_of(answer: Answer) -> list[dict]:
    return [choice for chunk in answer.chunks() for choice in chunk.get("choices", ())]


def failed(answer: Answer) -> bool:
    """Whether a stream ends with an error event in place of its end."""
    return bool(answer.events) and "error" in answer.chunks()[-1]


def timed_out(call: Call, answer: Answer) -> bool:
    """Whether the text of a call with one was cut by its time."""
    if answer.status == 408:
        return True
    choices = choices_of(answer) if call.stream else answer.json()["choices"]
    return any(choice.get("foredraft", {}).get("ended") == "timeout" for choice in choices) or failed(answer)


def text_of(call: Call, answer: Answer) -> str:
    """The text of an answer that has one."""
    choices = choices_of(answer) if call.stream else answer.json()["choices"]
    return "".join(choice["text"] for choice in choices)


@dataclass(kw_only=True)
class Ledger:
    """What clients saw, added up.

    Attributes:
        calls: Calls by kind and status.
        problems: What was wrong, with the kind of call.
        texts: By word, the texts of calls that must all get the same.
        served, timeouts: Continuations whose end was read, by what ended them.
        left: Continuations that the server surely began and whose end nobody read.
        maybe: Those it may or may not have begun before their client was gone.
        halves: Calls whose body never came whole; the server may count them as invalid.
        refusals: Refused calls that the server counts, by its reason.
        seconds: Of calls that were answered whole with a text.
    """

    calls: Counter[tuple[str, int | None]] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    texts: dict[str, set[str]] = field(default_factory=dict)
    served: int = 0
    timeouts: int = 0
    left: int = 0
    maybe: int = 0
    halves: int = 0
    refusals: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)

    def add(self, call: Call, answer: Answer) -> None:
        self.calls[call.kind, answer.status] += 1
        problem = problem_of(call, answer)
        if problem is not None:
            self.problems.append(f"{call.kind}: {problem}")
            return
        if call.leaves == BEFORE:
            self.halves += 1
        elif call.leaves in (AT_ONCE, WAITING):
            self.maybe += call.texts
        elif call.leaves == READING:
            self.left += call.texts
        elif answer.status in (200, 408) and call.texts:
            self.add_texts(call, answer)
        elif call.method == "POST" and not call.spoken:
            self.add_refusal(answer.status)

    def add_texts(self, call: Call, answer: Answer) -> None:
        self.seconds.append(answer.seconds)
        if timed_out(call, answer):
            self.timeouts += call.texts
            return
        self.served += call.texts
        if call.same is not None:
            self.texts.setdefault(call.same, set()).add(text_of(call, answer))

    def add_refusal(self, status: int) -> None:
        if status in INVALID or status == 413:
            self.refusals["too_large" if status == 413 else "invalid"] += 1

    def verdicts(self, told: "Told") -> dict[str, bool]:
        """What was to be shown, and whether it holds."""
        ended = {reason: int(told.by("foredraft_finished_requests_total", reason)) for reason in ENDS}
        unread = sum(ended.values()) - self.served - self.timeouts - self.left
        whole = ended["stop"] + ended["length"]
        return {
            "every call got its one answer": not self.problems,
            "same seed, same text": all(len(texts) == 1 for texts in self.texts.values()),
            "no request failed": ended["error"] == ended["shutdown"] == 0,
            "the server ended as many texts as were asked for": 0 <= unread <= self.maybe,
            "it served whole what was read whole": self.served <= whole <= self.served + self.left + self.maybe,
            "timeouts as clients saw them": ended["timeout"] == self.timeouts,
            "refusals as clients saw them": all(
                0 <= told.by("foredraft_rejected_requests_total", reason) - self.refusals[reason] <= unsure
                for reason, unsure in (("invalid", self.halves), ("too_large", 0), ("busy", 0), ("engine", 0))
            ),
            "nothing waits or runs": told.idle,
            "no slot has leaked": told["foredraft_slots_used"] == told["foredraft_prefix_cached_tokens"],
        }

    def record(self) -> dict:
        kinds: dict[str, dict[str, int]] = {}
        for (kind, status), count in sorted(self.calls.items(), key=str):
            kinds.setdefault(kind, {})["no answer wanted" if status is None else str(status)] = count
        seconds = sorted(self.seconds)
        return {
            "calls": kinds,
            "problems": {"count": len(self.problems), "first": self.problems[:SHOWN]},
            "texts_read_whole": self.served,
            "texts_cut_by_time": self.timeouts,
            "texts_left_in_mid_stream": self.left,
            "texts_left_before_any_answer": self.maybe,
            "refused_calls": dict(self.refusals),
            "words_with_one_text": sum(len(texts) == 1 for texts in self.texts.values()),
            "words": len(self.texts),
            "seconds_p50_p99": [seconds[len(seconds) * share // 100] for share in (50, 99)] if seconds else None,
        }


ENDS = (*SERVED, "error", "cancelled", "timeout", "shutdown")


class Told:
    """What `/metrics` says.

    Attributes:
        values: By name and the one label that tells samples of a name apart, which may be none.
    """

    def __init__(self, values: dict[tuple[str, str | None], float]):
        self.values = values

    @classmethod
    def from_text(cls, text: str) -> "Told":
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return cls({(sample.name, own_label(sample.labels)): sample.value for sample in samples})

    def since(self, before: "Told") -> "Told":
        """The same, totals counted from an earlier moment on."""
        totals = {key: value for key, value in before.values.items() if key[0].endswith("_total")}
        return Told({key: value - totals.get(key, 0.0) for key, value in self.values.items()})

    def __getitem__(self, name: str) -> float:
        return self.values[name, None]

    def by(self, name: str, label: str) -> float:
        return self.values[name, label]

    @property
    def idle(self) -> bool:
        return self["foredraft_requests_waiting"] == self["foredraft_requests_running"] == 0

    def record(self) -> dict[str, float]:
        return {
            " ".join(filter(None, key)): value
            for key, value in self.values.items()
            if not key[0].endswith(("_bucket", "_created"))
        }


def own_label(labels: dict[str, str]) -> str | None:
    return next((value for name, value in labels.items() if name not in ("model_name", "engine")), None)


@dataclass(frozen=True, kw_only=True, slots=True)
class Memory:
    """The server's memory at one moment: calls made by then, and resident bytes."""

    calls: int
    resident: int


def level(samples: Sequence[Memory], start: float, stop: float) -> float:
    """Median resident bytes between two numbers of calls."""
    return median(sample.resident for sample in samples if start <= sample.calls <= stop)


def memory_record(samples: Sequence[Memory], calls: int) -> dict[str, float]:
    """Levels after the warm-up and at the end, and the slope between, in bytes; medians, so that a moment's peak does
    not count."""
    late = [sample for sample in samples if sample.calls >= WARM_UP * calls]
    warm = level(samples, WARM_UP * calls, (WARM_UP + WINDOW) * calls)
    end = level(samples, (1 - WINDOW) * calls, calls)
    slope = linear_regression([sample.calls for sample in late], [sample.resident for sample in late]).slope
    return {
        "at_start": samples[0].resident,
        "after_warm_up": warm,
        "at_end": end,
        "peak": max(sample.resident for sample in samples),
        "growth": end - warm,
        "growth_share": end / warm - 1,
        "slope_per_1000_calls": 1000 * slope,
    }


def thinned(samples: Sequence[Memory], most: int) -> Iterable[Memory]:
    """At most about `most` of them, evenly."""
    return samples[:: max(1, len(samples) // most)]
