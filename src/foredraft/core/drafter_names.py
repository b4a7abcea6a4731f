"""Drafters named in one line: what `SpeculationConfig.drafters` holds."""


def drafter_names(listed: str) -> list[tuple[str, str | None]]:
    """Method and model of each of the names between commas, method or method:model; what is left out is empty."""
    pairs = [name.partition(":") for name in listed.split(",")]
    return [(method.strip(), model.strip() or None) for method, _, model in pairs]


def same_names(listed: str) -> str:
    """The names written in one way, whatever the spaces around them."""
    return ", ".join(f"{method}:{model}" if model else method for method, model in drafter_names(listed))
