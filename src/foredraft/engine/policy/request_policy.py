"""What the policy knows of one request: the ways to draft for it and how they have done."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import inf

from foredraft.core.draft_tree import DraftTree
from foredraft.engine.policy.acceptance import ChanceAcceptance, DepthAcceptance, Past
from foredraft.engine.policy.allocation import NOTHING, PLAIN, Plan
from foredraft.engine.policy.trimming import path_rates
from foredraft.engine.way import Way

REFRESH_EVERY = 8  # steps after which unused ways are looked at again
ASK_FOLLOW = 0.15  # weight of a new observation of what an instant draft was worth
PAST_FOLLOW = 0.03  # the same over all requests
UNKNOWN = -1  # level before the target has chosen a token
SURE_EDGES = (0.5, 0.65, 0.8, 0.9)
SURE_FOLLOW = 0.2  # weight of a new observation of how sure the target is
ASK_FIRST, ASK_LAST = 4, 16  # an instant drafter that does not pay is asked again after so many steps, then twice that


@dataclass(eq=False)
class RequestPolicy:
    """One request's ways, with the acceptance learned for each.

    Attributes:
        ways: All of them.
        steps: Steps of the request so far.
        depths: Acceptance by depth, by kind.
        chances: Acceptance by stated chance, by kind.
        rows: Nodes each way has brought to verification lately, by way.
        worth: Tokens that asking an instant way has lately been worth, by way.
        standing: Instant ways that go on being asked until the next decision; none before the first.
        gains: Accepted tokens that an instant way has lately expected of its drafts, by way.
        asked, patience: The step an instant way was last asked in, and steps until the next where it does not pay.
        sure: How sure the target has lately been of its next token, 0 to 1; none before it has chosen any.
        level: Class of `sure`. A text that is easy for the target is easy for drafters, so acceptance starts from what
            requests of the same temperature and level have taught.
        instant: Ways that are.
        called: Drafters that have been asked.
        saved: Tokens that each drafter has brought, less those that its time and rows have cost.
        base: The best plan but for instant drafts, as last decided; the only one where nothing is to be chosen.
        fixed: Whether there is nothing to choose: its first way serves every step.
        plans: Drafting nothing, and every way that is not instant, at its full depth.
        deepest: Longest path of any of them; 0 where all ways are instant.
    """

    ways: Sequence[Way]
    past: Past
    temperature_class: int
    fixed: bool = False
    steps: int = 0
    depths: dict[str, DepthAcceptance] = field(default_factory=dict)
    chances: dict[str, ChanceAcceptance] = field(default_factory=dict)
    rows: dict[int, float] = field(default_factory=dict)
    worth: dict[int, float] = field(default_factory=dict)
    standing: list[int] | None = None
    gains: dict[int, float] = field(default_factory=dict)
    asked: dict[int, int] = field(default_factory=dict)
    patience: dict[int, int] = field(default_factory=dict)
    base: Plan = NOTHING
    sure: float | None = None
    level: int = UNKNOWN
    called: set[str] = field(default_factory=set)
    plans: list[Plan] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.instant = [place for place, way in enumerate(self.ways) if way.instant]
        self.saved = {way.owner: 0.0 for way in self.ways}
        for way in self.ways:
            place = (self.temperature_class, way.kind)
            deepest = max(other.depth for other in self.ways if other.kind == way.kind)
            self.depths.setdefault(way.kind, DepthAcceptance(self.past, (*place, self.level), deepest))
            self.chances.setdefault(way.kind, ChanceAcceptance(self.past, place))
        slow = [place for place, way in enumerate(self.ways) if not way.instant]
        self.deepest = max((self.ways[place].depth for place in slow), default=0)
        self.plans = [NOTHING, *(self.plan(place, self.ways[place].depth) for place in slow)]
        if self.fixed:
            self.base = self.plan(0, self.ways[0].depth)

    def menu(self, depth: int) -> list[Plan]:
        """Plans of the ways that are not instant, none deeper than `depth`, and the plan of drafting nothing."""
        if self.steps % REFRESH_EVERY == 0:
            for acceptance in self.depths.values():
                acceptance.let_fade(self.steps)
            self.plans = [self.plan(plan.place, self.ways[plan.place].depth) for plan in self.plans]
        if depth >= self.deepest:
            return self.plans
        return self.plans[:1] + [
            self.plan(plan.place, min(depth, self.ways[plan.place].depth)) for plan in self.plans[1:]
        ]

    def plan(self, place: int, depth: int) -> Plan:
        if place == PLAIN:
            return NOTHING
        way = self.ways[place]
        acceptance = self.depths[way.kind]
        rows = round(self.rows.get(place, way.nodes))
        hoped, urgency = acceptance.hoped(depth, self.steps), acceptance.urgency(self.steps)
        return Plan(way.label, acceptance.expected[depth], hoped, rows, place, urgency, self.fixed)

    def saw_sureness(self, share: float) -> None:
        """The target gave its likeliest next token so large a share."""
        self.sure = share if self.sure is None else self.sure + SURE_FOLLOW * (share - self.sure)
        level = sum(self.sure > edge for edge in SURE_EDGES)
        if level != self.level:
            self.level = level
            for kind, acceptance in self.depths.items():
                acceptance.move(self.past, (self.temperature_class, kind, level))
            self.plans = [self.plan(plan.place, self.ways[plan.place].depth) for plan in self.plans]

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
        usual = self.past.worths.get((self.temperature_class, self.ways[place].kind), 1.0)
        return self.worth.get(place, usual)

    def usual_gain(self, place: int) -> float:
        """Accepted tokens that an instant way lately expected of its drafts."""
        return self.gains.get(place, inf)

    def saw_worth(self, place: int, gain: float, tokens: float) -> None:
        """An instant way was asked, and its draft, expected to bring `gain` accepted tokens, was worth so many tokens
        more than the best other plan."""
        self.gains[place] = gain + (1.0 - ASK_FOLLOW) * (self.gains.get(place, gain) - gain)
        before, kind = self.worth_of(place), (self.temperature_class, self.ways[place].kind)
        self.worth[place] = before + ASK_FOLLOW * (tokens - before)
        usual = self.past.worths.get(kind, 1.0)
        self.past.worths[kind] = usual + PAST_FOLLOW * (tokens - usual)
        self.asked[place] = self.steps

    def path_rates(self, place: int, tree: DraftTree) -> list[float]:
        """How likely each node of a draft by way `place` is to be accepted together with its ancestors, [N]."""
        return path_rates(tree, self.chances[self.ways[place].kind].rates)

    def charge(self, place: int, tokens: float) -> None:
        """Drafts of a way have cost the time of so many tokens, or brought them where negative."""
        self.saved[self.ways[place].owner] -= tokens

    def learn(self, place: int, drafted: DraftTree, path: Sequence[int], depth: int) -> None:
        """Way `place`, asked for a draft of at most `depth`, brought `drafted`; its nodes `path` were accepted.

        Probes cost rows and are no guesses: nothing is learned of them.
        """
        way = self.ways[place]
        if drafted.chances is not None:
            self.chances[way.kind].learn(drafted.guesses, set(path))
        if way.instant:
            return
        self.depths[way.kind].learn(min(depth, way.depth), len(path), self.steps)
        self.rows[place] = 0.8 * self.rows.get(place, len(drafted)) + 0.2 * len(drafted)
        self.plans = [
            self.plan(plan.place, self.ways[plan.place].depth)
            if plan.place != PLAIN and self.ways[plan.place].kind == way.kind
            else plan
            for plan in self.plans
        ]
