import io

import pytest
from rich.console import Console
from transformers import AutoTokenizer

from foredraft.cli.reporters import ScreenReporter
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.engine.output import TokenEvent


def event(tokenizer, text, sources, end):
    tokens = tokenizer(text)["input_ids"]
    return TokenEvent(index=0, sample=0, tokens=tokens, sources=sources, text=text, finish_reason=end)


@pytest.fixture
def show(model):
    """What the screen holds after events, on a terminal or not."""
    tokenizer = AutoTokenizer.from_pretrained(model)

    def shown(*events, terminal: bool) -> str:
        colours = "standard" if terminal else None
        console = Console(file=io.StringIO(), force_terminal=terminal, color_system=colours, width=20)
        reporter = ScreenReporter(console, tokenizer, SpeculationConfig(method="ngram"))
        for text, sources, end in events:
            reporter.token(event(tokenizer, text, sources, end), "")
        return console.file.getvalue()

    return shown


def test_drafted_tokens_are_coloured_and_the_targets_own_are_not(show):
    out = show(("abc", ["ngram", "ngram", None], None), ("d", ["suffix"], "stop"), terminal=True)
    pieces = out.removesuffix("\n").split("\x1b[")
    assert [piece.split("m", 1)[-1] for piece in pieces] == ["", "ab", "c", "d", ""]
    first, second = pieces[1].split("m")[0], pieces[3].split("m")[0]
    assert first != second and "0" not in (first, second)


def test_without_a_terminal_the_text_is_plain_and_never_wrapped(show):
    long = "[b]x[/b] " * 10
    assert show((long, ["ngram"] * len(long), "stop"), terminal=False) == long + "\n"
