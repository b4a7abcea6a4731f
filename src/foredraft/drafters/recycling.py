"""Token recycling (Luo et al. 2408.08696): what the target last thought likely after a token is drafted after it again.

Every row of a verified tree tells the target's likeliest next tokens after one token, rows of rejected drafts included;
decoding throws them away, here they fill a table. A draft walks the table from the root, rank by rank.
"""

import numpy as np

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.core.static_tree import StaticTree, token_tree
from foredraft.drafters.drafter import DrafterNeeds, DraftTask, Observation, register
from foredraft.drafters.marginal_tree import measured_tree
from foredraft.drafters.rank_chances import RankChances
from foredraft.model.target import Target

UNKNOWN = -1
REPLAN = 128  # written tokens between two looks at what was learned


class RecyclingDrafter:
    """Drafts chains of the likeliest successors, or static trees; one table serves all requests.

    A tree is the one that `speculative_token_tree` gives; else the best one of `tree_size` nodes, at most `tree_width`
    children a node, for the shares of tokens that the ranks have turned out right.

    Attributes:
        table: The target's likeliest next tokens after each token, likeliest first, [V + 1, candidates], -1 where they
            are unknown; its last row, which index -1 reads, stays unknown.
        chances: How often each rank is right.
        plans: Filled shapes by the limits they keep to, planned once until more is learned.
        planned: Tokens that `chances` had seen when the plans were begun.
    """

    name = "recycling"

    def __init__(self, *, vocabulary: int, candidates: int) -> None:
        self.needs = DrafterNeeds(successors=candidates, fixed_trees=True, instant=True)
        self.table = np.full((vocabulary + 1, candidates), UNKNOWN, dtype=np.int32)
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
            self.chances.count(self.table[written[:-1]], written[1:])
        for seen in told:
            self.learn(seen)

    def learn(self, seen: Observation) -> None:
        """Overwrite the successors of every token of the step.

        Where a token stands in several rows the last one written stays: rejected rows come first, their best node last,
        then the rows of the text itself in its order, because nobody will write on behind a rejected row.
        """
        accepted = set(seen.path)
        rejected = [node + 1 for node in reversed(range(len(seen.tree))) if node not in accepted]
        rows = [*rejected, 0, *(node + 1 for node in seen.path)]
        tokens = np.array([root_of(seen), *seen.tree.tokens])
        self.table[tokens[rows]] = np.array(seen.successors, dtype=np.int32)[rows]

    def close(self, request: Request) -> None:
        """Nothing is kept for one request alone."""


class RankPlan:
    """A shape laid out to be filled level by level.

    Attributes:
        parents: Index of each node's parent, [N], -1 for the root.
        chances: Chance of each node to be accepted once its parent is, [N].
        levels: For each depth the nodes of it, their parents and their ranks.
    """

    def __init__(self, shape: StaticTree, chances: RankChances) -> None:
        self.parents, ranks = np.array(shape.parents, dtype=np.int64), np.array(shape.ranks, dtype=np.int64)
        depths = np.array(shape.depths, dtype=np.int64)
        deepest = max(shape.depths, default=0)
        rows = np.array(chances.rows(deepest)).reshape(deepest, -1)
        self.chances = rows[depths - 1, ranks]
        at = [np.flatnonzero(depths == depth) for depth in range(1, deepest + 1)]
        self.levels = [(nodes, self.parents[nodes], ranks[nodes]) for nodes in at]

    def filled(self, table: np.ndarray, root: int, drafter: str) -> DraftTree:
        """The shape with tokens; a node ends where the table knows no token of its rank, and all below it."""
        tokens = np.full(len(self.parents) + 1, root, dtype=np.int64)  # the root is last: index -1
        for nodes, parents, ranks in self.levels:
            tokens[nodes] = table[tokens[parents], ranks]
        kept = np.flatnonzero(tokens[:-1] != UNKNOWN)
        place = np.full(len(tokens), ROOT)
        place[kept] = np.arange(len(kept))
        return DraftTree(
            tokens=tokens[kept].tolist(),
            parents=place[self.parents[kept]].tolist(),
            drafters=[drafter] * len(kept),
            chances=self.chances[kept].tolist(),
        )


def root_of(seen: Observation) -> int:
    """The token that the step's first decided row stood on: the last one before what the step has written."""
    return seen.request.tokens[-1 - len(seen.committed)]


@register("recycling")
def make_recycling(config: SpeculationConfig, target: Target) -> RecyclingDrafter:
    size = target.vocabulary.size
    return RecyclingDrafter(vocabulary=size, candidates=min(config.recycling_candidates, size))
