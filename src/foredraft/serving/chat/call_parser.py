"""What the parsers of all formats share: text that is no call, and the beginning and end of calls."""

from collections.abc import Mapping

from foredraft.sampling.stopping import overlap
from foredraft.serving.chat.call_parts import CallPart, ContentPart, Part, new_call_id


class CallParser:
    """Tells content from tool calls in a text that comes in pieces.

    What it tells does not depend on where the text is cut: every decision reads a beginning of the whole text. Text
    that might become a call is held back. It becomes content, as it stands, when it turns out to be none: no call, or
    a call of a tool that was not offered. Once the name of a call is told, its arguments are passed on as they come.
    Where they break off, the call keeps what it has, and content goes on with the first character that does not fit.
    White space around calls is part of their form.

    A state is a method that reads from the buffer and says whether it got any further.

    Args:
        tools: JSON schemas of the parameters of each tool that was offered, by name.

    Attributes:
        openings: Texts that may begin a call, each complete in itself.
        buffer: Text that is not told yet.
        opened: Text that has begun what may be a call, to be given back where it is none.
    """

    openings: tuple[str, ...] = ()

    def __init__(self, tools: Mapping[str, dict]):
        self.tools = tools
        self.buffer, self.opened = "", ""
        self.read, self.calls = 0, 0
        self.ended = self.after_call = False
        self.parts: list[Part] = []
        self.state = self.text

    def push(self, text: str) -> list[Part]:
        """Take the next piece of text; returns what can be told now."""
        self.buffer += text
        return self.told()

    def finish(self) -> list[Part]:
        """The text has ended; returns the rest."""
        self.ended = True
        rest = self.told()
        assert not self.buffer
        return rest

    def told(self) -> list[Part]:
        while self.state():
            pass
        parts, self.parts = self.parts, []
        return parts

    def text(self) -> bool:
        """Content up to what may begin a call."""
        places = {opening: self.buffer.find(opening) for opening in self.openings}
        found = [(place, opening) for opening, place in places.items() if place >= 0]
        if not found:
            self.release()
            return False
        place, opening = min(found)
        free = len(self.buffer[:place].rstrip())
        self.content(self.take(free))
        self.opened = self.take(place + len(opening) - free)
        self.state = self.call
        return True

    def release(self) -> None:
        """Tell the buffer as content, but for an end that may belong to a call."""
        if self.ended:
            rest = self.take(len(self.buffer))
            self.content("" if self.after_call and rest.isspace() else rest)
            return
        held = max((overlap(self.buffer, opening) for opening in self.openings), default=0)
        self.content(self.take(len(self.buffer[: len(self.buffer) - held].rstrip())))

    def call(self) -> bool:
        """What follows an opening."""
        raise NotImplementedError

    def give_back(self) -> bool:
        """What was opened is no call."""
        opened, self.opened = self.opened, ""
        self.content(opened)
        self.state = self.text
        return True

    def take(self, count: int) -> str:
        taken, self.buffer = self.buffer[:count], self.buffer[count:]
        self.read += len(taken)
        return taken

    def content(self, text: str) -> None:
        if text:
            self.parts.append(ContentPart(text=text, end=self.read))
            self.after_call = False

    def begin(self, name: str) -> None:
        """A call of `name` is certain."""
        self.opened = ""
        self.parts.append(CallPart(index=self.calls, end=self.read, id=new_call_id(), name=name))
        self.calls += 1
        self.after_call = True

    def arguments(self, text: str) -> None:
        if text:
            self.parts.append(CallPart(index=self.calls - 1, end=self.read, arguments=text))

    def next_is(self, literal: str) -> bool | None:
        """Whether `literal` comes next behind white space; none while that cannot be said."""
        rest = self.buffer.lstrip()
        if rest.startswith(literal):
            return True
        return None if literal.startswith(rest) and not self.ended else False

    def skip(self, literal: str) -> str:
        """Take white space and the `literal` behind it, or what the text's end has left of them."""
        return self.take(len(self.buffer) - len(self.buffer.lstrip()) + len(literal))

    def close(self, literal: str) -> bool:
        """Pass over `literal` where it comes next, then go on with content."""
        follows = self.next_is(literal)
        if follows is None:
            return False
        if follows or literal.startswith(self.buffer.lstrip()):
            self.skip(literal)
        self.state = self.text
        return True


class PlainParser:
    """Of an answer that may not call tools everything is content, at once."""

    def __init__(self):
        self.read = 0

    def push(self, text: str) -> list[Part]:
        self.read += len(text)
        return [ContentPart(text=text, end=self.read)] if text else []

    def finish(self) -> list[Part]:
        return []
