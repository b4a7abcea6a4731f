"""Drafts that are looked at before anything is decided: they take microseconds to make, and are often empty."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

from foredraft.core.draft_tree import DraftTree
from foredraft.engine import step
from foredraft.engine.policy.acceptance import UNSEEN
from foredraft.engine.policy.allocation import Values
from foredraft.engine.policy.decision import StepPrices
from foredraft.engine.policy.seat import Offer, Seat
from foredraft.engine.policy.trimming import path_rates, paying

ASK_FACTOR = 1.5  # what looking at an instant draft costs in all, in units of making it


@dataclass(eq=False)
class InstantDrafts:
    """Asks the drafters that make them.

    Attributes:
        prices: Tokens that asking for one request costs, by way to draft.
        standing: Who goes on being asked until the next decision: by label the numbers of seats, and their ways.
    """

    prices: dict[str, float] = field(default_factory=dict)
    standing: dict[str, list[tuple[int, int]]] = field(default_factory=dict)

    def ask(self, seats: Sequence[Seat], prices: StepPrices, row_price: float | None) -> None:
        """Let instant ways draft for those to whom that has been worth its time, or who have not tried for long."""
        for label, group in grouped(seats).items():
            price = self.prices.get(label, 0.0)
            orders = [(seats[number], place) for number, place in group if seats[number].asks(place, price)]
            self.take(label, orders, prices, row_price)

    def ask_again(self, seats: Sequence[Seat], prices: StepPrices, row_price: float | None) -> None:
        """As `ask` for the same seats in the steps after: those go on that have paid."""
        for label, group in self.standing.items():
            orders = [(seats[number], place) for number, place in group if seats[number].lacks(place)]
            self.take(label, orders, prices, row_price)

    def take(self, label: str, orders: Sequence[tuple[Seat, int]], prices: StepPrices, row_price: float | None) -> None:
        if not orders:
            return
        start = perf_counter()
        works = [(seat.work, seat.work.running.options[place]) for seat, place in orders]
        for (seat, place), tree in zip(orders, step.propose(works), strict=True):
            seat.offers[place] = offer_of(seat, place, tree, prices, row_price)
        seconds = perf_counter() - start
        prices.costs.saw_draft(label, len(orders), seconds)
        for seat, place in orders:
            seat.known.charge(place, seconds / len(orders) / prices.token)

    def settle(self, seats: Sequence[Seat], prices: StepPrices, values: Values) -> None:
        """After a decision: note what the drafts were worth by its values, what asking costs, and who goes on."""
        for seat in seats:
            seat.judge(values)
        groups = grouped(seats)
        # A request's share of a call holds everybody up: 1 / n of its seconds, in which n requests would write.
        self.prices = {label: ASK_FACTOR * prices.draft(label, len(seats)) / prices.step(0) for label in groups}
        paid = {
            label: [(number, place) for number, place in group if seats[number].known.worth_of(place) > price]
            for (label, group), price in zip(groups.items(), self.prices.values(), strict=True)
        }
        self.standing = {label: group for label, group in paid.items() if group}


def grouped(seats: Sequence[Seat]) -> dict[str, list[tuple[int, int]]]:
    """By label the numbers of the seats that have such an instant way, and which of their ways it is."""
    groups: dict[str, list[tuple[int, int]]] = {}
    for number, seat in enumerate(seats):
        if seat.depth > 0 and not seat.known.fixed:
            for place in seat.known.instant:
                groups.setdefault(seat.known.ways[place].label, []).append((number, place))
    return groups


def offer_of(seat: Seat, place: int, tree: DraftTree, prices: StepPrices, row_price: float | None) -> Offer:
    if not len(tree):
        return Offer(tree, [], [])
    tree = tree if tree.chances is not None else replace(tree, chances=[UNSEEN] * len(tree))
    rates = path_rates(tree, seat.known.chances[seat.known.ways[place].kind].rates)
    return Offer(tree, rates, paying(rates, prices.step, row_price))
