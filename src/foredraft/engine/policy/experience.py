"""What requests have taught the policy, and as a record: the next start begins with it."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf, isfinite
from typing import Any

from foredraft.engine.policy.acceptance import Past, Tally
from foredraft.engine.policy.usefulness import Use, Usefulness

KEPT_TRIES = 40.0  # observations that what another run has seen of a place is worth: texts may be others now


@dataclass(slots=True)
class Experience:
    """How drafts have been accepted, what instant ones were worth, and which drafters were worth keeping ready."""

    past: Past = field(default_factory=Past)
    usefulness: Usefulness = field(default_factory=Usefulness)

    def record(self) -> dict[str, list]:
        """All of it in values that JSON holds."""
        tallies = [[place, tally.hits, tally.tries] for place, tally in self.past.tallies.items() if tally.tries]
        askings = [[place, its.hits, its.tries] for place, its in self.past.askings.items() if its.tries]
        uses = self.usefulness.uses.items()
        return {
            "tallies": tallies,
            "worths": [[place, worth] for place, worth in self.past.worths.items()],
            "askings": askings,
            "rows": [[shape, rows] for shape, rows in self.past.rows.items()],
            "uses": [[kind, owner, use.first, use.requests, use.saved] for (kind, owner), use in uses if use.requests],
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> "Experience":
        """What `record` made, of other runs: a little less sure of itself. Raises `ValueError` for anything else."""
        found = cls()
        try:
            for place, hits, tries in record["tallies"]:
                found.past.tallies[tuple(place)] = tally_of(hits, tries, counted="stated" not in place)
            for place, worth in record["worths"]:
                found.past.worths[tuple(place)] = sound(worth)
            for place, tokens, steps in record.get("askings", []):
                found.past.askings[tuple(place)] = fewer(Tally(sound(tokens), sound(steps)))
            for shape, rows in record.get("rows", []):
                found.past.rows[tuple(shape)] = max(0.0, sound(rows))
            for (temperature, crowd), owner, first, requests, saved in record["uses"]:
                use = Use.beside(crowd, int(first), sound(saved), int(requests))
                found.usefulness.uses[(temperature, crowd), owner] = use
        except (LookupError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(f"not a record of what a policy has learned: {error}") from None
        return found


def tally_of(hits: float, tries: float, *, counted: bool = True) -> Tally:
    """Raises `ValueError` for numbers that cannot be: of tries where they are `counted`, else of hits expected."""
    if not 0.0 <= sound(hits) <= (sound(tries) if counted else inf) or sound(tries) < 0.0:
        raise ValueError(f"{hits} of {tries} were accepted")
    return fewer(Tally(hits, tries))


def fewer(tally: Tally) -> Tally:
    """Not more than some observations like these. Raises `ValueError` where there are fewer than none."""
    if tally.tries < 0.0:
        raise ValueError(f"{tally.tries} observations cannot be")
    share = min(1.0, KEPT_TRIES / tally.tries) if tally.tries else 0.0
    return Tally(tally.hits * share, tally.tries * share)


def sound(value: float) -> float:
    """Raises `ValueError` for what is no finite number."""
    if not isinstance(value, (int, float)) or not isfinite(value):
        raise ValueError(f"{value} is no finite number")
    return float(value)
