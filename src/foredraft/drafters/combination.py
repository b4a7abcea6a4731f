"""What combinations of drafters share: whom they ask, in whose terms, and what each is told of a step."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.drafter_names import drafter_names
from foredraft.core.errors import require
from foredraft.core.outcome import Verdict
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import Drafter, DrafterNeeds, DraftTask, Observation, make_drafter
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import Target

COMBINATIONS = ("cascade", "merged")


@dataclass(frozen=True, slots=True)
class Part:
    """One drafter of a combination, and how its config calls it."""

    drafter: Drafter
    method: str
    model: str | None


class Combination:
    """Several drafters as one.

    Attributes:
        name: The combination's own; nodes carry the name of the part that made them.
        needs: What all parts together ask of the engine.
        parts: Its drafters, in the order given.
        pool: Where parts take slots from.
        given_up: By request, the parts whose slots of this step's draft were given back: nothing that such a part has
            stored for its nodes will last, whatever is accepted.
    """

    def __init__(self, name: str, parts: Sequence[Part], pool: SlotPool, needs: DrafterNeeds):
        self.name, self.needs, self.parts, self.pool = name, needs, list(parts), pool
        self.given_up: dict[int, set[int]] = {}

    def ask(self, index: int, tasks: list[DraftTask]) -> list[DraftTree]:
        """The drafts of part `index`."""
        part = self.parts[index]
        orders = [replace(task, speculation=self.order(task.speculation, part)) for task in tasks]
        return part.drafter.propose(orders)

    def order(self, config: SpeculationConfig, part: Part) -> SpeculationConfig:
        """How a part is asked to draft where the combination is asked by `config`."""
        return order_of(config, part.method, part.model)

    def give_back(self, index: int, task: DraftTask, tree: DraftTree, held: int) -> DraftTree:
        """The draft of part `index` without slots; of those of the request's step the first `held` stay taken."""
        freed = task.table.tail[held:]
        if freed:
            self.pool.release(freed)
            del task.table.tail[held:]
            self.given_up.setdefault(task.request.id, set()).add(index)
        return replace(tree, slots=None)

    def observe(self, observations: list[Observation]) -> None:
        """Tell every part of the step as the engine would; of mere prompt chunks only where it needs their features."""
        lost = [self.given_up.pop(seen.request.id, set()) for seen in observations]
        for index, part in enumerate(self.parts):
            told = [
                self.told(part, seen, index in given_up)
                for seen, given_up in zip(observations, lost, strict=True)
                if seen.verdict is not None or part.drafter.needs.features
            ]
            if told:
                part.drafter.observe(told)

    def told(self, part: Part, seen: Observation, given_up: bool) -> Observation:
        """A step as one part sees it: the whole tree, or as if nothing had been drafted where its slots are lost."""
        needs = part.drafter.needs
        rows = seen.successors if needs.successors else None
        own = replace(
            seen,
            features=self.columns(seen.features, needs.features),
            successors=rows and [row[: needs.successors] for row in rows],
        )
        if not given_up:
            return own
        first = seen.tree.tokens[seen.path[0]] if seen.path else seen.verdict.token
        return replace(own, tree=DraftTree(), verdict=Verdict([], first), successors=rows and own.successors[:1])

    def columns(self, features: tuple[Tensor, ...], wanted: tuple[int, ...]) -> tuple[Tensor, ...]:
        """Of the combination's features the wanted ones, in the order wanted."""
        own = dict(zip(self.needs.features, features, strict=True))
        return tuple(own[boundary] for boundary in wanted)

    def close(self, request: Request) -> None:
        self.given_up.pop(request.id, None)
        for part in self.parts:
            part.drafter.close(request)


@lru_cache(maxsize=256)
def order_of(config: SpeculationConfig, method: str, model: str | None, **changes) -> SpeculationConfig:
    return replace(config, method=method, model=model, drafters="", **changes)


def common_needs(parts: Sequence[Part], **own) -> DrafterNeeds:
    """Needs that meet those of all parts; `own` are the combination's."""
    needs = [part.drafter.needs for part in parts]
    deepest = [each.deepest for each in needs]
    return DrafterNeeds(
        features=tuple(sorted({boundary for each in needs for boundary in each.features})),
        successors=max(each.successors for each in needs),
        instant=all(each.instant for each in needs),
        stepwise=any(each.stepwise for each in needs),
        deepest=None if None in deepest else max(deepest),
        prediction=any(each.prediction for each in needs),
        drafters=True,
        **own,
    )


def make_parts(config: SpeculationConfig, target: Target) -> list[Part]:
    """The drafters that `config.drafters` names. Raises `ConfigError` for a list that makes no combination."""
    method, listed = config.method, config.drafters
    names = drafter_names(listed)
    require(
        len(names) > 1 and all(method or model for method, model in names),
        f"drafters is {listed!r}; method {method} needs two or more with commas between them, such as 'suffix, dflash'",
    )
    require(len(set(names)) == len(names), f"drafters is {listed!r}; it names one twice")
    require(
        config.model is None,
        f"model is {config.model!r}; method {method} takes models beside its drafters, such as draft_model:tiny-draft",
    )
    return [make_part(method, model, config, target) for method, model in names]


def make_part(method: str, model: str | None, config: SpeculationConfig, target: Target) -> Part:
    require(
        method not in COMBINATIONS,
        f"drafters is {config.drafters!r}; a combination holds drafters, not another combination such as {method!r}",
    )
    own = replace(config, method=method, model=model, drafters="").drafter_key
    return Part(make_drafter(own, target), method, model)
