"""A draft under construction by an autoregressive drafter, level by level.

A chain is a tree of width one that runs each node once. A tree of likeliest or coupled drafts grows as EAGLE-2 does (Li
et al. 2024): expand the best few nodes of each level by cumulative log-probability, keep the best of all. A tree of
sampled drafts has a shape fixed beforehand: dropping a node for what was drawn would bias the law of what remains.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import exp, inf

from torch import Tensor
from torch.nn.functional import pad

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.core.plan_builder import Rows
from foredraft.core.slots import Slots
from foredraft.drafters.draft_choice import Choice, plainly_ordered
from foredraft.drafters.drafter import DraftTask
from foredraft.drafters.growth import End, Growth, least_worth_a_row, worth_a_run, worth_growing
from foredraft.drafters.table_slots import continued, first_slots, last_and_before
from foredraft.model.slot_pool import SlotPool


@dataclass(slots=True)
class Candidate:
    """One drafted node.

    Attributes:
        token, parent: As in `DraftTree`.
        gain: Log-chance that it is accepted once its parent is; for a drawn token minus the number of draws before it.
        score: Sum of the gains of its path.
        depth: 1 for a child of the root.
        slot: Its cache slot once it is expanded.
    """

    token: int
    parent: int
    gain: float
    score: float
    depth: int
    slot: int | None = None


@dataclass(eq=False)
class GrowingTree:
    """One request's draft while it is made.

    Attributes:
        task, choice, pool: What to draft, how tokens are chosen, where slots come from.
        drafter: Name of the drafter, for its nodes.
        stored: Committed positions whose keys and values the drafter holds, the one the draft grows from included.
        nodes: Everything drafted so far, parents before children.
        frontier: Nodes to run next.
        expanded: Nodes run or about to run, in the order of their rows.
        laws: Law of each expanded row's children, for sampled drafts; the root's under -1.
        least: Chance of being accepted below which a node of a chain that grew with others is not kept.
        ran: After `finished`: nodes of the finished tree that the drafter ran through.
    """

    task: DraftTask
    choice: Choice
    pool: SlotPool
    drafter: str
    stored: int
    nodes: list[Candidate] = field(default_factory=list)
    frontier: list[int] = field(default_factory=list)
    expanded: list[int] = field(default_factory=list)
    laws: dict[int, Tensor | None] = field(default_factory=dict)
    least: float = 0.0
    ran: set[int] = field(default_factory=set)

    @property
    def chain(self) -> bool:
        return not self.task.speculation.tree_size

    @property
    def width(self) -> int:
        return 1 if self.chain else self.task.speculation.tree_width

    @property
    def may_stop(self) -> bool:
        """Whether it ends where more is not worth it: what was drawn must not decide how much is."""
        return not self.sampled

    @property
    def sampled(self) -> bool:
        return any(law is not None for law in self.laws.values())

    @property
    def parents(self) -> list[int]:
        """The nodes below which the next level hangs: the root at first, then the frontier."""
        return self.frontier or [ROOT]

    @cached_property
    def plain(self) -> bool:
        """Whether raw logits say all there is to say, so that `level_ranking.grow` may rank them."""
        return plainly_ordered(self.task)

    @property
    def level(self) -> int:
        """Depth of these parents."""
        return self.depth(self.parents[0])

    @property
    def left(self) -> int:
        """Levels that may still be drafted behind the frontier."""
        return self.task.depth - self.level

    @property
    def open_rows(self) -> int:
        """Rows whose logits the next `extend` takes."""
        return len(self.frontier) or 1

    def rows(self) -> Rows:
        """The frontier's rows for a packed forward.

        A chain runs its newest node alone on top of the cache; a tree runs the root and all expanded nodes again, few
        rows that cost about as much as one. `run_nodes` says which node each row belongs to.
        """
        return self.chain_rows() if self.chain else self.tree_rows()

    def chain_rows(self) -> Rows:
        *before, own = [self.nodes[node].slot for node in self.expanded]
        return Rows(
            tokens=[self.nodes[self.frontier[0]].token],
            pending=1,
            parents=[],
            slots=[own],
            context=self.stored + len(before),
            context_slots=continued(self.committed, before, self.pool.device),
            logits=1,
        )

    def tree_rows(self) -> Rows:
        root, before = last_and_before(self.committed)
        place = {node: row for row, node in enumerate(self.expanded)} | {ROOT: ROOT}
        return Rows(
            tokens=[self.task.request.tokens[-1], *(self.nodes[node].token for node in self.expanded)],
            pending=1,
            parents=[place[self.nodes[node].parent] for node in self.expanded],
            slots=[root, *(self.nodes[node].slot for node in self.expanded)],
            context=self.stored - 1,
            context_slots=before,
            logits=len(self.frontier),
        )

    @cached_property
    def committed(self) -> Slots:
        """Slots of the stored positions."""
        return first_slots(self.task.table, self.stored, self.pool.device)

    @property
    def run_nodes(self) -> list[int]:
        """The node of each of `rows`: the newest of a chain, or the root and all expanded nodes."""
        return self.frontier if self.chain else [ROOT, *self.expanded]

    def extend(self, logits: Tensor) -> None:
        """Hang children below the rows just run, [open rows, V] logits, and choose whom to run next."""
        parents = self.parents
        depths = [self.depth(parent) for parent in parents]
        logits = fitted(logits, self.task.sampler.vocabulary.rows)
        scores = self.task.sampler.scores(logits, [self.path_tokens(parent) for parent in parents])
        values, laws = self.choice.order(scores, depths, [parent + 1 for parent in parents])
        self.laws.update(zip(parents, laws, strict=True))
        best = values.topk(min(self.width, values.shape[-1]), dim=-1)
        # The target's noise counts as part of the logits; `Marginals.gains` gives the reason.
        gains = best.values if self.sampled else values.log_softmax(-1).gather(-1, best.indices)
        self.hang_level(best.indices.tolist(), gains.tolist(), scores)

    def hang_level(
        self, tokens: Sequence[list[int]], gains: Sequence[list[float]], scores: Tensor | None = None
    ) -> None:
        """Hang `tokens`, best first, below the rows just run, and choose whom to run next.

        `scores` [open rows, V] are needed by a chain that ends where it is not sure, where noise is part of the gains.
        """
        fresh = []
        for parent, own, row in zip(self.parents, tokens, gains, strict=True):
            fresh += self.hang(parent, own, row)
        self.advance(fresh, scores)

    def hang(self, parent: int, tokens: list[int], gains: list[float]) -> list[int]:
        """Add the possible ones of `tokens`, best first, below `parent`; the new nodes."""
        base = self.nodes[parent].score if parent != ROOT else 0.0
        first = len(self.nodes)
        for rank, (token, gain) in enumerate(zip(tokens, gains, strict=True)):
            if gain > -inf:  # neither forbidden nor NaN, as all are where everything is forbidden
                # What was drawn must not decide which nodes stay, so samples are worth the order of their draws.
                worth = gain if self.laws.get(parent) is None else -float(rank)
                self.nodes.append(Candidate(token, parent, worth, base + worth, self.depth(parent) + 1))
        if len(self.nodes) == first:
            self.laws[parent] = None
        return list(range(first, len(self.nodes)))

    def depth(self, node: int) -> int:
        return self.nodes[node].depth if node != ROOT else 0

    def advance(self, fresh: list[int], scores: Tensor | None) -> None:
        """Choose the next frontier among the level just drafted."""
        deepest = not fresh or self.nodes[fresh[0]].depth >= self.task.depth
        if deepest or (self.chain and self.unsure(fresh[0], scores)):
            self.frontier = []
        else:
            likely = [node for node in fresh if not self.ends_at(node)]
            best = sorted(likely, key=lambda node: -self.nodes[node].score)[: self.width]
            self.frontier = sorted(best)

    def expand(self) -> None:
        """Give the frontier slots to run in."""
        slots = self.pool.take(self.task.table, len(self.frontier))
        for node, slot in zip(self.frontier, slots, strict=True):
            self.nodes[node].slot = slot
        self.expanded += self.frontier

    def unsure(self, node: int, scores: Tensor | None) -> bool:
        """Whether the drafter gave its own token less than the threshold; that token is kept, being free to verify."""
        threshold = self.task.speculation.draft_confidence_threshold
        if threshold == 0:
            return False
        own = self.nodes[node]
        return (exp(own.gain) if scores is None else scores[0].softmax(-1)[own.token].item()) < threshold

    def unlikely(self, node: int) -> bool:
        """Whether a node is not worth a row."""
        growth, score = self.task.growth, self.nodes[node].score
        return self.may_stop and (growth.worth(score) < 0 or growth.chance(score) < self.least)

    def ends_at(self, node: int) -> bool:
        """Whether a child of the node would not be worth a row."""
        return self.may_stop and self.task.growth.worth_behind(self.nodes[node].score) < 0

    def path_tokens(self, node: int) -> list[int]:
        tokens: list[int] = []
        while node != ROOT:
            tokens.append(self.nodes[node].token)
            node = self.nodes[node].parent
        return tokens[::-1]

    def finished(self) -> DraftTree:
        """The nodes kept as a tree."""
        chosen = self.kept()
        place = {node: index for index, node in enumerate(chosen)} | {ROOT: ROOT}
        self.ran = {place[node] for node in self.expanded if node in place}
        return DraftTree(
            tokens=[self.nodes[node].token for node in chosen],
            parents=[place[self.nodes[node].parent] for node in chosen],
            drafters=[self.drafter] * len(chosen),
            laws=[self.laws.get(node) for node in (ROOT, *chosen)] if self.sampled else None,
            replacement=not self.sampled,
            slots=self.slots_of(chosen),
            chances=None if self.sampled else [exp(self.nodes[node].gain) for node in chosen],
        )

    def kept(self) -> list[int]:
        """The best nodes that are worth a row, as many as the task asks for, parents before their children.

        A parent never scores below its child, and wins ties by being shallower.
        """
        worthy = [node for node in range(len(self.nodes)) if not self.unlikely(node)]
        ordered = sorted(worthy, key=lambda i: (-self.nodes[i].score, self.nodes[i].depth, i))
        return sorted(ordered[: self.task.nodes])

    def slots_of(self, chosen: list[int]) -> list[int]:
        """Slots of the chosen nodes; those that were not run take fresh ones."""
        bare = [node for node in chosen if self.nodes[node].slot is None]
        for node, slot in zip(bare, self.pool.take(self.task.table, len(bare)) if bare else [], strict=True):
            self.nodes[node].slot = slot
        return [self.nodes[node].slot for node in chosen]


def going_on(drafts: Sequence[GrowingTree]) -> list[GrowingTree]:
    """Those of all drafts of one call that have a frontier which is worth another run, now with slots to run it in.

    Where rows are paid for together, it is settled with the last run which nodes of any draft are verified.
    """
    going = [draft for draft in drafts if draft.frontier]
    if all(draft.may_stop for draft in drafts):
        costs = max((draft.task.growth for draft in drafts), key=lambda growth: len(growth.steps))
        going = stopped(going, likeliest(going, drafts, costs) if costs.steps else together(going))
        if costs.steps and not going:
            settle(drafts, costs)
    for draft in going:
        draft.expand()
    return going


def stopped(going: Sequence[GrowingTree], chosen: list[GrowingTree]) -> list[GrowingTree]:
    """The `chosen` ones; the others grow no further."""
    for draft in going:
        if draft not in chosen:
            draft.frontier = []
    return [draft for draft in going if draft in chosen]


def together(going: list[GrowingTree]) -> list[GrowingTree]:
    """All of them, or none where all together are not worth another run."""
    scores = ((draft.task.growth, (draft.nodes[node].score for node in draft.frontier)) for draft in going)
    return going if worth_a_run(scores) else []


def likeliest(going: Sequence[GrowingTree], drafts: Sequence[GrowingTree], costs: Growth) -> list[GrowingTree]:
    """Those of the chains `going` that are worth another run, where rows are paid for by all `drafts` of a call."""
    paying, free = apart(going)
    ends = [End(draft.task.growth, draft.nodes[draft.frontier[0]].score, draft.left) for draft in paying]
    nodes = sum(len(draft.nodes) for draft in drafts)
    return free + [paying[place] for place in worth_growing(ends, nodes, costs, [draft.left for draft in free])]


def settle(drafts: Sequence[GrowingTree], costs: Growth) -> None:
    """Keep those nodes of all drafts that are worth verifying together."""
    paying, free = apart(drafts)
    chances = [draft.task.growth.chance(node.score) for draft in paying for node in draft.nodes]
    least = least_worth_a_row(chances, costs, sum(len(draft.nodes) for draft in free))
    for draft in paying:
        draft.least = least


def apart(drafts: Sequence[GrowingTree]) -> tuple[list[GrowingTree], list[GrowingTree]]:
    """Those that pay for what is drafted, and those that are free."""
    free = [draft for draft in drafts if draft.task.growth.free]
    return [draft for draft in drafts if not draft.task.growth.free], free


def fitted(logits: Tensor, rows: int) -> Tensor:
    """Logits as wide as the target's: the same vocabulary may be padded to another width."""
    return pad(logits, (0, rows - logits.shape[-1]), value=float("-inf")) if logits.shape[-1] != rows else logits
