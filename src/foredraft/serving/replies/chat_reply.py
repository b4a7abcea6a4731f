"""Replies of /v1/chat/completions, whole and streamed."""

from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from foredraft.engine.output import RequestOutput, TokenEvent
from foredraft.sampling.detokenizer import Detokenizer
from foredraft.serving.chat.call_parts import ToolCall
from foredraft.serving.chat.marked_text import MarkedText
from foredraft.serving.chat.tool_calls import ToolFormat, active_format
from foredraft.serving.replies.chat_choice import ChatChoice
from foredraft.serving.replies.envelope import ending, envelope
from foredraft.serving.replies.logprobs import chat_logprobs
from foredraft.serving.replies.reply_stream import ReplyStream
from foredraft.serving.replies.statistics import metrics_of
from foredraft.serving.replies.token_ledger import WrittenToken
from foredraft.serving.replies.token_names import TokenNames
from foredraft.serving.replies.usage import usage_of


def chat_reply(
    request, outputs: Sequence[RequestOutput], *, model: str, tokenizer: PreTrainedTokenizerBase | None
) -> dict:
    """The whole reply to a `ChatRequest`; none of `outputs` has failed. `model` is what the server calls it."""
    names, format = TokenNames(tokenizer), active_format(request, tokenizer)
    ordered = sorted(outputs, key=lambda output: output.sample)
    reply = {
        **envelope("chat.completion", "chatcmpl", model),
        "choices": [chat_choice(request, output, format, names) for output in ordered],
        "usage": usage_of(ordered),
    }
    if request.return_statistics:
        reply["metrics"] = metrics_of(ordered)
    return reply


def chat_choice(request, output: RequestOutput, format: ToolFormat | None, names: TokenNames) -> dict:
    content, calls = output.text, []
    if format is not None:
        content, calls = format.parse(marked_text(output, format, names.tokenizer), request.tools)
    reason, ended = ending(output.finish_reason, calls=bool(calls))
    message = {"role": "assistant", "content": content if content or not calls else None, "refusal": None}
    if calls:
        message["tool_calls"] = [written_call(call) for call in calls]
    choice = {
        "index": output.sample,
        "message": message,
        "logprobs": chat_logprobs(output.logprobs or [], names) if request.logprobs else None,
        "finish_reason": reason,
    }
    return choice if ended is None else {**choice, "foredraft": {"ended": ended}}


def written_call(call: ToolCall) -> dict:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def marked_text(output: RequestOutput, format: ToolFormat, tokenizer: PreTrainedTokenizerBase) -> str:
    """The output's text with the markers that have none."""
    if not format.hidden:
        return output.text
    detokenizer = Detokenizer(tokenizer)
    pieces = [detokenizer.push(token) for token in output.token_ids]
    return MarkedText(format.hidden_markers).push(output.text, output.token_ids, pieces)


class ChatStream(ReplyStream):
    """Chunks of a streamed reply to a `ChatRequest`."""

    kind, prefix = "chat.completion.chunk", "chatcmpl"

    def __init__(self, request, *, model: str, tokenizer: PreTrainedTokenizerBase | None):
        super().__init__(request, model=model, tokenizer=tokenizer)
        self.format = active_format(request, tokenizer)
        self.choices: dict[int, ChatChoice] = {}

    def chunks(self, event: TokenEvent) -> list[dict]:
        chunks = []
        if event.sample not in self.choices:
            self.choices[event.sample] = ChatChoice(self.request, self.tokenizer, self.format)
            chunks.append(self.delta(event, {"role": "assistant", "content": "", "refusal": None}, []))
        choice = self.choices[event.sample]
        chunks += [self.delta(event, content, tokens) for content, tokens in choice.push(event)]
        if event.finish_reason is not None:
            reason, ended = ending(event.finish_reason, calls=choice.calls)
            chunks.append(self.delta(event, {}, choice.rest(), reason, ended))
        return chunks

    def delta(
        self,
        event: TokenEvent,
        content: dict,
        tokens: list[WrittenToken],
        reason: str | None = None,
        ended: str | None = None,
    ) -> dict:
        logprobs = [written.logprobs for written in tokens]
        told = self.request.logprobs and bool(tokens)
        choice = {
            "index": event.sample,
            "delta": content,
            "logprobs": chat_logprobs(logprobs, self.names) if told else None,
            "finish_reason": reason,
        }
        return self.chunk(choice, tokens, ended)
