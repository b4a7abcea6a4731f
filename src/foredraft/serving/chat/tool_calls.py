"""Ways to write tool calls that chat templates teach: which one a template has, and reading an answer by it."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from transformers import PreTrainedTokenizerBase

from foredraft.serving.chat.call_parser import CallParser
from foredraft.serving.chat.call_parts import ToolCall, assemble
from foredraft.serving.chat.json_calls import HermesParser, LlamaParser, MistralParser
from foredraft.serving.chat.xml_calls import XmlParser


@dataclass(frozen=True, kw_only=True, slots=True)
class ToolFormat:
    """One way to write tool calls.

    Attributes:
        name: hermes, llama, mistral (a list behind one marker), mistral-args (a marker for each call) or xml.
        parser: Reads it.
        markers: Texts that a vocabulary may hold as one token.
        ids: Those that the target's vocabulary holds so.
        hidden: Those of them that have no text, as special tokens have none.
        short_ids: Whether the template takes ids of calls with nine characters alone.
    """

    name: str
    parser: type[CallParser]
    markers: tuple[str, ...] = ()
    ids: Mapping[str, int] = field(default_factory=dict)
    hidden: frozenset[str] = frozenset()
    short_ids: bool = False

    @property
    def hidden_markers(self) -> dict[int, str]:
        """Markers without text by id."""
        return {self.ids[marker]: marker for marker in self.hidden}

    def stream(self, tools: Sequence) -> CallParser:
        """A parser for one answer, for `tools` as the request offered them."""
        return self.parser(parameters_of(tools))

    def parse(self, text: str, tools: Sequence) -> tuple[str, list[ToolCall]]:
        """Content and calls of a whole answer."""
        parser = self.stream(tools)
        return assemble([*parser.push(text), *parser.finish()])


def plain(part) -> dict:
    """A part of a request as a dictionary, without what is not given."""
    return part if isinstance(part, dict) else part.model_dump(exclude_none=True)


def parameters_of(tools: Sequence) -> dict[str, dict]:
    """JSON schema of each tool's parameters by its name."""
    functions = [plain(tool)["function"] for tool in tools]
    return {function["name"]: function.get("parameters") or {} for function in functions}


TAGS = ("<tool_call>", "</tool_call>")
MARKS = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")
XML = ToolFormat(name="xml", parser=XmlParser, markers=TAGS)
HERMES = ToolFormat(name="hermes", parser=HermesParser, markers=TAGS)
MISTRAL = ToolFormat(name="mistral", parser=MistralParser, markers=MARKS)
MISTRAL_ARGS = replace(MISTRAL, name="mistral-args")
LLAMA = ToolFormat(name="llama", parser=LlamaParser)
SIGNS: list[tuple[ToolFormat, Callable[[str], bool]]] = [  # the first whose sign a template has
    (XML, lambda text: "<function=" in text and "<parameter=" in text),
    (HERMES, lambda text: "<tool_call>" in text and "arguments" in text and "<arg_key>" not in text),
    (MISTRAL_ARGS, lambda text: "[TOOL_CALLS]" in text and "[ARGS]" in text),
    (MISTRAL, lambda text: "[TOOL_CALLS]" in text),
    (LLAMA, lambda text: re.search(r'\{"name": [^{}\n]{1,60}"parameters":', text) is not None),
]


def format_of(template: str) -> ToolFormat | None:
    """The way to write calls that a chat template teaches; none where it knows no tools, or a way not known here."""
    text = template.replace('\\"', '"')
    if not re.search(r"\btools\b", text):
        return None
    found = next((known for known, has_sign in SIGNS if has_sign(text)), None)
    return found and replace(found, short_ids="length 9" in text)


def tool_format(tokenizer: PreTrainedTokenizerBase | None) -> ToolFormat | None:
    """The format of a tokenizer's chat template, with the markers that its vocabulary holds as tokens."""
    if tokenizer is None or not tokenizer.chat_template:
        return None
    found = format_of(tool_template(tokenizer))
    if found is None:
        return None
    added = {token.content: (id, token.special) for id, token in tokenizer.added_tokens_decoder.items()}
    known = {marker: added[marker] for marker in found.markers if marker in added}
    hidden = frozenset(marker for marker, (_, special) in known.items() if special)
    return replace(found, ids={marker: id for marker, (id, _) in known.items()}, hidden=hidden)


def active_format(request, tokenizer: PreTrainedTokenizerBase | None) -> ToolFormat | None:
    """How the answer to a `ChatRequest` may call tools; none where it may not."""
    return tool_format(tokenizer) if request.tools and request.tool_choice != "none" else None


def tool_template(tokenizer: PreTrainedTokenizerBase) -> str:
    """The template that conversations with tools go through."""
    templates = tokenizer.chat_template
    if isinstance(templates, str):
        return templates
    return templates.get("tool_use", templates.get("default", ""))
