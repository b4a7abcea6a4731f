"""What calls of drafters were found to cost, and what that says of calls that nobody had time to measure."""

from collections.abc import Mapping

from foredraft.core.speculation_config import SpeculationConfig

Found = dict[str, dict[int, float]]  # seconds by label and requests


def in_turn(options: Mapping[str, SpeculationConfig], found: Found, instant: Mapping[str, bool]) -> list[str]:
    """Labels by what a drafted token has been found to cost, the cheapest of each drafter before all others; but last
    those drafters that take next to nothing."""
    costs = {label: (instant[label], found[label].get(1, 0.0) / config.depth) for label, config in options.items()}
    ordered = sorted(options, key=costs.__getitem__)
    first = {drafter_of(options[label]): label for label in reversed(ordered)}
    return sorted(ordered, key=lambda label: (instant[label], first[drafter_of(options[label])] != label))


def fill_in(found: Found, options: Mapping[str, SpeculationConfig], requests: int) -> None:
    """Let what nobody had time to measure for so many requests grow as other calls of its drafter do."""
    more = {drafter_of(options[label]): costs for label, costs in found.items() if costs.get(1) and requests in costs}
    for label, costs in found.items():
        alike = more.get(drafter_of(options[label]))
        if alike and requests not in costs and 1 in costs:
            costs[requests] = costs[1] * alike[requests] / alike[1]


def calm(found: Found, options: Mapping[str, SpeculationConfig], requests: int) -> None:
    """No draft takes longer than a longer or wider one of its drafter: where it seems to, the machine was elsewhere."""
    known = [label for label, costs in found.items() if requests in costs]
    for label in known:
        own = options[label]
        larger = [
            other for other in known if drafter_of(options[other]) == drafter_of(own) and holds(options[other], own)
        ]
        found[label][requests] = min(found[other][requests] for other in larger)


def holds(larger: SpeculationConfig, draft: SpeculationConfig) -> bool:
    """Whether drafting by `larger` does all that drafting by `draft` does, and perhaps more."""
    alike = larger.tree_size == draft.tree_size and larger.speculative_token_tree == draft.speculative_token_tree
    return larger.depth >= draft.depth and (alike or not draft.branches)


def drafter_of(config: SpeculationConfig) -> tuple:
    return config.method, config.model, config.drafters
