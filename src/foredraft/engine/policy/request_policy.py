"""What the policy knows of one request: the ways to draft for it and how they have done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import inf
from operator import attrgetter

from foredraft.core.draft_tree import DraftTree
from foredraft.drafters.growth import Growth
from foredraft.engine.policy.acceptance import ChanceAcceptance, DepthAcceptance, Past, Tally
from foredraft.engine.policy.allocation import NOTHING, PLAIN, Plan, Values
from foredraft.engine.policy.live_costs import size_class
from foredraft.engine.policy.ways_taken import PLAIN_LABEL
from foredraft.engine.way import Way

REFRESH_EVERY = 8  # steps after which unused ways are looked at again
ASK_FOLLOW = 0.15  # weight of a new observation of what an instant draft was worth
PAST_FOLLOW = 0.03  # the same over all requests
UNASKED = 1.0  # tokens that asking a way is hoped to be worth
ASKED_FADE, ASKED_PRIOR = 0.998, 12.0  # what a step of one of many is worth after another's, and how many hope is worth
UNASKED_FADE = 0.996  # the same of a step in which it was not asked: hope returns
MARGIN_ASKED = 0.05  # tokens that asking for all must be worth beyond its call: it is looked at on average over many
DECIDED_WORTH = 4.0  # drafts that the gain expected when it was decided is worth beside those since
ROWS_FOLLOW = 0.2  # weight of a new draft in how large they usually are
MANY_CLASS = 2  # crowd beside which looking at instant drafts takes longer than drafting
LENGTH = attrgetter("depth")
ASK_FIRST, ASK_LAST = 4, 16  # an instant drafter that does not pay is asked again after so many steps, then twice that


@dataclass(eq=False)
class RequestPolicy:
    """One request's ways, with the acceptance learned for each.

    Attributes:
        ways: All of them.
        steps: Steps of the request so far.
        depths: Acceptance by depth, by kind.
        chances: Acceptance by stated chance, by kind.
        lengths: The ways of the shortest and of the longest drafts, by kind.
        rows: Nodes of each way's drafts that lately counted, by way: alone all that were brought, beside others those
            that were verified.
        worth: Tokens that asking an instant way has lately been worth, by way.
        standing: Instant ways that go on being asked until the next decision; none before the first.
        gains: Accepted tokens that an instant way has lately expected of its drafts, by way.
        asked, patience: The step an instant way was last asked in, and steps until the next where it does not pay.
        crowd: Class of how many requests it is served beside: chains are cut shorter where rows are dearer, and what
            lies beyond a cut beside many counts as not accepted.
        instant, slow: Ways that are, and those of the others that are decided about.
        called: Drafters that have been asked.
        saved: Tokens that each drafter has brought, less those that its time and rows have cost, and less what the best
            other drafter was expected to bring instead.
        base: The best plan but for instant drafts, as last decided; the only one where nothing is to be chosen.
        beside: The plan by which a drafter is called where that pays once instant drafts have been looked at: the best
            one, or where nothing was decided the best that drafts.
        drafts_since, accepted_since, expected_since: Drafts made by it since, the tokens they brought, and those that
            were expected of drafts so long.
        value, rival: Tokens that it is worth more than none by the last decision, and the best plan of another drafter.
        fixed: Whether there is nothing to choose: its first way serves every step.
        expected_chain: How likely each node of its draft is to be accepted; none until somebody asks.
        growth: When drafts stop growing, by way and number of requests by class, since the last decision.
        plans: Those made since something was learned of their kind, by way and whether hopeful, of the full depth and
            cut.
        taught: Drafts learned from since the last time that others were told of them, by way.
        deepest: Longest path of any of them; 0 where all ways are instant.
    """

    ways: Sequence[Way]
    past: Past
    temperature_class: int
    crowd: int = 0
    fixed: bool = False
    steps: int = 0
    depths: dict[str, DepthAcceptance] = field(default_factory=dict)
    chances: dict[str, ChanceAcceptance] = field(default_factory=dict)
    lengths: dict[str, tuple[Way, Way]] = field(default_factory=dict)
    rows: dict[int, float] = field(default_factory=dict)
    worth: dict[int, float] = field(default_factory=dict)
    standing: list[int] | None = None
    gains: dict[int, float] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    patience: dict[int, int] = field(default_factory=dict)
    base: Plan = NOTHING
    beside: Plan = NOTHING
    called: set[str] = field(default_factory=set)
    value: float = 0.0
    rival: float = 0.0
    drafts_since: int = 0
    accepted_since: int = 0
    expected_since: float = 0.0
    taught: dict[int, int] = field(default_factory=dict)
    plans: dict[tuple[int, bool], list[Plan]] = field(default_factory=dict)
    growth: dict[tuple[int, int], Growth] = field(default_factory=dict)
    expected_chain: Sequence[float] | None = None

    def __post_init__(self) -> None:
        self.saved = {way.owner: 0.0 for way in self.ways}
        for way in self.ways:
            if way.kind not in self.depths:
                alike = [other for other in self.ways if other.kind == way.kind]
                _, longest = self.lengths[way.kind] = min(alike, key=LENGTH), max(alike, key=LENGTH)
                self.depths[way.kind] = DepthAcceptance(self.past, self.like(way.kind), longest.depth)
                self.chances[way.kind] = ChanceAcceptance(self.past, (self.temperature_class, way.kind))
        for kind, owner in {way.kind: way.owner for way in self.ways}.items():
            others = {way.kind for way in self.ways if way.owner == owner} - {kind}
            self.depths[kind].kin = [self.depths[other] for other in sorted(others)]
        self.sort_ways()
        if self.fixed:
            self.base = self.plan(0, self.ways[0].depth)

    def sort_ways(self) -> None:
        """Which ways are looked at before anything is decided, and which are decided about. Beside many others looking
        takes longer than drafting: ways that trim themselves are then asked for all or for none."""
        many, ways = self.crowd >= MANY_CLASS, list(enumerate(self.ways))
        self.asked_by_all = [place for place, way in ways if many and way.instant and way.stops]
        self.instant = [place for place, way in ways if way.instant and place not in self.asked_by_all]
        self.slow = [place for place, way in ways if not (way.instant or self.outgrown(way))]
        self.deepest = max((self.ways[place].depth for place in self.slow), default=0)

    def menu(self, depth: int, *, hopeful: bool = True) -> list[Plan]:
        """Plans of the ways that are not instant, none deeper than `depth`, and the plan of drafting nothing; `hopeful`
        as in `plan`."""
        if self.steps % REFRESH_EVERY == 0:
            for acceptance in self.depths.values():
                acceptance.let_fade(self.steps)
            self.plans = {}
        menu = [NOTHING]
        for place in self.slow:
            if depth < self.deepest:
                menu += self.plans_of(place, min(depth, self.ways[place].depth), hopeful)
                continue
            if (place, hopeful) not in self.plans:
                self.plans[place, hopeful] = self.plans_of(place, self.ways[place].depth, hopeful)
            menu += self.plans[place, hopeful]
        return menu

    def outgrown(self, way: Way) -> bool:
        """Whether a longer draft of its kind serves as well: it stops where this one would."""
        return way.stops and not way.samples and way is not self.lengths[way.kind][1]

    def plans_of(self, place: int, depth: int, hopeful: bool) -> list[Plan]:
        """What a way's draft brings whole, and cut to half of its depth if it is a chain, as it will be where that pays
        more."""
        whole, half = self.plan(place, depth, hopeful=hopeful), depth // 2
        if self.crowd == 0 or not self.ways[place].stops or half == 0:
            return [whole]
        gain, hoped = min(self.depths[self.ways[place].kind].expected[half], whole.gain), min(whole.hoped, float(half))
        return [whole, whole._replace(gain=gain, hoped=hoped, rows=min(whole.rows, half))]

    def decided(self, base: Plan, menu: Sequence[Plan], values: Values) -> None:
        """From now on `base` is the best plan but for instant drafts, of a `menu` of so many `values`."""
        drafting = [plan for plan in menu if plan.place != PLAIN and self.ways[plan.place].stops]
        self.go_by(base, max(drafting, key=values.of, default=NOTHING) if base.place == PLAIN else base)
        plain, owner = values.of(NOTHING), self.owner(base.place)
        others = (values.of(plan) for plan in menu if self.owner(plan.place) != owner)
        self.value, self.rival = values.of(base) - plain, max(others, default=plain) - plain

    def go_by(self, base: Plan, beside: Plan = NOTHING) -> None:
        """Draft by `base` until the next decision, and where instant drafts are looked at first by `beside`."""
        self.base, self.beside, self.growth, self.expected_chain = base, beside, {}, None
        self.drafts_since = self.accepted_since = 0
        self.expected_since = 0.0

    @property
    def further(self) -> float:
        """Tokens that the plan beside instant drafts is expected to bring, corrected by what its drafts have brought
        since it was decided: they are made where a text is hard, and of that the decision knew little."""
        gain = self.beside.gain
        return (DECIDED_WORTH * gain + self.accepted_since) / (DECIDED_WORTH + self.drafts_since)

    @property
    def chain(self) -> Sequence[float]:
        """How likely each node of such a draft is to be accepted with its ancestors, of a tree all alike: as decided,
        corrected as `further` is, by what drafts so long were expected to bring."""
        if not (self.drafts_since and self.beside.gain):
            return self.decided_chain
        doubt = DECIDED_WORTH * self.beside.gain
        factor = (doubt + self.accepted_since) / (doubt + self.expected_since)
        return [min(factor * rate, 1.0) for rate in self.decided_chain]

    @property
    def decided_chain(self) -> Sequence[float]:
        """The same as it was decided."""
        if self.expected_chain is None:
            self.expected_chain = self.expects(self.beside)
        return self.expected_chain

    def expects(self, plan: Plan) -> Sequence[float]:
        """The chances of the nodes of a plan."""
        if plan.place == PLAIN:
            return ()
        way = self.ways[plan.place]
        if way.nodes > way.depth:
            return [plan.gain / max(plan.rows, 1)] * plan.rows
        levels = self.depths[way.kind].expected
        return [after - before for before, after in pairwise(levels[: way.depth + 1])]

    def grow_beside(self, nodes: int, sharing: int, requests: int, values: Values) -> None:
        """Its draft beside instant ones grows together with those of all `sharing` the call, beside so many nodes of
        others."""
        key = (self.beside.place, size_class(requests))
        growth = self.growth.get(key)
        if growth is not None and growth.steps:
            way = self.ways[self.beside.place]
            steps = values.steps_with(way.label, sharing * way.depth, requests, nodes)
            if steps is not growth.steps:
                self.growth[key] = replace(growth, steps=steps)

    def saw_further(self, nodes: int, tokens: int) -> None:
        """A draft by the plan beside instant ones, of so many nodes, has brought so many tokens."""
        self.drafts_since += 1
        self.accepted_since += tokens
        self.expected_since += sum(self.decided_chain[:nodes])

    def joins(self, other: "RequestPolicy") -> bool:
        """Go on as was decided for `other`, if the same way is there, and there is anything to draft by."""
        base, beside = (self.plan_of(other, plan) for plan in (other.base, other.beside))
        if self.first_beside(base.place) in (None, base.place):
            return False
        self.go_by(base, beside)
        self.value, self.rival = other.value, other.rival
        return True

    def plan_of(self, other: "RequestPolicy", plan: Plan) -> Plan:
        """The plan of another request by the same way, which may have another place here."""
        way = None if plan.place == PLAIN else other.ways[plan.place]
        return plan._replace(place=self.ways.index(way)) if way in self.ways else NOTHING

    def first_beside(self, base: int) -> int | None:
        """The instant way to ask before way `base` in each step until the next decision, `PLAIN` where none has paid;
        none where there is more to weigh than which of two drafts it is to be."""
        first, *others = self.standing or [PLAIN]
        trimmed = all([place == PLAIN or self.ways[place].stops for place in (first, base)])
        return first if trimmed and not others and not self.fixed else None

    def most_nodes(self, *places: int) -> int:
        """Most nodes of a draft by any of these ways."""
        return max([0, *[self.ways[place].nodes for place in places if place != PLAIN]])

    def met(self, owner: str) -> None:
        """A drafter has been asked: it has read the text."""
        if owner not in self.called:
            self.called.add(owner)
            if self.owner(self.base.place) == owner:
                self.base = self.base._replace(reading=0.0, toll=0.0)

    def owner(self, place: int) -> str | None:
        return None if place == PLAIN else self.ways[place].owner

    def label(self, place: int) -> str:
        """Names a way."""
        return PLAIN_LABEL if place == PLAIN else self.ways[place].label

    def forgone(self, place: int) -> float:
        """Tokens that the best plan of another drafter than this way's was worth more than none."""
        return max(0.0, self.rival if self.owner(place) == self.owner(self.base.place) else self.value)

    def plan(self, place: int, depth: int, *, hopeful: bool = True) -> Plan:
        """What a way brings; how good it may be is worked out for the `hopeful` only."""
        if place == PLAIN:
            return NOTHING
        way = self.ways[place]
        acceptance, usual = self.depths[way.kind], self.usual_rows(place)
        rows, gain = round(usual), min(acceptance.expected[depth], usual)
        if self.crowd < MANY_CLASS and usual < depth and self.ends_itself(place):
            gain = acceptance.expected_at(usual)
        if not hopeful:
            return Plan(way.label, gain, gain, rows, place, 0.0, self.fixed)
        hoped, urgency = acceptance.hoped(depth, self.steps), acceptance.urgency(self.steps)
        return Plan(way.label, gain, hoped, rows, place, urgency, self.fixed)

    def usual_rows(self, place: int) -> float:
        """Nodes of a way's draft that count, by what they lately were, here or where requests were served beside as
        many others."""
        rows = self.rows.get(place)
        if rows is None:
            way = self.ways[place]
            rows = min(self.past.rows.get(self.shape(way), way.nodes), way.nodes)
        return rows

    def ends_itself(self, place: int) -> bool:
        """Whether way `place` drafts chains level by level, no longer than they are worth."""
        return self.ways[place].stepwise and self.ways[place].stops

    def shape(self, way: Way) -> tuple:
        """Whose drafts of a way are cut like this request's."""
        return (self.temperature_class, self.crowd, way.label)

    @property
    def drafts(self) -> bool:
        """Whether a draft is made or looked for until the next decision."""
        return self.base.place != PLAIN or bool(self.standing)

    def move(self, crowd: int) -> None:
        """How many requests are served is of another class now."""
        self.crowd, self.standing = crowd, None
        self.sort_ways()
        for kind, acceptance in self.depths.items():
            acceptance.move(self.like(kind))
        self.plans = {}

    def like(self, kind: str) -> tuple:
        """Whose acceptance of a kind of draft says something of this request's."""
        return (self.temperature_class, self.crowd, kind)

    def asks(self, place: int, price: float) -> bool:
        """Whether to ask an instant way in this step, its call costing as much as `price` tokens."""
        patience = self.patience.get(place, ASK_FIRST)
        if self.worth_of(place) > price:
            self.patience[place] = ASK_FIRST
            return True
        if self.steps - self.asked.get(place, -patience) < patience:
            return False
        self.patience[place] = min(2 * patience, ASK_LAST)
        return True

    def settle(self, prices: Mapping[str, float]) -> None:
        """Go on with those instant ways that have been worth what asking them costs, by label, in tokens."""
        instant = () if self.fixed else self.instant
        self.standing = [place for place in instant if self.worth_of(place) > prices.get(self.ways[place].label, 0.0)]

    def worth_of(self, place: int) -> float:
        return self.worth.get(place, self.usual_worth(place))

    def usual_worth(self, place: int) -> float:
        """Tokens that asking a way has lately been worth to requests of the kind."""
        return self.past.worths.get(self.asking(place), UNASKED)

    def asked_worth(self, place: int, hoped: float = 0.0) -> float:
        """Tokens that asking a way for all has been worth to each; `hoped` where none was asked lately."""
        seen = self.past.askings.get(self.asking(place))
        return hoped if seen is None else seen.mean(hoped, ASKED_PRIOR)

    def asking_price(self, place: int, values: Values) -> float:
        """Tokens that asking a way for all must be worth to each."""
        return values.share(self.ways[place].label, values.requests) + MARGIN_ASKED

    def saw_asked(self, place: int, tokens: float, times: int = 1) -> None:
        """Asking for all was worth so many tokens to this one, as often as it stands for. Most steps bring nothing and
        some bring much, so the mean is one over many requests."""
        self.past.askings.recall(self.asking(place), Tally).add_alike(tokens, ASKED_FADE, times)

    def leaves(self, place: int, steps: int = 1) -> None:
        """A way was asked for nobody in so many steps: what it was worth is believed a little less, so hope returns."""
        self.past.askings.recall(self.asking(place), Tally).fade(UNASKED_FADE**steps)

    def saw_steps(self, place: int, steps: int, tokens: float) -> None:
        """So many steps by way `place` have brought so many tokens in all, less what the draft nodes cost."""
        for way in () if self.fixed else self.asked_by_all:
            if way == place:
                self.saw_asked(way, tokens / steps, steps)
            else:
                self.leaves(way, steps)

    def asking(self, place: int) -> tuple:
        """Whose asking a way was worth as much as this request's."""
        return (self.temperature_class, self.crowd, self.ways[place].kind)

    def usual_gain(self, place: int) -> float:
        """Accepted tokens that an instant way lately expected of its drafts."""
        return self.gains.get(place, inf)

    def saw_worth(self, place: int, gain: float, tokens: float) -> None:
        """An instant way was asked, and its draft, expected to bring `gain` accepted tokens, was worth so many tokens
        more than the best other plan."""
        self.gains[place] = followed(self.gains.get(place), gain, ASK_FOLLOW)
        self.worth[place] = followed(self.worth_of(place), tokens, ASK_FOLLOW)
        self.past.worths[self.asking(place)] = followed(self.usual_worth(place), tokens, PAST_FOLLOW)
        self.asked[place] = self.steps

    def path_rates(self, place: int, tree: DraftTree) -> list[float]:
        """How likely each node of a draft by way `place` is to be accepted together with its ancestors, [N]."""
        return self.chances[self.ways[place].kind].path_rates(tree)

    def candour(self, place: int) -> float:
        """The power of a stated chance that is the chance of being accepted, by what became of way `place`'s drafts."""
        return self.chances[self.ways[place].kind].candour

    def proven(self, place: int) -> bool:
        """Whether it is known what the chances are worth that way `place` states."""
        return self.chances[self.ways[place].kind].proven

    def onward(self, place: int) -> float:
        """How likely a draft by way `place` is accepted a token further where it goes on."""
        return self.chances[self.ways[place].kind].onward

    def charge(self, place: int, tokens: float) -> None:
        """Drafts of a way have cost the time of so many tokens, or brought them where negative."""
        self.saved[self.ways[place].owner] -= tokens

    def check(self, place: int, drafted: DraftTree, path: Sequence[int]) -> None:
        """What way `place` said of the nodes of `drafted`, of which `path` were accepted.

        Probes cost rows and are no guesses: nothing is learned of them.
        """
        if drafted.chances is not None:
            self.chances[self.ways[place].kind].learn(drafted.guesses, path)

    def check_by(self, place: int, drafted: DraftTree, written: Sequence[int]) -> None:
        """As `check` of an instant draft, whether it was verified or not, by what was `written` in its place: else a
        text whose drafts were once not worth their rows would never be believed again."""
        drafted = drafted.guesses
        path = drafted.along(written)
        self.chances[self.ways[place].kind].learn(drafted, path, ended=len(path) < len(written))

    def learn(
        self, place: int, drafted: DraftTree, path: Sequence[int], depth: int, step: int, further: float = 0.0
    ) -> None:
        """Way `place`, asked for a draft of at most `depth` in step `step`, brought `drafted`, of which a path as long
        as `path` was accepted.

        Args:
            further: How likely one of the nodes that were left out would have been accepted next.
        """
        way = self.ways[place]
        self.depths[way.kind].learn(min(depth, way.depth), len(path), step, further)
        self.learn_rows(place, len(drafted))

    def learn_rows(self, place: int, count: int) -> None:
        """A draft of way `place` had so many nodes that count."""
        self.rows[place] = followed(self.rows.get(place), count, ROWS_FOLLOW)
        self.taught[place] = self.taught.get(place, 0) + 1

    def taken_in(self) -> None:
        """All that was to be learned for now has been: tell others, and forget the plans that stood on less."""
        if not self.taught:
            return
        for place, drafts in self.taught.items() if self.crowd else ():
            shape = self.shape(self.ways[place])
            weight = 1.0 - (1.0 - PAST_FOLLOW) ** drafts
            self.past.rows[shape] = followed(self.past.rows.get(shape), self.rows[place], weight)
        owners = {self.ways[place].owner for place in self.taught}
        self.plans = {key: plans for key, plans in self.plans.items() if self.ways[key[0]].owner not in owners}
        self.taught = {}

    def finish(self) -> None:
        """The request ends: what it has taught is there for the next ones."""
        for acceptance in self.depths.values():
            acceptance.take_in()


def followed(usual: float | None, seen: float, weight: float) -> float:
    """What is usual after another observation; the first one is."""
    return seen if usual is None else usual + weight * (seen - usual)


def drafted(known: Sequence[RequestPolicy]) -> dict[int, bool]:
    """Whether any request is drafted for until the next decision, by class of temperature."""
    return {
        temperature: any([its.drafts for its in known if its.temperature_class == temperature])
        for temperature in {its.temperature_class for its in known}
    }
