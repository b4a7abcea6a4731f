"""What steps have lately had and brought, and drafts of those of whom little is known."""

from types import SimpleNamespace

import pytest

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import SpeculationStatistics
from foredraft.drafters.growth import FREE
from foredraft.engine.policy.acceptance import ChanceAcceptance, Past
from foredraft.engine.policy.allocation import NOTHING, Values
from foredraft.engine.policy.pace import Pace
from foredraft.engine.policy.request_policy import RequestPolicy
from foredraft.engine.policy.routine import Routine
from foredraft.engine.policy.seat import Seat
from foredraft.engine.policy.standing import Standing
from foredraft.engine.policy.usefulness import FIRST_BESIDE, Usefulness
from foredraft.engine.way import Way

FREE_KIND = (0, 1)
HEADS = Way("heads 4", "heads", "heads", 4, 4, stops=True)
SUFFIX = Way("suffix 4", "suffix", "suffix", 4, 4, instant=True, stops=True)


class Convex:
    """Each row costs a hundredth more than the one before."""

    def more(self, first: int, last: int, *, called: bool) -> float:
        return sum(row / 100 for row in range(first + 1, last + 1))

    step = about = draft = None


class Costs:
    def another_token(self, *_) -> float:
        return 0.0


def values(pace: Pace) -> Values:
    found = object.__new__(Values)  # by a choice of nothing for four requests, which write a token a second each
    found.requests, found.rows, found.rate, found.alone = 4, 0, 4.0, False
    found.prices, found.pace, found.chosen, found.lines = Convex(), pace, [NOTHING] * 4, {}
    return found


def test_the_first_steps_are_the_pace_and_further_ones_move_it():
    pace = Pace()
    pace.follow(4.0, 8.0, 1)
    assert (pace.nodes, pace.speed) == (4.0, 8.0)
    pace.follow(0.0, 0.0, 1)
    assert (pace.nodes, pace.speed) == pytest.approx((3.8, 7.6))
    pace.follow(2.0, 5.0, 1000)
    assert (pace.nodes, pace.speed) == pytest.approx((2.0, 5.0))


def test_beside_others_a_row_is_priced_among_those_that_steps_have_had_and_by_what_they_bring():
    undecided, quicker, slower = Pace(), Pace(nodes=8.0, speed=2.0, seen=True), Pace(nodes=8.0, speed=0.5, seen=True)
    assert values(undecided).another_row(3.0, 4) == pytest.approx(4.0 * 0.065)  # the fifth to the eighth row
    assert values(slower).another_row(3.0, 4) == pytest.approx(4.0 * 0.305)  # the last four of 32
    assert values(quicker).another_row(3.0, 4) == pytest.approx(8.0 * 0.305)
    assert values(quicker).another_row(3.0, 2) == pytest.approx(4.0 * 0.155)  # two have ended


@pytest.mark.parametrize("looks_first", [True, False])
def test_the_pace_is_that_of_steps_in_which_instant_drafts_are_looked_at_first(looks_first):
    pairs = [(written(), RequestPolicy([HEADS, SUFFIX], Past(), 0, 1)) for _ in range(4)]
    places = {its: -1 for _, its in pairs}
    standing = Standing(1)
    standing.routine = Routine(
        places, 1, 1, {}, 64, calls=False, firsts=dict.fromkeys(places, 1) if looks_first else {}
    )
    standing.routine.open(pairs)
    for _ in range(5):
        standing.routine.passed(0.5)
    for work, _ in pairs:
        own = work.running.request.statistics
        own.rounds, own.committed, own.drafted = 6, 18, 24  # one of the steps was learned from in full
    assert sum(account.tokens for account in standing.closed()) == 72
    assert (standing.routine.quiet, standing.routine.seconds) == (0, 0.0)
    assert standing.pace == (Pace(nodes=4.0, speed=6.0, seen=True) if looks_first else Pace())


def written() -> SimpleNamespace:
    return SimpleNamespace(running=SimpleNamespace(request=SimpleNamespace(statistics=SpeculationStatistics())))


def test_nothing_is_known_of_stated_chances_until_what_became_of_them_outweighs_believing_them():
    known = ChanceAcceptance(Past(), ("kind",))
    seen = []
    for _ in range(40):
        seen.append(known.proven)
        known.learn(DraftTree.chain([1], "d", chances=[0.3]), [0])
    assert not seen[0] and seen[-1] and seen == sorted(seen)


def test_a_networks_drafts_grow_freely_until_it_is_known_what_its_chances_are_worth():
    known = RequestPolicy([HEADS, SUFFIX], Past(), 0, 1)
    seat = Seat(SimpleNamespace(), known, 4)

    def growth(place: int):
        seat.place = place
        return seat.growth(Costs(), values(Pace()), 4, 4)

    assert growth(0) is FREE and growth(1).row > 0
    for _ in range(40):
        known.check(0, DraftTree.chain([1], "heads", chances=[0.3]), [0])
    assert growth(0).row > 0 and growth(0).candour < 0.5


def test_a_text_on_which_it_costs_does_not_drop_a_drafter_for_whom_nothing_is_kept_ready():
    for texts, kept in ((1, True), (20, False)):  # of a dozen requests each
        known = Usefulness()
        known.kept(FREE_KIND, {"free": False})
        for saved in [6.0] * 3 * FIRST_BESIDE + [-4.0] * 12 * texts:
            known.saw(FREE_KIND, 20, {"free": saved})
        assert bool(known.kept(FREE_KIND, {"free": False})) is kept
