"""Tool calls that are JSON objects of a name and arguments, in the three wrappings models were trained on."""

import json
import re

from foredraft.serving.chat.call_parser import CallParser
from foredraft.serving.chat.json_scanner import JsonScanner

W = r"[ \t\r\n]*"
HEADER = re.compile(
    rf'\{{{W}(?:"type"{W}:{W}"function"{W},{W})?"name"{W}:{W}"([^"\\]*)"{W},{W}"(?:arguments|parameters)"{W}:{W}(?=\{{)'
)
NAMED = re.compile(r"\s*([\w.-]+)(?:\[CALL_ID\]\w+)?(?:\[ARGS\])?\s*")
HEAD = 200  # characters within which a name must have ended


class JsonCallParser(CallParser):
    """Reads a call's object. Arguments are passed on while they come where the name stands before them."""

    def __init__(self, tools):
        super().__init__(tools)
        self.scanner, self.floor = JsonScanner(), 0

    def call(self) -> bool:
        """White space, then an object."""
        follows = self.next_is("{")
        if follows:
            self.opened += self.skip("")
            self.state = self.object
            return True
        return follows is not None and self.give_back()

    def object(self) -> bool:
        """An object that may be a call, from its bracket on."""
        header = HEADER.match(self.buffer)
        if header is None:
            return self.odd_object()
        if header[1] not in self.tools:
            return self.give_back()
        self.scanner, self.floor = JsonScanner(), 1
        self.scanner.push(self.take(header.end()))
        self.begin(header[1])
        self.state = self.streamed_arguments
        return True

    def odd_object(self) -> bool:
        """An object with its keys in another order: it is read as a whole."""
        scanner = JsonScanner()
        size = scanner.push(self.buffer)
        whole = scanner.depth == 0 and not scanner.failed
        call = whole_call(self.buffer[:size]) if whole else None
        if call is not None and call[0] in self.tools:
            self.take(size)
            self.begin(call[0])
            self.arguments(call[1])
            self.state = self.after_object
            return True
        return (whole or scanner.failed or self.ended) and self.give_back()

    def streamed_arguments(self) -> bool:
        ready = self.scanner.push(self.buffer, floor=self.floor)
        self.arguments(self.take(ready))
        if self.scanner.failed or self.ended and not self.buffer:
            self.state = self.text
        elif self.scanner.depth == self.floor:
            self.state = self.rest_of_object if self.floor else self.after_object
        else:
            return False
        return True

    def rest_of_object(self) -> bool:
        """Behind the arguments: the object's end, and keys that say nothing about the call."""
        self.take(self.scanner.push(self.buffer))
        if self.scanner.failed or self.ended and not self.buffer:
            self.state = self.text
        elif self.scanner.depth == 0:
            self.state = self.after_object
        else:
            return False
        return True

    def after_object(self) -> bool:
        """What may follow a call's object."""
        raise NotImplementedError


class HermesParser(JsonCallParser):
    """`<tool_call>{"name": ..., "arguments": {...}}</tool_call>`."""

    openings = ("<tool_call>",)

    def after_object(self) -> bool:
        return self.close("</tool_call>")


class LlamaParser(JsonCallParser):
    """`{"name": ..., "parameters": {...}}` from the text's beginning on, several separated by semicolons."""

    tag = "<|python_tag|>"

    def __init__(self, tools):
        super().__init__(tools)
        self.state = self.beginning

    def beginning(self) -> bool:
        """A text that does not begin with an object has no calls."""
        tagged = self.next_is(self.tag)
        if tagged is None:
            return False
        self.opened = self.skip(self.tag) if tagged else ""
        self.state = self.call
        return True

    def after_object(self) -> bool:
        separated, another = self.next_is(";"), self.next_is("{")
        if separated:
            self.opened = self.skip(";")
        if separated or another:
            self.state = self.call
            return True
        if separated is None or another is None:
            return False
        self.state = self.text
        return True


class MistralParser(JsonCallParser):
    """`[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, or `[TOOL_CALLS]name[ARGS]{...}` for each call."""

    openings = ("[TOOL_CALLS]",)

    def __init__(self, tools):
        super().__init__(tools)
        self.listed = False

    def call(self) -> bool:
        self.listed = bool(self.next_is("["))
        if self.listed:
            self.opened += self.skip("[")
            self.state = super().call
            return True
        return self.named_call()

    def named_call(self) -> bool:
        head = self.buffer[:HEAD]
        size = head.find("{")
        if size < 0:
            return (len(head) == HEAD or self.ended) and self.give_back()
        named = NAMED.fullmatch(head[:size])
        if named is None or named[1] not in self.tools:
            return self.give_back()
        self.take(size)
        self.begin(named[1])
        self.scanner, self.floor = JsonScanner(), 0
        self.state = self.streamed_arguments
        return True

    def after_object(self) -> bool:
        if not self.listed:
            self.state = self.text
            return True
        if self.next_is(","):
            self.opened = self.skip(",")
            self.state = super().call
            return True
        return self.close("]")


def whole_call(text: str) -> tuple[str, str] | None:
    """Name and arguments of a call's object; none where it is no call."""
    try:
        value = json.loads(text)
        arguments = next((value[key] for key in ("arguments", "parameters") if key in value), None)
        spelled = isinstance(arguments, str)
        told = json.loads(arguments) if spelled else arguments
    except (ValueError, RecursionError):
        return None
    name = value.get("name")
    if not isinstance(name, str) or not isinstance(told, dict):
        return None
    return name, arguments if spelled else json.dumps(arguments, ensure_ascii=False)
