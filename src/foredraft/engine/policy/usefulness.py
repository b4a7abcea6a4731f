"""Which drafters have been of use to requests of a kind: to keep one ready costs time in every step."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from foredraft.engine.running import Option

LEAST_USE = 0.03  # share of plain decoding's time that a drafter must save: keeping it ready costs about that much
LEAST_FREE = (0.0, -0.1, 0.0)  # of one whom nothing has to be kept for, by crowd: beside few others each step asks anew
FIRST = 3  # requests of a kind that keep a drafter ready before it is judged
FIRST_BESIDE = 24  # the same beside others, of one whom nothing has to be kept for
EVERY, SELDOM = 16, 256  # one of so many requests tries again one of no use, ever fewer while it stays so
LEAST_STEPS = 8  # of a request, for it to say anything
TOGETHER = (1, 3, 8)  # requests that end as one, by crowd
FOLLOW = 0.3  # weight of a new request
FOLLOW_FREE = 0.06  # of one whom nothing has to be kept for: one text says little of the next
FOLLOW_TRY = 0.6  # and of one that tries again what was of no use: it may have been the machine


Kind = tuple[int, int]  # temperature and crowd, by class


@dataclass(slots=True)
class Use:
    """What one drafter has been worth to requests of one kind.

    Attributes:
        first: Requests before it is judged.
        saved: Time it has saved lately, as a share of what their steps take when nobody drafts.
        requests: Those that had it ready.
        idle, patience: Requests that went without it since, and after how many the next ones try it; as many batches
            where keeping it ready costs time, for then it costs everybody's.
        trying: Further requests of those that try it: as many as are served at once, which share its calls.
        least: What it must save.
    """

    first: int = FIRST
    saved: float = 0.0
    requests: int = 0
    idle: int = 0
    patience: int = EVERY
    trying: int = 0
    least: float = LEAST_USE

    @classmethod
    def beside(cls, crowd: int, first: int, saved: float = 0.0, requests: int = 0) -> "Use":
        """That to requests of which so many are served at once, by class."""
        return cls(first, saved, requests, least=LEAST_FREE[crowd] if first == FIRST_BESIDE else LEAST_USE)

    @property
    def worthless(self) -> bool:
        return self.requests >= self.first and self.saved < self.least

    @property
    def free(self) -> bool:
        """Whether nothing has to be kept for it, beside others."""
        return self.first == FIRST_BESIDE

    def follow(self, saved: float, crowd: int) -> None:
        usual = FOLLOW_FREE if self.free else FOLLOW
        weight = (FOLLOW_TRY if self.worthless else usual) / TOGETHER[crowd]
        self.requests += 1
        self.saved += (saved - self.saved) * max(weight, 1.0 / self.requests)
        self.patience = self.patience if self.worthless else EVERY

    def turn(self, together: int, costs: bool) -> bool:
        """Another request comes, to be served with so many at once: whether it is to have the drafter ready."""
        if self.trying:
            self.trying -= 1
            return True
        self.idle += 1
        if self.worthless and self.idle < self.patience * (together if costs else 1):
            return False
        self.trying = together - 1 if self.worthless else 0
        self.patience = min(2 * self.patience, SELDOM) if self.worthless else EVERY
        self.idle = 0
        return True


@dataclass(slots=True)
class Usefulness:
    """What drafters have been worth, by kind of request and drafter."""

    uses: dict[tuple[Kind, str], Use] = field(default_factory=dict)

    def useful(self, kind: Kind, options: tuple[Option, ...], together: int) -> tuple[Option, ...]:
        """Those of the options for the next request of a kind, served with so many at once, whose drafters have been of
        use; of a request alone those stay that keeping ready costs nothing: three may all be unlucky with a drafter."""
        told = {option.way.owner: option.drafter.needs for option in options if option.drafter.needs.told}
        costs = {owner: bool(needs.features or needs.successors) for owner, needs in told.items()}
        judged = costs if together > 1 else {owner: True for owner in costs if costs[owner]}
        kept = self.kept(kind, judged, together)
        return tuple(option for option in options if option.way.owner not in judged or option.way.owner in kept)

    def kept(self, kind: Kind, owners: Mapping[str, bool], together: int = 1) -> set[str]:
        """Which of the drafters the next request of a kind is to have ready, served with so many at once; `owners` says
        of each whether keeping it ready takes time in every step."""
        return {owner for owner, costs in owners.items() if self.of(kind, owner, costs).turn(together, costs)}

    def of(self, kind: Kind, owner: str, costs: bool = True) -> Use:
        """A drafter's use to requests of a kind. To begin with, one that takes time to keep ready and is of none to
        cooler requests, or to fewer at once, is of none to warmer ones and to more. Another is judged by each kind
        anew: it may be of no use where rivals are better, and to warmer requests the rivals are worse."""
        if (kind, owner) not in self.uses:
            first = FIRST if costs or not kind[1] else FIRST_BESIDE
            saved = self.least_elsewhere(kind, owner) if costs else None
            known = () if saved is None else (saved, first)
            self.uses[kind, owner] = Use.beside(kind[1], first, *known)
        return self.uses[kind, owner]

    def least_elsewhere(self, kind: Kind, owner: str) -> float | None:
        """What it has saved of late for the easier kind that it is of least use to; None where it is of use to all."""
        easier = [use for (its, name), use in self.uses.items() if name == owner and no_harder(its, kind)]
        return min((use.saved for use in easier if use.worthless), default=None)

    def saw(self, kind: Kind, steps: int, saved: Mapping[str, float]) -> None:
        """A request has ended after so many steps; each of its drafters has saved so many plain steps, or cost them
        where negative. One that was not asked, and for whom nothing has to be kept, says nothing."""
        if steps < LEAST_STEPS:
            return
        for owner, plain_steps in saved.items():
            use = self.of(kind, owner)
            if plain_steps or not use.free:
                use.follow(plain_steps / steps, kind[1])


def no_harder(kind: Kind, other: Kind) -> bool:
    return all(its <= others for its, others in zip(kind, other, strict=True))
