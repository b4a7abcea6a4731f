"""One continuation of a streamed completion: what the client is to be told after each step."""

from transformers import PreTrainedTokenizerBase

from foredraft.engine.output import TokenEvent
from foredraft.serving.replies.chunker import Chunker
from foredraft.serving.replies.token_ledger import TokenLedger, WrittenToken


class CompletionChoice:
    """Turns steps into pieces of text.

    Args:
        request: A `CompletionRequest`.
        opening: Text that the reply begins with, of the prompt where it is echoed.
    """

    def __init__(self, request, tokenizer: PreTrainedTokenizerBase | None, opening: str):
        self.chunker = Chunker(request.stream_chunk or "token")
        detailed = request.logprobs is not None or request.return_drafts
        self.ledger = TokenLedger(tokenizer, start=len(opening)) if detailed else None
        self.read = len(opening)

    def push(self, event: TokenEvent) -> list[tuple[str, list[WrittenToken]]]:
        """Pieces of one step, each with its tokens."""
        if self.ledger is not None:
            self.ledger.add(event)
        self.read += len(event.text)
        chunks = self.chunker.push(event.text)
        if event.finish_reason is not None and self.chunker.held:
            chunks.append(self.chunker.flush())
        left = len(self.chunker.held) + sum(map(len, chunks))
        pieces = []
        for chunk in chunks:
            left -= len(chunk)
            pieces.append((chunk, self.take(self.read - left)))
        return pieces

    def take(self, end: int | None = None) -> list[WrittenToken]:
        """Tokens up to character `end` of the text, or all that are left."""
        return self.ledger.take(end) if self.ledger is not None else []
