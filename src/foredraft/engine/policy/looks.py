"""What several requests do with the instant drafts that each has looked at first: for whom a drafter is called beside
them, and which of their nodes are verified.

Rows come in blocks, of which the first costs all and the others nothing, so no price of a row is right: all nodes of a
step are weighed together, at the rate that its seconds have elsewhere.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest

from foredraft.core.draft_tree import NO_DRAFT, DraftTree
from foredraft.engine.policy.allocation import PLAIN, Values
from foredraft.engine.policy.live_costs import LiveCosts
from foredraft.engine.policy.pace import Pace, calls_to_come
from foredraft.engine.policy.request_policy import RequestPolicy
from foredraft.engine.policy.routine import Pair
from foredraft.engine.running import Work

TAKEN_IN = 12  # instant drafts that are learned of at once


@dataclass(slots=True, eq=False)
class Look:
    """One request of a step.

    Attributes:
        work, known: The request, and what is known of it.
        place: The way by which its instant draft was made.
        tree: That draft, which may be empty.
        rates: How likely each node is to be accepted together with all its ancestors, [N].
        chain: The same of the draft decided, which is still to be made.
        reading: Seconds that its drafter's first reading of the text comes to in each call from now on.
    """

    work: Work
    known: RequestPolicy
    place: int
    tree: DraftTree
    rates: Sequence[float]
    chain: Sequence[float] = ()
    reading: float = 0.0

    @property
    def more(self) -> float:
        """Tokens that the draft decided is expected to bring beyond it."""
        return sum(self.chain) - sum(self.rates)


def look_at(
    pair: Pair, firsts: Mapping[RequestPolicy, int], drafts: Mapping[int, DraftTree], costs: LiveCosts, pace: Pace
) -> Look:
    """A request with its draft, of `drafts` by id of work, by the way that `firsts` has for it, if there are any."""
    work, known = pair
    tree, chain, reading = drafts.get(id(work)), known.chain, reading_of(work, known, costs, pace)
    place = firsts.get(known, PLAIN)
    if not tree:
        return Look(work, known, place, NO_DRAFT, (), chain, reading)
    return Look(work, known, place, tree, known.path_rates(place, tree), chain, reading)


def reading_of(work: Work, known: RequestPolicy, costs: LiveCosts, pace: Pace) -> float:
    """Seconds a call of a drafter's first reading of a text: beside instant drafts it is called in few steps, and those
    who are about to end would have it read for next to nothing."""
    owner, request = known.owner(known.beside.place), work.running.request
    if owner is None or owner in known.called:
        return 0.0
    seconds = costs.reading_seconds(owner, len(request.tokens))
    return seconds / calls_to_come(pace.called, request.remaining, known.beside.gain)


def note_calls(looks: Sequence[Look], called: Collection[RequestPolicy], pace: Pace) -> None:
    """Note how often drafters are called for those whose text they have read."""
    ready = [its.known in called for its in looks if its.known.beside.place != PLAIN and not its.reading]
    if ready:
        pace.saw_called(sum(ready) / len(ready))


def callers(looks: Sequence[Look], values: Values) -> dict[RequestPolicy, int]:
    """Those for whom a drafter is called, and the way: so many for whom its drafts bring most beyond those that are
    there that the whole step is worth most, and none where no call pays for itself."""
    if len(looks) == 1:
        return called_alone(looks[0], values)
    called: dict[RequestPolicy, int] = {}
    rate = values.pace_rate(len(looks))
    for label in dict.fromkeys([its.known.beside.label for its in looks if its.known.beside.place != PLAIN]):
        more = {its: its.more - rate * its.reading for its in looks if its.known.beside.label == label}
        able = [its for its, tokens in more.items() if tokens > 0.0]
        if able and sum([more[its] for its in able]) > rate * call_seconds(able[0].known, 1, 1, values):
            able.sort(key=lambda its: -more[its])
            called |= {its.known: its.known.beside.place for its in paying(able, looks, called, values)}
    return called


def called_alone(look: Look, values: Values) -> dict[RequestPolicy, int]:
    """As `callers`, for the only request: where its drafter was decided, and brings more than the call costs beyond the
    draft that is there, each with its rows as a whole."""
    known, base = look.known, look.known.base
    if base.place == PLAIN:
        return {}
    there = sum(look.rates) - values.rows_cost(len(look.rates))
    more = known.further - values.own_cost(base) - there
    return {known: base.place} if more > values.share(base.label, 1) else {}


def paying(
    able: Sequence[Look], looks: Sequence[Look], called: Collection[RequestPolicy], values: Values
) -> Sequence[Look]:
    """The first so many of the `able` for whom one call makes the step worth most, beside those `called` already: it
    takes as many levels as are verified, since drafts end where their rows are not worth it."""
    drafts = [its.chain if its.known in called else its.rates for its in looks]
    rate, places, gains = values.pace_rate(len(looks)), [], []
    best, count, reading = worth(drafts, values)[0], 0, 0.0
    for many, its in enumerate(able, start=1):
        reading += its.reading
        places.append(looks.index(its))
        gains = [more + less for more, less in zip_longest(gains, its.chain, fillvalue=0.0)]
        levels = levels_worth(its.known, gains, many, len(looks), values)
        for place in places:
            drafts[place] = looks[place].chain[:levels]
        gain, least = worth(drafts, values)
        if gain - rate * (call_seconds(its.known, many, 1, values) + reading) <= best:
            continue
        needed = max([1, *[sum([chance >= least for chance in drafts[place]]) for place in places]])
        value = gain - rate * (call_seconds(its.known, many, needed, values) + reading)
        if value > best:
            best, count = value, many
    return able[:count]


def levels_worth(known: RequestPolicy, gains: Sequence[float], sharing: int, requests: int, values: Values) -> int:
    """How many levels of drafts that so many of the `requests` make together, in all of such `gains` by level, bring
    more than another run of their drafter takes, and their rows where nobody else has any."""
    if known.ends_itself(known.beside.place):
        rate, rows = values.pace_rate(requests), values.nodes_cost(requests, sharing * len(gains))
        first, second = (call_seconds(known, sharing, levels, values) for levels in (1, 2))
        another = rate * (second - first)
        for level, gain in enumerate(gains):
            if level and gain < another + rows[(level + 1) * sharing] - rows[level * sharing]:
                return level
    return len(gains)


def call_seconds(known: RequestPolicy, sharing: int, levels: int, values: Values) -> float:
    """What a call for drafts of so many levels takes, made for so many together."""
    way = known.ways[known.beside.place]
    return values.prices.call(way, known.lengths[way.kind], sharing, min(levels, way.depth))


def let_grow(looks: Sequence[Look], called: Collection[RequestPolicy], values: Values) -> None:
    """The drafts of the `called` are to grow beside those nodes of instant drafts that are likely to be verified."""
    _, least = worth([its.chain if its.known in called else its.rates for its in looks], values)
    beside = sum([rate >= least for its in looks if its.known not in called for rate in its.rates])
    for known in called:
        known.grow_beside(beside, len(called), len(looks), values)


def worth(drafts: Sequence[Sequence[float]], values: Values) -> tuple[float, float]:
    """Most tokens that nodes of everybody's drafts, of such chances, bring beyond what the step costs with them, and
    the chance of the least likely of them."""
    rates = sorted([rate for its in drafts for rate in its], reverse=True)
    best, count = best_count(rates, values.nodes_cost(len(drafts), len(rates)))
    return best, rates[count - 1] if count else 1.0


def best_count(rates: Sequence[float], costs: Sequence[float]) -> tuple[float, int]:
    """Most tokens that the first so many of `rates`, descending, bring beyond what these nodes cost, and how many they
    are; `costs` are those of a step by its number of nodes, from none of them on."""
    best, most, gain, start = 0.0, 0, 0.0, costs[0]
    for count, rate in enumerate(rates, start=1):
        gain += rate
        value = gain - (costs[count] - start)
        if value > best:
            best, most = value, count
    return best, most


def verified(looks: Sequence[Look], called: Mapping[RequestPolicy, DraftTree], values: Values) -> list[DraftTree]:
    """The drafts of a step: those that drafters were `called` for, and of the others the nodes that are worth their
    rows beside these; of a request alone all, since its draft ended where a row was not worth it."""
    if len(looks) == 1:
        return [called.get(its.known, its.tree) for its in looks]
    beside = sum(map(len, called.values()))
    others = [(i, its.rates) for i, its in enumerate(looks) if its.known not in called]
    ranked = sorted([(-rate, i, node) for i, rates in others for node, rate in enumerate(rates)])
    costs = values.nodes_cost(len(looks), beside + len(ranked))[beside:]
    _, last = best_count([-rate for rate, _, _ in ranked], costs)
    kept: list[list[int]] = [[] for _ in looks]
    for _, i, node in ranked[:last]:
        kept[i].append(node)
    return [called.get(its.known) or cut_to(its.tree, nodes) for its, nodes in zip(looks, kept, strict=True)]


def cut_to(tree: DraftTree, nodes: list[int]) -> DraftTree:
    """Only these nodes of it: each has its parent among them, which is never less likely and comes before it."""
    return tree if len(nodes) == len(tree) else tree.only(sorted(nodes)) if nodes else NO_DRAFT


@dataclass(slots=True)
class Heard:
    """What became of instant drafts, of several steps: what was read lately is read fastest. Every other step will do.

    Attributes:
        drafts: Those not yet learned of, and what was written in their place.
        steps: So far.
    """

    drafts: list[tuple[RequestPolicy, int, DraftTree, list[int]]] = field(default_factory=list)
    steps: int = 0

    def note(self, looks: Sequence[Look]) -> None:
        """A step is over."""
        self.steps += 1
        if self.steps % 2:
            return
        self.drafts += [(its.known, its.place, its.tree, its.work.written) for its in looks if its.tree]
        if len(self.drafts) >= TAKEN_IN:
            self.take_in()

    def take_in(self) -> None:
        """Learn of all of them."""
        drafts, self.drafts = self.drafts, []
        for known, place, tree, written in drafts:
            known.check_by(place, tree, written)
