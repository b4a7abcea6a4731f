"""System against system: each at its plain decoding and its best speculation, ours over the best peer."""

from collections.abc import Mapping, Sequence
from statistics import geometric_mean

from generate_peers import OURS, SYSTEMS
from summary import ALL, Turn, ratios, unlike

Group = Mapping[str, Mapping]  # figures by contestant


def compare(turns: Sequence[Turn], groups: Mapping[str, Group]) -> dict:
    """By workload and on the geometric mean over workloads; and whose texts are the same.

    A contestant is the best of several by its median ratio to foredraft plain on the same prompt in the same round.
    """
    its = {name: [turn for turn in turns if turn.workload == name] for name in groups if name != ALL}
    workloads = {name: compared(some, groups[name]) for name, some in its.items()}
    return {"workloads": workloads, "mean": mean(list(workloads.values())), "texts": texts(turns)}


def compared(turns: Sequence[Turn], group: Group) -> dict:
    """Every system on one workload: tokens a second, and who was its best."""
    present = {system: [name for name in ways if name in group] for system, ways in SYSTEMS.items()}
    systems = {system: system_figures(names, group) for system, names in present.items() if names}
    ours = systems[OURS]["best_by"]
    peer = best([its["best_by"] for system, its in systems.items() if system != OURS], group)
    lead = ratios(turns, ours, peer, lambda sample: sample.speed)
    return {"systems": systems, "ours": ours, "best_peer": peer, "lead": lead}


def system_figures(names: Sequence[str], group: Group) -> dict:
    """Tokens a second of plain decoding and of the best speculation, none where there is none."""
    plain = [name for name in names if is_plain(name)]
    speculation = best([name for name in names if not is_plain(name)], group)
    return {
        "plain": tokens_a_second(plain[0], group) if plain else None,
        "speculation": tokens_a_second(speculation, group) if speculation else None,
        "speculation_by": speculation,
        "best_by": best(names, group),
    }


def is_plain(name: str) -> bool:
    return any(name == next(iter(ways)) for ways in SYSTEMS.values())


def best(names: Sequence[str], group: Group) -> str | None:
    return max(names, key=lambda name: group[name]["ratio"]["median"], default=None)


def tokens_a_second(name: str, group: Group) -> float:
    return group[name]["tokens_per_second"]["median"]


def mean(workloads: Sequence[Mapping]) -> dict:
    """Geometric means over workloads: of every system's tokens a second, and of our lead."""
    systems = {
        system: {part: geometric_mean_of([one["systems"][system][part] for one in workloads]) for part in PARTS}
        for system in workloads[0]["systems"]
    }
    return {"systems": systems, "lead": geometric_mean(one["lead"]["median"] for one in workloads)}


PARTS = ("plain", "speculation")


def geometric_mean_of(values: Sequence[float | None]) -> float | None:
    return None if None in values else geometric_mean(values)


def texts(turns: Sequence[Turn]) -> dict:
    """Prompts, and on how many of them each contestant wrote what others did, in every round."""
    count = len({(turn.workload, turn.prompt) for turn in turns})
    present, like = turns[0].samples, {}
    for ways in SYSTEMS.values():
        own, ours = next(iter(ways)), next(iter(SYSTEMS[OURS]))
        for name in (name for name in ways if name in present):
            like[name] = {"foredraft_plain": count - unlike(turns, name, ours)}
            like[name]["own_plain"] = count - unlike(turns, name, own) if own in present else None
    return {"prompts": count, "like": like}
