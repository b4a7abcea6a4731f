"""Grammars that make a model write tool calls in its template's format, in llguidance's form of Lark."""

import json
import re
from collections.abc import Sequence

from foredraft.serving.chat.tool_calls import ToolFormat, parameters_of, plain
from foredraft.serving.chat.xml_calls import END_OF_PARAMETER, kinds_of, properties_of

# What templates themselves write between the parts of an object. Free white space would let a weak model write no end.
SPACING = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def tool_grammar(format: ToolFormat, tools: Sequence, choice, parallel: bool | None = None) -> str | None:
    """The grammar that an answer must follow so that `choice` and `parallel` hold; none where the model is free.

    Args:
        format: The template's, with the markers its vocabulary holds.
        tools: As the request offers them.
        choice: `tool_choice`: none, auto, required, or an object that names a function; not given is auto.
        parallel: False allows one call at most; not given allows several, as a named function always has one.

    Under auto the model is free to write text, but where only one call is allowed, or a tool asks for strict
    arguments, what follows that text is bound.
    """
    parameters = parameters_of(tools)
    named = None if choice is None or isinstance(choice, str) else plain(choice)["function"]["name"]
    forced = named is not None or choice == "required"
    strict = any(plain(tool)["function"].get("strict") for tool in tools)
    if not parameters or choice == "none" or not (forced or parallel is False or strict):
        return None
    offered = {named: parameters[named]} if named is not None else parameters
    several = parallel is not False and named is None
    return GrammarWriter(format, offered, forced=forced, several=several).text()


class GrammarWriter:
    """Writes the grammar of calls of some tools, a rule a line.

    Args:
        parameters: JSON schemas by the tool's name.
        forced: Whether there must be a call; if not, text may stand before it or in its place.
        several: Whether more than one may follow.
    """

    def __init__(self, format: ToolFormat, parameters: dict[str, dict], *, forced: bool, several: bool):
        self.format, self.parameters, self.forced, self.several = format, parameters, forced, several
        self.rules: list[str] = []

    def text(self) -> str:
        writers = {
            "hermes": self.hermes,
            "xml": self.xml,
            "llama": self.llama,
            "mistral": self.mistral,
            "mistral-args": self.mistral_args,
        }
        start = writers[self.format.name]()
        return "\n".join([f"start: {start}", *self.rules]) + "\n"

    def hermes(self) -> str:
        self.rules.append(f"call: {self.objects('arguments')}")
        return self.marked(f'"\\n" call "\\n" {self.literal("</tool_call>")}', joint='"\\n" ')

    def xml(self) -> str:
        functions = [self.function(place, name) for place, name in enumerate(self.parameters)]
        self.rules.append(f"call: {' | '.join(functions)}")
        return self.marked(f'"\\n" call "\\n" {self.literal("</tool_call>")}', joint='"\\n" ')

    def mistral(self) -> str:
        self.rules.append(f"call: {self.objects('arguments')}")
        more = ' (", " call)*' if self.several else ""
        return self.marked(f'" "? "[" call{more} "]"', repeated=False)

    def mistral_args(self) -> str:
        head = self.literal("[ARGS]")
        calls = [
            f"{quoted(name)} {head} {self.json(f'arguments_{place}', schema)}"
            for place, (name, schema) in enumerate(self.parameters.items())
        ]
        self.rules.append(f"call: {' | '.join(calls)}")
        return self.marked("call")

    def llama(self) -> str:
        """One call: the template cannot write several."""
        self.rules.append(f"call: {self.objects('parameters')}")
        if self.forced:
            return "call"
        self.rules.append(r"TEXT: /(?s:\s*[^{\s].*)/")
        return "call | TEXT |"

    def marked(self, body: str, *, joint: str = "", repeated: bool = True) -> str:
        """`body` behind the format's first marker; where several calls are `repeated`, `joint` stands between them."""
        opening = self.format.parser.openings[0]
        marker = self.literal(opening)
        self.rules.append(f"behind: {body}")
        more = f" ({joint}{marker} behind)*" if self.several and repeated else ""
        if self.forced:
            return f"{marker} behind{more}"
        openings = "|".join(map(pattern, self.format.parser.openings))
        self.rules.append(f"TEXT: /(?s:.*)/ & ~/(?s:.*)({openings})(?s:.*)/")
        if opening in self.format.ids:
            return f"TEXT? ({marker} behind{more})?"
        self.rules.append(f"before[suffix={quoted(opening)}]: /(?s:.*)/")
        return f"TEXT | before behind{more}"

    def objects(self, key: str) -> str:
        """A call's object, for any tool."""
        choices = []
        for place, (name, schema) in enumerate(self.parameters.items()):
            begin = f'{{"name": {json.dumps(name)}, "{key}": '
            choices.append(f"{quoted(begin)} {self.json(f'arguments_{place}', schema)} {quoted('}')}")
        return " | ".join(choices)

    def json(self, rule: str, schema: dict) -> str:
        """A rule for JSON of `schema`; what all arguments have in common is that they are an object."""
        whole = {**schema, "type": "object", "x-guidance": SPACING}
        self.rules.append(f"{rule}: %json {json.dumps(whole)}")
        return rule

    def function(self, place: int, name: str) -> str:
        """One tool's tags; parameters stand in the order of its schema."""
        schema = self.parameters[name]
        required = schema.get("required") or []
        parts = [quoted(f"<function={name}>\n")]
        for number, (key, own) in enumerate(properties_of(schema).items()):
            opening = quoted(f"<parameter={key}>\n")
            part = f"{opening} {self.value(f'value_{place}_{number}', own if isinstance(own, dict) else {}, schema)}"
            parts.append(part if key in required else f"({part})?")
        return " ".join([*parts, quoted("</function>")])

    def value(self, rule: str, own: dict, schema: dict) -> str:
        """A parameter's value up to its closing tag. A string's pattern and length stay free."""
        texts = [own["const"]] if "const" in own else own.get("enum")
        if texts is None and kinds_of(own) == {"string"}:
            self.rules.append(f"{rule}[suffix={quoted(END_OF_PARAMETER)}]: /(?s:.*)/")
            return f'{rule} "\\n"'
        if texts is not None and all(isinstance(text, str) for text in texts):
            self.rules.append(f"{rule}: {' | '.join(map(quoted, texts))}")
        else:
            definitions = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
            self.rules.append(f"{rule}: %json {json.dumps({**own, **definitions, 'x-guidance': SPACING})}")
        closing = quoted(f"\n{END_OF_PARAMETER}\n")
        return f"{rule} {closing}"

    def literal(self, marker: str) -> str:
        """A marker: the token of the vocabulary where it has one, its characters otherwise."""
        token = self.format.ids.get(marker)
        return quoted(marker) if token is None else f"<[{token}]>"


def quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def pattern(text: str) -> str:
    """A regular expression for `text`, as Lark has it between slashes."""
    return re.escape(text).replace("/", r"\/")
