"""Token recycling (Luo et al. 2408.08696): what the target last thought likely after a token is drafted after it again.

Every row of a verified tree tells the target's likeliest next tokens after one token, rows of rejected drafts included;
decoding throws them away, here they fill a table. A draft walks the table from the root, rank by rank.
"""

from dataclasses import replace

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.core.static_tree import StaticTree, token_tree
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation, register
from foredraft.drafters.marginal_tree import measured_tree
from foredraft.drafters.rank_chances import RankChances
from foredraft.model.target import Target

REPLAN = 128  # written tokens between two looks at what was learned


class RecyclingDrafter:
    """Drafts chains of the likeliest successors, or static trees; one table serves all requests.

    A tree is the one that `speculative_token_tree` gives; else the best one of `tree_size` nodes, at most `tree_width`
    children a node, for the shares of tokens that the ranks have turned out right.

    Attributes:
        table: The target's likeliest next tokens after each token that has been seen, likeliest first.
        chances: How often each rank is right.
        plans: Filled shapes by the limits they keep to, planned once until more is learned.
        planned: Tokens that `chances` had seen when the plans were begun.
    """

    name = "recycling"

    def __init__(self, *, candidates: int) -> None:
        self.needs = DrafterNeeds(successors=candidates, fixed_trees=True, instant=True)
        self.table: dict[int, list[int]] = {}
        self.chances = RankChances(candidates)
        self.plans: dict[tuple, RankPlan] = {}
        self.planned = 0

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        """A tree for each task; empty where nothing is known of what follows the root."""
        if self.chances.tokens >= self.planned + REPLAN:
            self.plans, self.planned = {}, self.chances.tokens
        return [self.plan(task).filled(self.table, task.request.tokens[-1], self.name) for task in tasks]

    def plan(self, task: DraftTask) -> "RankPlan":
        config = task.speculation
        width = config.tree_width if config.branches else 1
        limits = (config.speculative_token_tree, width, config.draft_confidence_threshold, task.nodes, task.depth)
        if limits not in self.plans:
            self.plans[limits] = RankPlan(self.shape(*limits), self.chances)
        return self.plans[limits]

    def shape(self, fixed: str | None, width: int, threshold: float, nodes: int, depth: int) -> StaticTree:
        """What to fill within limits."""
        if fixed is not None:
            return token_tree(fixed).cut(nodes=nodes, depth=depth, width=self.needs.successors)
        rows = self.chances.rows(depth)
        if width == 1:
            # The first guess below the threshold is the last: it costs nothing to draft.
            end = next((d for d, row in enumerate(rows, start=1) if row[0] < threshold), depth)
            return StaticTree.chain(min(end, nodes))
        return measured_tree(tuple(map(tuple, rows)), nodes=nodes, depth=depth, width=width)

    def observe(self, observations: list[Observation]) -> None:
        """Count which ranks were right, then take every row of the steps into the table."""
        told = [seen for seen in observations if seen.successors is not None]
        for seen in told:
            written = [root_of(seen), *(seen.tree.tokens[node] for node in seen.path), seen.verdict.token]
            self.chances.count([self.table.get(token) for token in written[:-1]], written[1:])
        for seen in told:
            self.learn(seen)

    def learn(self, seen: Observation) -> None:
        """Overwrite the successors of every token of the step.

        Where a token stands in several rows the last one written stays: rejected rows come first, their best node last,
        then the rows of the text itself in its order, because nobody will write on behind a rejected row.
        """
        accepted, tokens = set(seen.path), seen.tree.tokens
        root, *rows = seen.successors
        for node in reversed(range(len(tokens))):
            if node not in accepted:
                self.table[tokens[node]] = rows[node]
        self.table[root_of(seen)] = root
        for node in seen.path:
            self.table[tokens[node]] = rows[node]

    def close(self, request: Request) -> None:
        """Nothing is kept for one request alone."""


class RankPlan:
    """A shape to be filled.

    Attributes:
        nodes: Parent, rank and chance to be accepted once the parent is, of each node, [N]; parents come first.
    """

    def __init__(self, shape: StaticTree, chances: RankChances) -> None:
        rows = chances.rows(max(shape.depths, default=0))
        likely = [rows[depth - 1][rank] for depth, rank in zip(shape.depths, shape.ranks, strict=True)]
        self.nodes = list(zip(shape.parents, shape.ranks, likely, strict=True))

    def filled(self, table: dict[int, list[int]], root: int, drafter: str) -> DraftTree:
        """The shape with tokens; a node ends where the table knows no token of its rank, and all below it."""
        tree, chances = DraftTree(), []
        place: list[int | None] = []  # in the draft, of each node of the shape
        below = {ROOT: table.get(root)}  # what the table knows after each node of the draft
        for parent, rank, chance in self.nodes:
            at = ROOT if parent == ROOT else place[parent]
            known = below.get(at)
            if known is None or rank >= len(known):
                place.append(None)
                continue
            node = tree.add(known[rank], at, drafter)
            below[node] = table.get(known[rank])
            chances.append(chance)
            place.append(node)
        return replace(tree, chances=chances)


def root_of(seen: Observation) -> int:
    """The token that the step's first decided row stood on: the last one before what the step has written."""
    return seen.request.tokens[-1 - len(seen.committed)]


@register("recycling")
def make_recycling(config: SpeculationConfig, target: Target) -> RecyclingDrafter:
    return RecyclingDrafter(candidates=min(config.recycling_candidates, target.vocabulary.size))
