"""What verification decided, and what a finished request hands back."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from itertools import zip_longest


@dataclass(slots=True)  # not frozen: one is made for every request of a step
class Verdict:
    """The accepted path of one draft tree and the one token the target adds.

    Attributes:
        path: Accepted nodes from the root's child down, in order; may be empty.
        token: The target's own token after the path: a correction, or the bonus token after a leaf.
    """

    path: list[int]
    token: int


@dataclass(slots=True)
class SpeculationStatistics:
    """Counts of one request or of a whole engine; every rate is derived from them.

    Attributes:
        rounds: Target forwards that decided at least one token.
        drafts: Rounds that carried at least one draft token.
        drafted: Draft tokens sent to verification.
        accepted: Draft tokens accepted.
        committed: Tokens written.
        accepted_at: How often a draft was accepted at depth i + 1.
        drafted_at: How often a draft reached depth i + 1.
        drafted_by, accepted_by: Draft tokens and accepted ones by drafter.
        choices: Rounds by the way to draft that the policy chose; empty where nothing was left to it.
        plain_seconds: Estimated wall time of plain decoding for the same tokens; 0 where nobody estimates.
        draft_seconds, verify_seconds, other_seconds: Wall time by part; a step's time is shared by its requests.
    """

    rounds: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    committed: int = 0
    accepted_at: list[int] = field(default_factory=list)
    drafted_at: list[int] = field(default_factory=list)
    drafted_by: dict[str, int] = field(default_factory=dict)
    accepted_by: dict[str, int] = field(default_factory=dict)
    choices: dict[str, int] = field(default_factory=dict)
    plain_seconds: float = 0.0
    draft_seconds: float = 0.0
    verify_seconds: float = 0.0
    other_seconds: float = 0.0

    @property
    def tau(self) -> float:
        """Mean acceptance length: tokens committed per target forward, bonus token included."""
        return self.committed / self.rounds if self.rounds else 0.0

    @property
    def speed_up(self) -> float | None:
        """Estimated speed over plain decoding's under the same load; none where nobody estimates."""
        seconds = self.draft_seconds + self.verify_seconds + self.other_seconds
        return self.plain_seconds / seconds if self.plain_seconds and seconds else None

    @property
    def acceptance_rate(self) -> float:
        """Accepted share of drafted tokens, 0 when none was drafted."""
        return self.accepted / self.drafted if self.drafted else 0.0

    @property
    def acceptance_per_position(self) -> list[float]:
        """Share of drafts accepted at each depth, among rounds whose draft reached it."""
        return [a / d for a, d in zip(self.accepted_at, self.drafted_at, strict=True)]

    def record(self, *, depth: int, drafters: Sequence[str], path: Sequence[int], committed: int) -> None:
        """Count one round.

        Args:
            depth: Levels of its draft.
            drafters: Who drafted each node.
            path: Accepted nodes.
            committed: Tokens written.
        """
        self.rounds += 1
        self.committed += committed
        if not drafters:
            return
        self.drafts += 1
        self.drafted += len(drafters)
        self.accepted += len(path)
        grow = depth - len(self.drafted_at)
        if grow > 0:
            self.drafted_at += [0] * grow
            self.accepted_at += [0] * grow
        for level in range(depth):
            self.drafted_at[level] += 1
        for level in range(len(path)):
            self.accepted_at[level] += 1
        for drafter in drafters:
            self.drafted_by[drafter] = self.drafted_by.get(drafter, 0) + 1
        for node in path:
            self.accepted_by[drafters[node]] = self.accepted_by.get(drafters[node], 0) + 1


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Log-probabilities at one written position, of the target's raw logits before any processor.

    Attributes:
        token: The written token.
        logprob: Its log-probability in nats.
        top: The most likely tokens with theirs, likeliest first.
    """

    token: int
    logprob: float
    top: list[tuple[int, float]]


def total(several: Iterable[SpeculationStatistics]) -> SpeculationStatistics:
    """Sums of every count and time."""
    whole = SpeculationStatistics()
    for own in several:
        for field_ in fields(own):
            setattr(whole, field_.name, added(getattr(whole, field_.name), getattr(own, field_.name)))
    return whole


def added(left, right):
    """The sum of two numbers, of two lists by place, or of two dictionaries by key."""
    if isinstance(left, list):
        return [a + b for a, b in zip_longest(left, right, fillvalue=0)]
    if isinstance(left, dict):
        return {key: left.get(key, 0) + right.get(key, 0) for key in {**left, **right}}
    return left + right
