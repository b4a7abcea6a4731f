"""Reading a shape as its rank paths."""

from foredraft.core.static_tree import StaticTree


def paths_of(tree: StaticTree) -> list[tuple[int, ...]]:
    paths: list[tuple[int, ...]] = []
    for parent, rank in zip(tree.parents, tree.ranks, strict=True):
        paths.append((*(paths[parent] if parent >= 0 else ()), rank))
    return paths
