"""What is done with instant drafts that several requests have looked at: all nodes of a step are weighed together."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from types import SimpleNamespace

import pytest

from foredraft.core.draft_tree import DraftTree
from foredraft.drafters.growth import Growth
from foredraft.engine.policy.acceptance import Past
from foredraft.engine.policy.allocation import NOTHING, Plan, Values
from foredraft.engine.policy.looks import (
    TAKEN_IN,
    Heard,
    Look,
    callers,
    let_grow,
    levels_worth,
    look_at,
    note_calls,
    verified,
    worth,
)
from foredraft.engine.policy.pace import SELDOM, Pace
from foredraft.engine.policy.request_policy import RequestPolicy
from foredraft.engine.way import Way

CHAIN = Way("chain 4", "chain", "drafter", 4, 4, stops=True, stepwise=True)
TREE = Way("tree 8", "tree", "drafter", 4, 8, stops=True)
SUFFIX = Way("suffix 4", "suffix", "suffix", 4, 4, instant=True, stops=True)


class Blocks:
    """Values by which a step pays for rows in blocks: `dear` tokens for each `size` nodes begun beyond the first, and
    `price` for a call, and `run` for each level beyond the first."""

    def __init__(self, *, size: int = 4, dear: float = 1.0, price: float = 1.0, run: float = 0.0) -> None:
        self.size, self.dear, self.price, self.run = size, dear, price, run

    def nodes_cost(self, requests: int, nodes: int) -> Sequence[float]:
        return [self.dear * max(0, -(-count // self.size) - 1) for count in range(nodes + 1)]

    def pace_rate(self, requests: int) -> float:
        return 1.0

    @property
    def prices(self) -> "Blocks":
        return self

    def call(self, way: Way, lengths: tuple[Way, Way], sharing: int, depth: int) -> float:
        return self.price + self.run * (depth - 1)

    def steps_with(self, label: str, nodes: int, requests: int, beside: int) -> tuple[float, ...]:
        costs = self.nodes_cost(requests, beside + nodes)
        return tuple([cost - costs[beside] for cost in costs[beside:]])


def look(*rates: float, chain: Sequence[float] | None = (), way: Way = CHAIN) -> Look:
    """A request whose instant draft is a chain of nodes of such chances of being accepted; it was decided to draft a
    chain of such chances by `way`, or nothing."""
    known = RequestPolicy([way, SUFFIX], Past(), 0, crowd=1)
    known.go_by(NOTHING, Plan(way.label, sum(chain), sum(chain), len(chain), 0) if chain else NOTHING)
    known.expected_chain = chain
    return Look(None, known, 1, DraftTree.chain([*range(len(rates))], "suffix"), rates, known.chain)


def next_step(its: Look) -> Look:
    """The same request and instant draft, with what is known now."""
    return replace(its, chain=its.known.chain)


def lengths(looks: Sequence[Look], values: Blocks, called: dict | None = None) -> list[int]:
    return [len(tree) for tree in verified(looks, called or {}, values)]


def levels(looks: Sequence[Look], values: Blocks) -> int:
    gains = [sum(level) for level in zip(*[its.chain for its in looks], strict=True)]
    return levels_worth(looks[0].known, gains, len(looks), len(looks), values)


def test_rows_of_a_block_that_is_paid_are_filled_and_another_is_begun_where_it_pays_whole():
    looks = [look(0.9, 0.5, 0.3), look(0.4, 0.3), look(0.2)]
    assert lengths(looks, Blocks(dear=1.0)) == [3, 1, 0]  # the likeliest four, of equals the first
    assert lengths(looks, Blocks(dear=0.45)) == [3, 2, 1]  # the other two bring half a token
    assert lengths(looks, Blocks(size=1, dear=0.45)) == [2, 0, 0]
    assert lengths(looks, Blocks(size=1, dear=1.0)) == [1, 0, 0]  # the first node is free


def test_what_is_verified_is_worth_most_of_all_that_could_be():
    looks = [look(0.9, 0.5, 0.3), look(0.6, 0.35, 0.1), look(0.45)]
    for dear in (0.2, 0.5, 0.8, 1.1, 2.0):
        values = Blocks(size=2, dear=dear)
        costs, most = values.nodes_cost(3, 7), 0.0
        for cut in product(range(4), range(4), range(2)):
            most = max(most, sum(sum(its.rates[:n]) for its, n in zip(looks, cut, strict=True)) - costs[sum(cut)])
        chosen = lengths(looks, values)
        gain = sum(sum(its.rates[:n]) for its, n in zip(looks, chosen, strict=True)) - costs[sum(chosen)]
        assert gain == pytest.approx(most) == worth([its.rates for its in looks], values)[0]


def test_beside_drafts_that_were_called_for_less_room_is_left():
    first, second = look(chain=(0.9, 0.8)), look(0.6, 0.5, 0.4)
    called = {first.known: DraftTree.chain([1, 2], "drafter")}
    trees = verified([first, second], called, Blocks(dear=5.0))
    assert trees[0] is called[first.known] and trees[1].tokens == [0, 1]
    assert lengths([first, second], Blocks(dear=0.3), called) == [2, 3]
    assert lengths([first, second], Blocks(dear=5.0), {first.known: DraftTree()}) == [0, 3]


def test_a_tree_is_cut_to_nodes_with_their_parents():
    tree = DraftTree(tokens=[5, 6, 7], parents=[-1, -1, 0], drafters=["suffix"] * 3)
    kept, _ = verified([Look(None, look().known, 1, tree, [0.6, 0.2, 0.5]), look()], {}, Blocks(size=2, dear=1.0))
    assert (kept.tokens, kept.parents) == ([5, 7], [-1, 0])


def test_a_drafter_is_called_where_its_drafts_are_worth_more_than_what_is_there():
    found, none = look(0.9, chain=(1.0,)), look(chain=(1.0,))
    assert callers([found, none], Blocks(price=1.05)) == {found.known: 0, none.known: 0}
    assert callers([found, none], Blocks(price=1.15)) == {}
    assert callers([look(1.0, 0.1, chain=(1.0,)), none], Blocks(price=1.05)) == {}  # the better instant draft stays
    other = look(chain=(1.0,), way=TREE)
    assert callers([none, other], Blocks(price=1.05)) == {}  # a call each
    assert callers([look(), none], Blocks(price=0.9)) == {none.known: 0}
    assert callers([none, other], Blocks(price=0.9)) == {none.known: 0, other.known: 0}


def test_a_drafter_is_called_for_so_many_as_the_step_has_room_for():
    looks = [look(chain=(0.9, 0.8)), look(0.9, 0.7, chain=(0.9, 0.8)), look(0.5, chain=(0.9, 0.8))]
    assert set(callers(looks, Blocks(size=4, dear=5.0))) == {looks[0].known, looks[2].known}
    assert set(callers(looks, Blocks(size=6, dear=5.0))) == {its.known for its in looks}


class Alone:
    """Values of a request alone: a row costs a tenth of a token, a call one."""

    def rows_cost(self, rows: int) -> float:
        return 2.0 + 0.1 * rows

    def own_cost(self, plan: Plan) -> float:
        return self.rows_cost(plan.rows)

    def share(self, label: str, requests: int) -> float:
        return 1.0


def test_the_only_request_takes_all_of_its_draft_or_the_one_decided():
    found, base = look(0.5, 0.4, chain=(0.9, 0.8, 0.7)), Plan(CHAIN.label, 2.4, 2.4, 3, 0)
    assert callers([found], Alone()) == {}  # nothing was decided
    found.known.go_by(base, base)
    assert callers([found], Alone()) == {found.known: 0}  # 1.5 tokens more for a row and a call
    for _ in range(4):
        found.known.saw_further(1, 1)
    assert callers([found], Alone()) == {}
    assert verified([found], {}, Alone()) == [found.tree]
    drafted = DraftTree.chain([7], "drafter")
    assert verified([found], {found.known: drafted}, Alone()) == [drafted]


def test_drafts_are_made_as_deep_as_all_who_share_the_call_pay_for():
    one, both = [look(chain=(0.9, 0.4, 0.3))], [look(chain=(0.9, 0.4, 0.3)), look(chain=(0.9, 0.4, 0.1))]
    dear = Blocks(size=8, dear=5.0, price=0.85, run=0.5)
    assert levels(one, dear) == 1 and levels(both, dear) == 2
    assert levels(one, Blocks(run=0.2)) == 3 and levels(one, Blocks(run=0.4)) == 2
    assert callers([*one, look()], dear) == {one[0].known: 0}  # a whole draft would not pay
    whole = [look(chain=(0.9, 0.1), way=TREE), look()]
    assert levels(whole[:1], dear) == 2 and callers(whole, dear) == {}  # it takes what it takes


def test_a_call_is_paid_for_as_many_levels_as_are_verified():
    """A block that does not pay is not drafted for, so it must not keep what does pay from being drafted."""
    one = look(chain=(0.9, 0.5, 0.4))
    values = Blocks(size=1, dear=0.6, price=0.5, run=0.3)
    assert levels([one], values) == 1 and levels([one], Blocks(size=3, dear=0.6, run=0.3)) == 3
    assert callers([one, look()], values) == {one.known: 0}  # 0.9 for a call of 0.5; all three levels would take 1.1
    assert callers([one, look()], Blocks(size=1, dear=0.6, price=0.95, run=0.3)) == {}


def test_a_short_draft_that_was_accepted_whole_is_no_disappointment():
    its = look(chain=(0.9, 0.8, 0.7)).known
    for _ in range(8):
        its.saw_further(1, 1)
    assert its.chain[0] > 0.9 and its.chain[1] > 0.8
    for _ in range(30):
        its.saw_further(3, 1)
    assert its.chain[2] < 0.5


def test_a_drafter_that_brings_less_than_was_expected_is_not_called_for_long():
    hard, easy = look(chain=(1.0,)), look(chain=(0.5,))
    for _ in range(4):
        hard.known.saw_further(1, 0)
        easy.known.saw_further(1, 1)
    assert (hard.known.further, easy.known.further) == (0.5, 0.75)  # one was expected, as of four drafts
    assert (hard.known.chain, easy.known.chain) == ([0.5], [0.75])
    assert callers([next_step(hard), look()], Blocks(price=0.9)) == {}
    assert callers([next_step(easy), look()], Blocks(price=0.7)) == {easy.known: 0}
    hard.known.go_by(NOTHING, hard.known.beside)
    assert hard.known.further == 1.0  # until somebody decides again


def test_the_chances_of_a_draft_are_what_is_known_of_its_depths_and_of_a_tree_all_alike():
    known = RequestPolicy([CHAIN, TREE, SUFFIX], Past(), 0, crowd=1)
    for _ in range(50):
        known.learn(0, DraftTree.chain([1, 2, 3, 4], "drafter"), [0, 1], 4, 0)
    plan = known.plan(0, 4, hopeful=False)
    known.go_by(NOTHING, plan)
    assert len(known.chain) == 4 and sum(known.chain) == pytest.approx(plan.gain)
    assert known.chain[1] > 0.9 > 0.2 > known.chain[2] >= known.chain[3]
    known.go_by(NOTHING, Plan(TREE.label, 1.2, 1.2, 6, 1))
    assert known.chain == pytest.approx([0.2] * 6)
    known.go_by(NOTHING)
    assert known.chain == ()


def test_drafts_grow_beside_the_instant_drafts_that_are_likely_to_be_verified():
    caller, other = look(chain=(0.9, 0.8)), look(0.7, 0.6, 0.1)
    caller.known.growth[0, 2] = Growth(steps=(0.0, 1.0))
    let_grow([caller, other], {caller.known: 0}, Blocks(dear=5.0))
    assert caller.known.growth[0, 2].steps == (0.0, 0.0, 0.0, 5.0, 5.0)  # two rows of the first block are taken
    caller.known.growth[0, 2] = Growth(row=0.3)
    let_grow([caller, other], {caller.known: 0}, Blocks())
    assert caller.known.growth[0, 2] == Growth(row=0.3)  # it knows no blocks


class Costs:
    """To read a text takes a tenth of a second a token."""

    def reading_seconds(self, owner: str, positions: int) -> float:
        return 0.1 * positions


def written(tokens: int = 20, remaining: int = 30) -> SimpleNamespace:
    request = SimpleNamespace(tokens=[0] * tokens, remaining=remaining)
    return SimpleNamespace(running=SimpleNamespace(request=request))


def test_who_was_not_asked_or_has_no_draft_brings_nothing():
    pair = written(), RequestPolicy([SUFFIX], Past(), 0, crowd=1)
    for tree in (None, DraftTree()):
        seen = look_at(pair, {pair[1]: 0}, {id(pair[0]): tree}, Costs(), Pace())
        assert (len(seen.tree), [*seen.rates], seen.reading) == (0, [], 0.0)
    assert len(look_at(pair, {}, {}, Costs(), Pace()).tree) == 0
    tree = DraftTree.chain([3, 4], "suffix", chances=[0.9, 0.9])
    seen = look_at(pair, {pair[1]: 0}, {id(pair[0]): tree}, Costs(), Pace())
    assert len(seen.tree) == len(seen.rates) == 2 and seen.rates[0] > seen.rates[1] > 0


def test_a_text_that_was_not_read_yet_is_read_over_the_calls_that_are_still_to_come():
    known = look(chain=(0.8, 0.7)).known
    assert look_at((written(), known), {}, {}, Costs(), Pace()).reading == pytest.approx(2.0 / 12)
    assert look_at((written(), known), {}, {}, Costs(), Pace(called=0.5)).reading == pytest.approx(2.0 / 6)
    assert look_at((written(remaining=2), known), {}, {}, Costs(), Pace()).reading == 2.0
    known.met("drafter")
    assert look_at((written(), known), {}, {}, Costs(), Pace()).reading == 0.0


def test_who_would_have_to_be_read_is_called_for_where_that_pays_too():
    ready, fresh = look(chain=(0.9, 0.8)), look(chain=(0.9, 0.9))
    fresh.reading = 0.5
    assert set(callers([ready, fresh], Blocks(size=4, dear=5.0))) == {ready.known, fresh.known}
    fresh.reading = 1.9
    assert set(callers([ready, fresh], Blocks(size=4, dear=5.0))) == {ready.known}


def test_the_pace_knows_how_often_drafters_are_called_for_those_they_have_read():
    pace, looks = Pace(), [look(chain=(0.9,)), look(chain=(0.9,)), look(chain=(0.9,)), look()]
    looks[2].reading = 0.1
    note_calls(looks, {looks[0].known: 0}, pace)
    assert pace.called == pytest.approx(1.0 - 0.05 / 2)
    note_calls(looks[2:], {}, pace)
    assert pace.called == pytest.approx(1.0 - 0.05 / 2)  # nobody says anything
    for _ in range(100):
        note_calls(looks[:1], {}, pace)
    assert pace.called == SELDOM  # or the next one would never be called for


class Prices:
    """A row beyond the first four costs a second."""

    def more(self, first: int, last: int, *, called: bool) -> float:
        return float(max(0, last - 4) - max(0, first - 4))

    def draft(self, label: str, requests: int) -> float:
        return 0.5 * requests

    step = about = None


def test_nodes_cost_what_the_step_takes_at_the_pace_that_steps_have():
    values = object.__new__(Values)
    values.requests, values.rate, values.alone, values.prices, values.lines = 4, 2.0, False, Prices(), {}
    values.pace = Pace()
    assert list(values.nodes_cost(4, 8))[:9] == [0, 0, 0, 0, 0, 2, 4, 6, 8]
    assert list(values.nodes_cost(2, 8))[:9] == [0] * 7 + [1, 2]  # two rows are free, and a second brings less
    assert values.pace_rate(4) == 2.0
    values.pace, values.lines = Pace(speed=1.0, seen=True), {}
    assert values.nodes_cost(4, 8)[8] == 16.0 and values.pace_rate(4) == 4.0
    assert 0 < values.least_row(4) < 4.0
    assert len(values.nodes_cost(4, 100)) > 100


def test_instant_drafts_are_learned_of_several_at_once_and_from_every_other_step():
    heard, its, steps = Heard(), look(0.5), 0
    its.tree.chances = [0.5]
    its.work = SimpleNamespace(written=[0, 9])
    first = its.known.chances["suffix"].levels[False]
    while not any(tally.tries for tally in first):
        heard.note([its, look()])  # who had no draft says nothing
        steps += 1
    assert steps == 2 * TAKEN_IN and heard.drafts == []
    heard.note([its])
    heard.note([its])
    before = sum(tally.hits for tally in first)
    heard.take_in()
    assert sum(tally.hits for tally in first) > before
