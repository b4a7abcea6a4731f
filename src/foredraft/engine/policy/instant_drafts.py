"""Drafts that are looked at before anything is decided: they take microseconds to make, and are often empty."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from foredraft.core.draft_tree import DraftTree
from foredraft.engine import step
from foredraft.engine.policy.acceptance import UNSEEN
from foredraft.engine.policy.allocation import Values
from foredraft.engine.policy.decision import StepPrices
from foredraft.engine.policy.lesson import Call
from foredraft.engine.policy.seat import Offer, Seat
from foredraft.engine.policy.trimming import paying

ASK_FACTOR = 3.0  # what looking at an instant draft costs in all, in units of making it
ROUTINE = 8e-5  # seconds of a step of several requests that are lost where one is asked: it looks first, or weighs


@dataclass(eq=False)
class InstantDrafts:
    """Asks the drafters that make them.

    Attributes:
        clock: Tells what their calls take.
        prices: Tokens that asking for one request costs, by way to draft.
        seconds, calls: What their calls have taken in the current step, and these calls.
    """

    clock: Callable[[], float] = perf_counter
    prices: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    calls: list[Call] = field(default_factory=list)

    def ask(self, seats: Sequence[Seat], prices: StepPrices, row_price: float | None) -> None:
        """Let instant ways draft for those to whom that has been worth its time, or who have not tried for long."""
        for label, group in by_label(ways_of(seats)).items():
            price = self.prices.get(label, 0.0)
            self.take(label, [(seat, place) for seat, place in group if seat.asks(place, price)], prices, row_price)

    def ask_again(self, seats: Sequence[Seat], prices: StepPrices, row_price: float | None) -> None:
        """As `ask` in the steps after: those go on that have paid, and who has come since asks what usually pays."""
        for seat in seats:
            if seat.known.standing is None:
                seat.known.settle(self.prices)
        standing = by_label((seat, place) for seat in seats for place in seat.known.standing)
        for label, group in standing.items():
            self.take(label, [(seat, place) for seat, place in group if seat.lacks(place)], prices, row_price)

    def take(self, label: str, orders: Sequence[tuple[Seat, int]], prices: StepPrices, row_price: float | None) -> None:
        if not orders:
            return
        start = self.clock()
        works = [(seat.work, seat.work.running.options[place]) for seat, place in orders]
        for (seat, place), tree in zip(orders, step.propose(works), strict=True):
            seat.offers[place] = offer_of(seat, place, tree, prices, row_price)
        seconds = self.clock() - start
        self.seconds += seconds
        self.calls.append(Call(label, [(seat.known, place) for seat, place in orders], seconds))

    def settle(self, seats: Sequence[Seat], prices: StepPrices, values: Values) -> None:
        """After a decision: note what the drafts were worth by its values, what asking costs, and who goes on."""
        # A request's share of a call holds everybody up: 1 / n of its seconds, in which n requests would write.
        labels = {way.label for seat in seats for way in seat.known.ways if way.instant}
        lost, each = (ROUTINE if len(seats) > 1 else 0.0), values.rate / len(seats)
        self.prices = {label: (ASK_FACTOR * prices.draft(label, len(seats)) + lost) * each for label in labels}
        for seat in seats:
            seat.judge(values)
            seat.known.settle(self.prices)


def ways_of(seats: Sequence[Seat]) -> Iterator[tuple[Seat, int]]:
    """The seats that may be drafted for, with each of their instant ways."""
    return ((seat, place) for seat in seats if seat.depth > 0 and not seat.known.fixed for place in seat.known.instant)


def by_label(orders: Iterable[tuple[Seat, int]]) -> dict[str, list[tuple[Seat, int]]]:
    """Seats and ways by what the way is called: those are asked in one call."""
    groups: dict[str, list[tuple[Seat, int]]] = {}
    for seat, place in orders:
        groups.setdefault(seat.known.ways[place].label, []).append((seat, place))
    return groups


def offer_of(seat: Seat, place: int, tree: DraftTree, prices: StepPrices, row_price: float | None) -> Offer:
    if not len(tree):
        return Offer(tree, [], [])
    tree = tree if tree.chances is not None else replace(tree, chances=[UNSEEN] * len(tree))
    rates = seat.known.path_rates(place, tree)
    return Offer(tree, rates, paying(rates, prices.step, row_price))
