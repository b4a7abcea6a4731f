"""The extension's loop of an autoregressive drafter written again, a run and a choice at a time."""

from dataclasses import dataclass, field
from math import exp

import torch
from torch import Tensor

from foredraft.heads.draft_loop import Grown, LoopOrder
from foredraft.sampling.noise import gumbel_rows


def draft(
    program, cache, orders, features, ids, width, first_skip, skip, *, vocabulary: int, hidden: int
) -> list[Grown]:
    """As `foredraft_native.draft`, every row in a run of its own.

    `vocabulary` is the number of logits of a program without `ids`, `hidden` how many numbers a row hands on.
    """
    columns = vocabulary if ids is None else len(ids)
    runs = SingleRuns(program, cache, columns, hidden, {True: first_skip, False: skip})
    drafts, start = [], 0
    for parts in orders:
        order = LoopOrder(*parts)
        rows = slice(start, start + len(order.pending))
        mine = None if features is None else features[rows].contiguous()
        drafts.append(Growing(runs, order, ids, width, features=mine))
        start = rows.stop
    going = drafts
    while going:
        for one in going:
            one.grow()
        going = [one for one in going if one.frontier]
        if any(one.order.steps for one in drafts):
            going = growing_together(drafts, going)
        elif not any(is_free(one) for one in going):
            going = going if sum(one.worth for one in going) >= max((one.order.run for one in going), default=0) else []
        for one in going:
            one.run_frontier()
    least = least_of(drafts)
    return [one.kept(least) for one in drafts]


def growing_together(drafts: list["Growing"], going: list["Growing"]) -> list["Growing"]:
    """The chains that go on: every number of the likeliest, and of levels, tried; and those that are free."""
    order = max((one.order for one in drafts), key=lambda order: len(order.steps))
    bound, paying = [one for one in going if is_free(one)], [one for one in going if not is_free(one)]
    likeliest = sorted(paying, key=lambda one: -one.order.onward * one.chance(one.frontier[0]))
    nodes = sum(len(one.tokens) for one in drafts)

    def value(count: int, levels: int) -> float:
        gain, rows = 0.0, 0
        for one in likeliest[:count]:
            own = range(1, min(levels, one.left) + 1)
            gain += sum(one.order.onward**level for level in own) * one.chance(one.frontier[0])
            rows += len(own)
        anyhow = nodes + sum(min(levels, one.left) for one in bound)
        runs = len([level for level in range(levels) if all(one.left <= level for one in bound)])
        return gain - (cost_of(order, anyhow + rows) - cost_of(order, anyhow)) - runs * order.run

    deepest = max((one.left for one in paying), default=0)
    found = [(value(count + 1, level + 1), count + 1) for level in range(deepest) for count in range(len(paying))]
    best, count = max(found, default=(-1.0, 0))
    return [one for one in going if one in bound or (best >= 0 and one in likeliest[:count])]


def is_free(one: "Growing") -> bool:
    return one.order.run == 0 and not one.order.steps


def cost_of(order: LoopOrder, nodes: int) -> float:
    last = len(order.steps) - 1
    return order.steps[nodes] if nodes <= last else order.steps[-1] * nodes / last


def least_of(drafts: list["Growing"]) -> float:
    """The chance of the last node verified of all that were drafted together."""
    order = max((one.order for one in drafts), key=lambda order: len(order.steps))
    if not order.steps:
        return 0.0
    nodes = [(one, node) for one in drafts for node in range(len(one.tokens))]
    chances = sorted((one.chance(node) for one, node in nodes if not is_free(one)), reverse=True)
    beside = len(nodes) - len(chances)
    worth = [sum(chances[:count]) - cost_of(order, beside + count) for count in range(len(chances) + 1)]
    best = max(range(len(worth)), key=lambda count: (worth[count], count))
    return chances[best - 1] if best else float("inf")


@dataclass
class Growing:
    """One draft while it grows; node -1 is the root."""

    runs: "SingleRuns"
    order: LoopOrder
    ids: Tensor | None
    width: int
    features: Tensor | None = None
    frontier: list[int] = field(default_factory=lambda: [-1])
    tokens: list[int] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    gains: list[float] = field(default_factory=list)
    places: dict[int, int] = field(default_factory=dict)
    said: dict[int, tuple[Tensor, Tensor | None]] = field(default_factory=dict)

    def grow(self) -> None:
        """A level below the frontier, and the next frontier."""
        order = self.order
        if not self.said:
            self.said[-1] = self.runs(order, order.pending, [], self.features, first=True)
        depth = len(self.path(self.frontier[0]))
        fresh = [node for parent in self.frontier for node in self.children(parent, depth)]
        likely = [node for node in fresh if self.goes_on(node) and depth < order.depth - 1]
        self.frontier = sorted(sorted(likely, key=lambda node: -self.score(node))[: order.width])

    def goes_on(self, node: int) -> bool:
        sure = self.order.width > 1 or self.gains[node] >= self.order.least
        return sure and self.worth_behind(node) >= 0

    def worth_behind(self, node: int) -> float:
        return self.order.onward * self.chance(node) - self.order.row

    def chance(self, node: int) -> float:
        return exp(self.order.candour * self.score(node))

    @property
    def left(self) -> int:
        return self.order.depth - len(self.path(self.frontier[0]))

    @property
    def worth(self) -> float:
        return sum(map(self.worth_behind, self.frontier))

    def run_frontier(self) -> None:
        for node in self.frontier:
            self.run(node)

    def children(self, parent: int, depth: int) -> list[int]:
        values = self.said[parent][0][: self.width].float() / self.order.divisor
        if self.order.noise:
            values = values + noise(self.order.noise[depth], values, self.ids)
        best, first = values.topk(min(self.order.width, len(values))).indices.tolist(), len(self.tokens)
        for token in best:
            self.tokens.append(token if self.ids is None else int(self.ids[token]))
            self.parents.append(parent)
            self.gains.append(float(values.log_softmax(-1)[token]))
        return list(range(first, first + len(best)))

    def path(self, node: int) -> list[int]:
        return [] if node < 0 else [*self.path(self.parents[node]), node]

    def score(self, node: int) -> float:
        return sum(self.gains[each] for each in self.path(node))

    def run(self, node: int) -> None:
        self.places[node] = len(self.places)
        behind = [self.order.room[self.places[each]] for each in self.path(node)]
        given = self.said[self.parents[node]][1]
        self.said[node] = self.runs(self.order, self.tokens[node : node + 1], behind, given, first=False)

    def kept(self, least: float = 0.0) -> Grown:
        likely = [node for node in range(len(self.tokens)) if is_free(self) or self.chance(node) >= least]
        every = sorted(likely, key=lambda node: (-self.score(node), len(self.path(node)), node))
        kept = sorted(every[: self.order.nodes])
        now = {-1: -1} | {node: place for place, node in enumerate(kept)}
        return Grown(
            [self.tokens[node] for node in kept],
            [now[self.parents[node]] for node in kept],
            [self.gains[node] for node in kept],
            [self.places.get(node, -1) for node in kept],
        )


def noise(key: int, values: Tensor, ids: Tensor | None) -> Tensor:
    if ids is None:
        return gumbel_rows(torch.tensor([key]), len(values))[0]
    return gumbel_rows(torch.tensor([key]), int(ids.max()) + 1)[0][ids]


class SingleRuns:
    """Runs rows of one draft by themselves."""

    def __init__(self, program, cache, columns: int, hidden: int, skips: dict[bool, list[int]]):
        self.program, self.cache, self.columns, self.hidden, self.skips = program, cache, columns, hidden, skips

    def __call__(
        self, order: LoopOrder, tokens: list[int], behind: list[int], given: Tensor | None, *, first: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Logits of the last of `tokens`, the pending ones or a single node, and what its row hands on; `behind` are
        the slots of a node's path, its own the last."""
        count, dtype = len(tokens), given.dtype if given is not None else torch.float32
        said, handed = torch.empty(1, self.columns, dtype=dtype), torch.empty(1, self.hidden, dtype=dtype)
        stored = order.context + len(order.pending)
        own = range(order.first, order.first + stored) if order.slots is None else torch.as_tensor(order.slots).tolist()
        slots = torch.tensor([*own, *behind])
        context = len(slots) - count
        rows = (tokens, list(range(context, len(slots))), slots[context:].tolist())
        inputs, output = ([given], handed) if given is not None else ([], None)
        segment, wanted = (0, count, context, -1, slots, None), [count - 1]
        self.program.run(self.cache, *rows, [segment], wanted, [], [], said, inputs, output, self.skips[first])
        return said[0], output
