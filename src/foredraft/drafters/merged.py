"""Drafters side by side: the trees of all of them merged into one, under one node budget.

A path of the merged tree may be made of nodes of several drafters, so slots that a part has given its nodes are given
back: a request never holds more than one draft. A part that stores keys and values under them, such as a draft model,
runs what was accepted again, a few more rows in a forward that it makes anyway.
"""

from foredraft.core.draft_tree import ROOT, DraftTree
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.combination import Combination, Part, common_needs, make_parts, order_of
from foredraft.drafters.drafter import DraftTask, register
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import Target

UNTOLD = (
    0.6  # chance of a node's first child where its drafter tells none; each further child has this share of the rest
)


class MergedDrafter(Combination):
    """Drafts what all parts together think likeliest.

    With `tree_size` 0 drafts are chains: the path of the merged tree that expects most accepted tokens. Sampled drafts
    are not merged, for a node's law would depend on whether another part drew it too: parts take their likeliest tokens
    where the acceptance rule would have them sample.
    """

    def __init__(self, parts: list[Part], pool: SlotPool):
        # All parts' own scratch: it counts probes too, which stay side by side.
        scratch = sum(part.drafter.needs.scratch for part in parts)
        super().__init__("merged", parts, pool, common_needs(parts, scratch=scratch))

    def order(self, config: SpeculationConfig, part: Part) -> SpeculationConfig:
        sampled = config.draft_sampling == "probabilistic"
        choice = "greedy" if sampled else config.draft_sample_method
        return order_of(config, part.method, part.model, draft_sample_method=choice)

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        drafts: list[list[DraftTree]] = [[] for _ in tasks]
        held = [len(task.table.tail) for task in tasks]
        for index in range(len(self.parts)):
            for place, tree in enumerate(self.ask(index, tasks)):
                drafts[place].append(self.give_back(index, tasks[place], tree, held[place]))
        return [
            merged(trees, nodes=task.nodes, chain=not task.speculation.branches)
            for task, trees in zip(tasks, drafts, strict=True)
        ]


def merged(trees: list[DraftTree], *, nodes: int, chain: bool = False) -> DraftTree:
    """One tree of the `nodes` likeliest guesses of all, or their likeliest chain, and every tree's probes behind it.

    Equal paths become one, with the name of the drafter that came first and the highest chance. Chances are handed on
    where all trees that guess tell them.
    """
    union, places = united([tree.guesses for tree in trees])
    kept = best_path(union, nodes) if chain else best_nodes(union, nodes)
    final = union.only(kept)
    renumbered = {ROOT: ROOT} | {node: i for i, node in enumerate(kept)}
    for tree, place in zip(trees, places, strict=True):
        hang_probes(final, tree, {own: renumbered[node] for own, node in place.items() if node in renumbered})
    if any(tree.chances is None for tree in trees if len(tree.guesses)):
        final.chances = None
    return final


def united(trees: list[DraftTree]) -> tuple[DraftTree, list[dict[int, int]]]:
    """Every path of the trees once, and where each tree's nodes are in it."""
    union, places = DraftTree(chances=[]), []
    known: dict[tuple[int, int], int] = {}
    for tree in trees:
        assert tree.laws is None, "sampled drafts cannot be merged"
        place = {ROOT: ROOT}
        for node, chance in enumerate(told_chances(tree)):
            path = (place[tree.parents[node]], tree.tokens[node])
            if path not in known:
                known[path] = union.add(tree.tokens[node], path[0], tree.drafters[node])
                union.chances.append(chance)
            place[node] = known[path]
            union.chances[place[node]] = max(union.chances[place[node]], chance)
        places.append(place)
    return union, places


def told_chances(tree: DraftTree) -> list[float]:
    """A chance for each node; where the tree tells none, by its rank among its siblings."""
    if tree.chances is not None:
        return tree.chances
    earlier = dict.fromkeys(range(ROOT, len(tree)), 0)
    chances = []
    for parent in tree.parents:
        chances.append(UNTOLD * (1 - UNTOLD) ** earlier[parent])
        earlier[parent] += 1
    return chances


def reaches(tree: DraftTree) -> list[float]:
    """Chance of each node that its whole path is accepted, [N]."""
    reach: list[float] = []
    for parent, chance in zip(tree.parents, tree.chances, strict=True):
        reach.append(chance if parent == ROOT else reach[parent] * chance)
    return reach


def best_nodes(tree: DraftTree, count: int) -> list[int]:
    """The likeliest nodes, ascending: a parent is never less likely than its child, and wins ties by its index."""
    reach = reaches(tree)
    return sorted(sorted(range(len(tree)), key=lambda node: (-reach[node], node))[:count])


def best_path(tree: DraftTree, count: int) -> list[int]:
    """The path of at most `count` nodes that expects most accepted tokens."""
    ends = [ROOT, *(node for node, depth in enumerate(tree.depths) if depth <= count)]
    expected = {ROOT: 0.0}
    for node, reach in enumerate(reaches(tree)):
        expected[node] = expected[tree.parents[node]] + reach
    return tree.path(max(ends, key=lambda end: expected[end]))


def hang_probes(final: DraftTree, tree: DraftTree, place: dict[int, int]) -> None:
    """Add the probes of `tree` whose parents are in `final`; `place` says where its nodes are."""
    for node in range(len(tree) - tree.probes, len(tree)):
        parent = tree.parents[node]
        if parent in place:
            place[node] = final.add(tree.tokens[node], place[parent], tree.drafters[node])
            final.chances.append(0.0)
            final.probes += 1


@register("merged")
def make_merged(config: SpeculationConfig, target: Target) -> MergedDrafter:
    """The merger of `config.drafters`. Raises `ConfigError`, or what making one of them raises."""
    return MergedDrafter(make_parts(config, target), target.pool)
