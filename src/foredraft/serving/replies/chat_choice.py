"""One continuation of a streamed chat: what the client is to be told after each step."""

from transformers import PreTrainedTokenizerBase

from foredraft.engine.output import TokenEvent
from foredraft.serving.chat.call_parser import PlainParser
from foredraft.serving.chat.call_parts import CallPart, Part
from foredraft.serving.chat.marked_text import MarkedText
from foredraft.serving.chat.tool_calls import ToolFormat
from foredraft.serving.replies.chunker import Chunker
from foredraft.serving.replies.token_ledger import TokenLedger, WrittenToken

Delta = tuple[dict, list[WrittenToken]]  # and the tokens it is made of


class ChatChoice:
    """Turns steps into deltas.

    Args:
        request: A `ChatRequest`.
        format: How it may call tools; none where it may not.

    Attributes:
        calls: Whether it has called a tool.
        sent: Characters of the model's text that the deltas so far hold.
    """

    def __init__(self, request, tokenizer: PreTrainedTokenizerBase | None, format: ToolFormat | None):
        markers = format.hidden_markers if format is not None else {}
        self.parser = format.stream(request.tools) if format is not None else PlainParser()
        self.marked = MarkedText(markers)
        self.chunker = Chunker(request.stream_chunk or "token")
        detailed = bool(markers or request.logprobs or request.return_drafts)
        self.ledger = TokenLedger(tokenizer, markers) if detailed else None
        self.calls, self.sent = False, 0

    def push(self, event: TokenEvent) -> list[Delta]:
        """Deltas of one step."""
        pieces = self.ledger.add(event) if self.ledger is not None else [""] * len(event.tokens)
        parts = self.parser.push(self.marked.push(event.text, event.tokens, pieces))
        deltas = [delta for part in parts for delta in self.told(part)]
        if event.finish_reason is not None:
            deltas += [delta for part in self.parser.finish() for delta in self.told(part)] + self.flushed()
        return deltas

    def told(self, part: Part) -> list[Delta]:
        if isinstance(part, CallPart):
            self.calls = True
            return [*self.flushed(), self.delta({"tool_calls": [call_delta(part)]}, part.end)]
        chunks = self.chunker.push(part.text)
        left = len(self.chunker.held) + sum(map(len, chunks))
        deltas = []
        for chunk in chunks:
            left -= len(chunk)
            deltas.append(self.delta({"content": chunk}, part.end - left))
        self.sent = part.end
        return deltas

    def flushed(self) -> list[Delta]:
        """What the chunker still holds."""
        rest = self.chunker.flush()
        return [self.delta({"content": rest}, self.sent)] if rest else []

    def delta(self, content: dict, end: int) -> Delta:
        return content, self.ledger.take(end) if self.ledger is not None else []

    def rest(self) -> list[WrittenToken]:
        """Tokens that no delta has taken: those without text, and those cut away by a stop string."""
        return self.ledger.take() if self.ledger is not None else []


def call_delta(part: CallPart) -> dict:
    """A tool call's piece as OpenAI streams it."""
    if part.name is None:
        return {"index": part.index, "function": {"arguments": part.arguments}}
    return {
        "index": part.index,
        "id": part.id,
        "type": "function",
        "function": {"name": part.name, "arguments": part.arguments},
    }
