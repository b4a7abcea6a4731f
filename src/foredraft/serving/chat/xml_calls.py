"""Tool calls whose parameters stand in tags of their own, one a parameter, as Qwen3-coder writes them."""

import json

from foredraft.serving.chat.call_parser import CallParser

HEAD = 200  # characters within which a name must have ended
FUNCTION, PARAMETER = "<function=", "<parameter="
END_OF_FUNCTION, END_OF_PARAMETER = "</function>", "</parameter>"


class XmlParser(CallParser):
    """`<tool_call><function=name><parameter=key>value</parameter></function></tool_call>`.

    The outer tag may be missing. Arguments are made into JSON, a parameter at a time: a value is a string unless the
    tool's schema says otherwise.
    """

    openings = ("<tool_call>", FUNCTION)

    def __init__(self, tools):
        super().__init__(tools)
        self.schemas: dict[str, dict] = {}
        self.written = 0

    def call(self) -> bool:
        if self.opened.endswith(FUNCTION):
            self.state = self.function
            return True
        follows = self.next_is(FUNCTION)
        if follows:
            self.opened += self.skip(FUNCTION)
            return True
        return follows is not None and self.give_back()

    def function(self) -> bool:
        head = self.buffer[:HEAD]
        size = head.find(">")
        if size < 0:
            return (len(head) == HEAD or self.ended) and self.give_back()
        name = head[:size].strip()
        if name not in self.tools:
            return self.give_back()
        self.take(size + 1)
        self.begin(name)
        self.schemas, self.written = properties_of(self.tools[name]), 0
        self.state = self.body
        return True

    def body(self) -> bool:
        """Between two parameters."""
        more, over = self.next_is(PARAMETER), self.next_is(END_OF_FUNCTION)
        if over:
            self.skip(END_OF_FUNCTION)
            self.arguments("}" if self.written else "{}")
            self.state = self.behind
        elif more:
            self.state = self.parameter
        elif more is None or over is None:
            return False
        else:
            self.state = self.text
        return True

    def parameter(self) -> bool:
        """A parameter from its tag on."""
        end = self.buffer.find(END_OF_PARAMETER)
        if end < 0:
            if self.ended:
                self.state = self.text
            return self.ended
        key, named, value = self.buffer[:end].partition(PARAMETER)[2].partition(">")
        if not named:
            self.state = self.text
            return True
        self.take(end + len(END_OF_PARAMETER))
        value = value.removeprefix("\n").removesuffix("\n")
        text = value_text(value, self.schemas.get(key.strip(), {"type": "string"}))
        self.arguments(f"{', ' if self.written else '{'}{json.dumps(key.strip(), ensure_ascii=False)}: {text}")
        self.written += 1
        self.state = self.body
        return True

    def behind(self) -> bool:
        return self.close("</tool_call>")


def properties_of(parameters: dict) -> dict[str, object]:
    """Schemas of a tool's parameters by name."""
    properties = parameters.get("properties")
    return properties if isinstance(properties, dict) else {}


def value_text(value: str, schema: object) -> str:
    """`value` as JSON text: as it stands where it is of a kind the schema allows, as a string otherwise."""
    kinds = kinds_of(schema)
    try:
        kind = kind_of(json.loads(value, parse_constant=not_json))
    except (ValueError, RecursionError):
        kind = "string"
    fits = not kinds or kind in kinds or (kind == "integer" and "number" in kinds)
    return value.strip() if kind != "string" and fits else json.dumps(value, ensure_ascii=False)


def not_json(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON")


def kinds_of(schema: object) -> set[str]:
    """Kinds of JSON value that `schema` speaks of; empty where it does not say, or is no schema."""
    if not isinstance(schema, dict):
        return set()
    said = schema.get("type")
    kinds = {kind for kind in (said if isinstance(said, list) else [said]) if isinstance(kind, str)}
    kinds |= {kind_of(value) for value in listed(schema, "enum")}
    kinds |= {kind_of(schema["const"])} if "const" in schema else set()
    return kinds.union(*(kinds_of(choice) for choice in [*listed(schema, "anyOf"), *listed(schema, "oneOf")]))


def listed(schema: dict, key: str) -> list:
    value = schema.get(key)
    return value if isinstance(value, list) else []


def kind_of(value: object) -> str:
    """The name JSON schemas have for a value's kind."""
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")
