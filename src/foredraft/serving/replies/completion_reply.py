"""Replies of /v1/completions, whole and streamed."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from foredraft.engine.output import RequestOutput, TokenEvent
from foredraft.sampling.detokenizer import Detokenizer, decoder_of
from foredraft.serving.errors import FieldError
from foredraft.serving.replies.completion_choice import CompletionChoice
from foredraft.serving.replies.envelope import ending, envelope
from foredraft.serving.replies.logprobs import completion_logprobs
from foredraft.serving.replies.reply_stream import ReplyStream
from foredraft.serving.replies.statistics import metrics_of
from foredraft.serving.replies.token_ledger import WrittenToken
from foredraft.serving.replies.token_names import TokenNames
from foredraft.serving.replies.usage import usage_of

KIND, PREFIX = "text_completion", "cmpl"


def completion_reply(
    request, outputs: Sequence[RequestOutput], *, model: str, tokenizer: PreTrainedTokenizerBase | None
) -> dict:
    """The whole reply to a `CompletionRequest`; none of `outputs` has failed. `model` is what the server calls it.

    Choices are ordered by prompt, a prompt's continuations next to each other.
    """
    names = TokenNames(tokenizer)
    ordered = sorted(outputs, key=lambda output: (output.index, output.sample))
    reply = {
        **envelope(KIND, PREFIX, model),
        "choices": [completion_choice(request, output, names) for output in ordered],
        "usage": usage_of(ordered, nothing_shown=request.max_tokens == 0),
    }
    if request.return_statistics:
        reply["metrics"] = metrics_of(ordered)
    return reply


def completion_choice(request, output: RequestOutput, names: TokenNames) -> dict:
    shown = request.max_tokens != 0  # with 0 a token was written to run the prompt
    opening = prompt_text(request, output.index, output.prompt_token_ids, names.tokenizer) if request.echo else ""
    reason, ended = ending(output.finish_reason) if shown else ("length", None)
    choice = {
        "index": place_of(request, output),
        "text": opening + (output.text if shown else ""),
        "logprobs": None,
        "finish_reason": reason,
    }
    if request.logprobs is not None:
        choice["logprobs"] = whole_logprobs(request, output, opening, names, shown=shown)
    return choice if ended is None else {**choice, "foredraft": {"ended": ended}}


def whole_logprobs(request, output: RequestOutput, opening: str, names: TokenNames, *, shown: bool) -> dict:
    """Log-probabilities of the prompt where it is echoed, then of what was written."""
    tokens, offsets, entries = [], [], []
    if request.echo:
        tokens, entries = list(output.prompt_token_ids), list(output.prompt_logprobs or [None] * len(tokens))
        offsets = [min(start, len(opening)) for start in starts(output.prompt_token_ids, names.tokenizer)]
    if shown:
        tokens = tokens + output.token_ids
        entries = entries + (output.logprobs or [])
        end = len(opening) + len(output.text)  # a stop string cuts text, not tokens
        offsets += [min(len(opening) + start, end) for start in starts(output.token_ids, names.tokenizer)]
    return completion_logprobs(tokens, offsets, entries, names, top=request.logprobs)


def starts(tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase | None) -> list[int]:
    """Where in their text each of `tokens` begins, in characters."""
    places, place = [], 0
    detokenizer = Detokenizer(tokenizer) if tokenizer is not None else None
    for token in tokens:
        places.append(place)
        place += len(detokenizer.push(token)) if detokenizer is not None else 0
    return places


def place_of(request, of: RequestOutput | TokenEvent) -> int:
    """Index of the choice that a continuation is."""
    return of.index * (request.n or 1) + of.sample


def prompt_text(request, index: int, tokens: Sequence[int], tokenizer: PreTrainedTokenizerBase | None) -> str:
    """A prompt as it is echoed: as the client wrote it, or the text of its tokens."""
    prompt = request.prompt
    if isinstance(prompt, str):
        return prompt
    if isinstance(prompt[index], str):
        return prompt[index]
    return decoder_of(tokenizer)(list(tokens)) if tokenizer is not None else ""


class CompletionStream(ReplyStream):
    """Chunks of a streamed reply to a `CompletionRequest`.

    Args:
        prompts: Token ids of each prompt.

    Raises `FieldError` for log-probabilities of an echoed prompt: they are known as a whole only.
    """

    kind, prefix = KIND, PREFIX

    def __init__(
        self, request, *, model: str, tokenizer: PreTrainedTokenizerBase | None, prompts: Sequence[Sequence[int]]
    ):
        super().__init__(request, model=model, tokenizer=tokenizer)
        if request.echo and request.logprobs is not None:
            raise FieldError(
                "logprobs of an echoed prompt cannot be streamed; leave out stream or echo", param="logprobs"
            )
        self.prompts = prompts
        self.nothing_shown = request.max_tokens == 0
        self.choices: dict[tuple[int, int], CompletionChoice] = {}

    def chunks(self, event: TokenEvent) -> list[dict]:
        chunks, key = [], (event.index, event.sample)
        if key not in self.choices:
            opening = self.opening(event.index)
            self.choices[key] = CompletionChoice(self.request, self.tokenizer, opening)
            chunks += [self.piece(event, opening, [])] if opening else []
        choice = self.choices[key]
        if not self.nothing_shown:
            chunks += [self.piece(event, text, tokens) for text, tokens in choice.push(event)]
        if event.finish_reason is not None:
            reason, ended = ("length", None) if self.nothing_shown else ending(event.finish_reason)
            chunks.append(self.piece(event, "", choice.take(), reason, ended))
        return chunks

    def opening(self, index: int) -> str:
        return prompt_text(self.request, index, self.prompts[index], self.tokenizer) if self.request.echo else ""

    def piece(
        self,
        event: TokenEvent,
        text: str,
        tokens: list[WrittenToken],
        reason: str | None = None,
        ended: str | None = None,
    ) -> dict:
        choice = {"index": place_of(self.request, event), "text": text, "logprobs": None, "finish_reason": reason}
        if self.request.logprobs is not None and tokens:
            end = self.choices[event.index, event.sample].read  # a stop string cuts text, not tokens
            choice["logprobs"] = completion_logprobs(
                [written.token for written in tokens],
                [min(written.start, end) for written in tokens],
                [written.logprobs for written in tokens],
                self.names,
                top=self.request.logprobs,
            )
        return self.chunk(choice, tokens, ended)
