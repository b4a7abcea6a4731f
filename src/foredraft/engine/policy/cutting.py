"""Which nodes of a step's drafts are verified: their rows are paid for by all requests together."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import inf

from foredraft.core.draft_tree import DraftTree
from foredraft.engine.policy.allocation import Plan
from foredraft.engine.policy.decision import StepPrices
from foredraft.engine.policy.exploration import Exploration
from foredraft.engine.policy.seat import Offer, Seat
from foredraft.engine.policy.trimming import STRIDE, best_nodes


@dataclass(frozen=True, slots=True)
class Cutting:
    """Leaves out, over all drafts of one step, what does not pay.

    Attributes:
        seats: All deciding requests.
        prices: What the step costs.
        most: Draft nodes that it may hold.
    """

    seats: Sequence[Seat]
    prices: StepPrices
    most: int

    def instant(self, plans: list[Plan]) -> list[Plan]:
        """The plans less those nodes of instant drafts that do not pay beside everybody's, where no draft is still to
        be made: each was weighed by the price of a row, and rows differ."""
        if len(plans) == 1 or any(plan.label for plan in plans):
            return plans
        offers = [seat.offers.get(plan.place) for seat, plan in zip(self.seats, plans, strict=True)]
        self.cut([offer for offer in offers if offer is not None])
        return [plan if its is None else its.plan(plan.place) for plan, its in zip(plans, offers, strict=True)]

    def fresh(
        self, drafts: Sequence[tuple[Seat, DraftTree]], rate: float, exploration: Exploration
    ) -> list[tuple[Seat, DraftTree]]:
        """Make offers of fresh drafts, cut those and all others that were taken, and return what may not be cut; `rate`
        and `exploration` as in `keep_new`."""
        whole = [(seat, tree) for seat, tree in drafts if not self.may_cut(seat, tree)]
        for seat, tree in drafts:
            if self.may_cut(seat, tree):
                seat.offer(tree)
        offers = [seat.offers[seat.place] for seat in self.seats if seat.place in seat.offers]
        if not offers:
            return whole
        rows, before = sum(len(tree) for _, tree in whole), [(offer.nodes, offer.gain) for offer in offers]
        self.cut(offers, rows=rows, gain=sum(seat.expected for seat, _ in whole))
        self.keep_new(offers, before, rows, rate, exploration)
        return whole

    def keep_new(
        self,
        offers: Sequence[Offer],
        before: Sequence[tuple[list[int], float]],
        rows: int,
        rate: float,
        exploration: Exploration,
    ) -> None:
        """Keep the nodes of `before` where nobody has seen a step of that size and `exploration` affords what that
        loses at so many tokens a second: its price may be too high, and then nobody would ever look. What the last such
        step took has to be learned first."""
        count, kept = (rows + sum(map(len, nodes)) for nodes in ([its for its, _ in before], [o.nodes for o in offers]))
        learned = self.prices.learned
        if not kept < count <= self.most or self.prices.known(count) or exploration.looked == learned:
            return
        gained = sum(gain for _, gain in before) - sum(offer.gain for offer in offers)
        loss = self.prices.step(count) - self.prices.step(kept) - gained / rate
        if exploration.affords(loss, self.prices.step(0)):
            exploration.book(loss)
            exploration.looked = learned
            for offer, (nodes, _) in zip(offers, before, strict=True):
                offer.keep(nodes)

    def may_cut(self, seat: Seat, tree: DraftTree) -> bool:
        """Whether nodes of a fresh draft may be left out: not of one whose drafter does not say what they are worth, or
        that was sampled, and not of one that has left out by itself what was not worth a row."""
        if seat.known.fixed or seat.known.ways[seat.place].stops:
            return False
        return tree.chances is not None and tree.laws is None and not tree.probes and len(tree) > 0

    def cut(self, offers: Sequence[Offer], *, rows: int = 0, gain: float = 0.0) -> None:
        """Leave the nodes that pay beside so many `rows` that stay, which bring `gain` accepted tokens."""

        def seconds(count: int) -> float:
            return self.prices.step(rows + count) if rows + count <= self.most else inf

        cut(offers, seconds, sure=len(self.seats) + gain)


def cut(offers: Sequence[Offer], seconds: Callable[[int], float], *, sure: float) -> None:
    """Leave those nodes over all offers that together make the most tokens a second, `sure` ones beside them.

    Args:
        seconds: What the step takes with so many nodes.
    """
    rates = [rate for offer in offers for rate in offer.rates]
    kept = best_nodes(rates, seconds, sure=sure, stride=max(STRIDE, len(offers)))
    first = 0
    for offer in offers:
        last = first + len(offer.rates)
        offer.keep([node - first for node in kept[bisect_left(kept, first) : bisect_left(kept, last)]])
        first = last
