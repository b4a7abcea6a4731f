from dataclasses import dataclass, field
from typing import Annotated

import pytest
from cyclopts import App, CycloptsError, Parameter

from foredraft.cli.flags import flags_of, given


@dataclass(frozen=True, kw_only=True)
class Paint:
    """How to paint.

    Attributes:
        layers: How many coats.
        hue: What the tin says.
        shades: Strength by number.
        tins: Their numbers.
        glossy: Whether it shines.
        price: In euros.
    """

    layers: int = 2
    hue: str | None = None
    shades: dict[int, float] = field(default_factory=dict)
    tins: tuple[int, ...] = ()
    glossy: bool = False
    price: float = 9.5


PaintFlags = flags_of(Paint, names={"hue": "--colour"}, omit=("price",))
app = App(default_parameter=Parameter(negative=()))


@app.default
def paint(*, flags: Annotated[PaintFlags, Parameter(name="*")] = PaintFlags()) -> dict:  # noqa: B008
    return given(flags)


def parse(*arguments: str) -> dict:
    return app(arguments, exit_on_error=False, print_error=False, result_action="return_value")


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], {}),
        (["--layers", "2"], {"layers": 2}),
        (["--colour", "red", "--glossy"], {"hue": "red", "glossy": True}),
        (["--shades", '{"3": 1}'], {"shades": {3: 1.0}}),
        (["--tins", "4", "--tins", "-5"], {"tins": (4, -5)}),
    ],
)
def test_only_what_the_command_line_sets_is_given(arguments, values):
    assert parse(*arguments) == values


@pytest.mark.parametrize(
    "arguments",
    [
        ["--layers", "2.0"],
        ["--tins", "x"],
        ["--shades", "[]"],
        ["--shades", '{"a": 1}'],
        ["--hue", "red"],
        ["--price", "1"],
        ["--layers", "1", "--layers", "2"],
    ],
)
def test_other_values_and_flags_are_refused(arguments):
    with pytest.raises(CycloptsError):
        parse(*arguments)


def test_help_comes_from_the_docstring(capsys):
    parse("--help")
    shown = " ".join(capsys.readouterr().out.split())
    assert "How many coats. [default: 2]" in shown
    assert "--colour" in shown and "What the tin says." in shown
    assert shown.count("default") == 1  # values that mean nothing is set are not shown
