"""What the streams of chat and completions share: their envelope, and the chunk at the end."""

from typing import Protocol

from transformers import PreTrainedTokenizerBase

from foredraft.engine.output import RequestOutput, TokenEvent
from foredraft.serving.replies.drafts import drafts_of
from foredraft.serving.replies.envelope import envelope
from foredraft.serving.replies.statistics import metrics_of
from foredraft.serving.replies.token_ledger import WrittenToken
from foredraft.serving.replies.token_names import TokenNames
from foredraft.serving.replies.usage import usage_of


class Written(Protocol):
    """One step of one continuation (`serving.mailbox.Update`)."""

    event: TokenEvent
    output: RequestOutput | None


class ReplyStream:
    """Makes the chunks of one streamed reply.

    Args:
        request: A `ChatRequest` or `CompletionRequest`.
        model: What the server calls the model.
        tokenizer: The target's.

    Attributes:
        kind, prefix: The object's name, and what its id begins with.
    """

    kind: str
    prefix: str

    def __init__(self, request, *, model: str, tokenizer: PreTrainedTokenizerBase | None):
        self.request, self.tokenizer = request, tokenizer
        self.names = TokenNames(tokenizer)
        self.outputs: list[RequestOutput] = []
        self.envelope = envelope(self.kind, self.prefix, model)
        options = request.stream_options
        self.usage_wanted = options is not None and bool(options.include_usage)
        self.nothing_shown = False

    def push(self, update: Written) -> list[dict]:
        """Chunks to send for one step; the continuations' own ends are among them."""
        if update.output is not None:
            self.outputs.append(update.output)
        return self.chunks(update.event)

    def chunks(self, event: TokenEvent) -> list[dict]:
        raise NotImplementedError

    def finish(self) -> list[dict]:
        """A last chunk without choices, where usage or statistics were asked for."""
        if not self.usage_wanted and not self.request.return_statistics:
            return []
        last = {**self.envelope, "choices": []}
        if self.usage_wanted:
            last["usage"] = usage_of(self.outputs, nothing_shown=self.nothing_shown)
        if self.request.return_statistics:
            last["metrics"] = metrics_of(self.outputs)
        return [last]

    def chunk(self, choice: dict, tokens: list[WrittenToken], ended: str | None = None) -> dict:
        """A chunk of one choice, with what its tokens' drafters and its end have to say."""
        told = drafts_of(tokens, self.names) if self.request.return_drafts else {}
        if ended is not None:
            told["ended"] = ended
        if told:
            choice["foredraft"] = told
        usage = {"usage": None} if self.usage_wanted else {}
        return {**self.envelope, "choices": [choice], **usage}
