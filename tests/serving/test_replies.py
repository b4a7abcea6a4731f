"""Replies of chat and completions, whole and streamed: valid for OpenAI's own types, and equal to each other."""

import json
from itertools import zip_longest
from math import inf

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types import Completion
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from reply_doubles import BOTH, CALLS, FORMATS, TOOLS, Step, logprobs_of, steps_of, tokenizer_for
from tokenizers import Tokenizer, decoders, models
from transformers import PreTrainedTokenizerFast

from foredraft.core.outcome import TokenLogprobs
from foredraft.serving.errors import FieldError
from foredraft.serving.protocol.chat_request import ChatRequest
from foredraft.serving.protocol.completion_request import CompletionRequest
from foredraft.serving.replies.chat_reply import ChatStream, chat_reply
from foredraft.serving.replies.completion_reply import CompletionStream, completion_reply
from foredraft.serving.replies.envelope import FINGERPRINT, ending
from foredraft.serving.replies.logprobs import chat_logprobs, completion_logprobs
from foredraft.serving.replies.token_names import TokenNames
from foredraft.serving.replies.usage import usage_of

PLAIN = tokenizer_for("none")
PROMPT = (40, 41, 42)
TEXT = "Hello, wörld! It is\n「雨」. Yes."


def chat_request(**fields) -> ChatRequest:
    return ChatRequest.model_validate({"messages": [{"role": "user", "content": "?"}], **fields})


def completion_request(**fields) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": PLAIN.decode(PROMPT), **fields})


def whole_chat(steps: list[Step], tokenizer=PLAIN, **fields) -> dict:
    outputs = [step.output for step in steps if step.output is not None]
    reply = chat_reply(chat_request(**fields), outputs, model="m", tokenizer=tokenizer)
    ChatCompletion.model_validate(reply)
    assert json.loads(json.dumps(reply, allow_nan=False)) == reply
    return reply


def streamed_chat(steps: list[Step], tokenizer=PLAIN, **fields) -> list[dict]:
    stream = ChatStream(chat_request(stream=True, **fields), model="m", tokenizer=tokenizer)
    chunks = [chunk for step in steps for chunk in stream.push(step)] + stream.finish()
    for chunk in chunks:
        ChatCompletionChunk.model_validate(chunk)
        assert json.loads(json.dumps(chunk, allow_nan=False)) == chunk
    return chunks


def whole_completion(steps: list[Step], **fields) -> dict:
    outputs = [step.output for step in steps if step.output is not None]
    reply = completion_reply(completion_request(**fields), outputs, model="m", tokenizer=PLAIN)
    Completion.model_validate(without_nulls(reply))
    return reply


def streamed_completion(steps: list[Step], prompts=(PROMPT,), **fields) -> list[dict]:
    request = completion_request(stream=True, **fields)
    stream = CompletionStream(request, model="m", tokenizer=PLAIN, prompts=prompts)
    chunks = [chunk for step in steps for chunk in stream.push(step)] + stream.finish()
    for chunk in chunks:
        Completion.model_validate(without_nulls(chunk))
    return chunks


def without_nulls(reply: dict) -> dict:
    """A completion as OpenAI's types have it: they know neither open ends nor a prompt's first token, OpenAI does."""
    choices = [choice | {"finish_reason": choice["finish_reason"] or "stop"} for choice in reply["choices"]]
    for choice in choices:
        if choice["logprobs"] is not None:
            known = {
                key: value and [each for each in value if each is not None] for key, value in choice["logprobs"].items()
            }
            choice["logprobs"] = known
    return reply | {"choices": choices}


def joined(chunks: list[dict], index: int = 0) -> dict:
    """What a client makes of a choice's chunks: content, calls, log-probabilities, tokens and the end."""
    told = {"content": "", "calls": [], "logprobs": [], "tokens": [], "rejected": [], "reasons": []}
    for choice in (choice for chunk in chunks for choice in chunk["choices"] if choice["index"] == index):
        delta = choice.get("delta", {})
        told["content"] += delta.get("content") or choice.get("text", "")
        for call in delta.get("tool_calls", []):
            told["calls"] += (
                [{"id": call["id"], "name": call["function"]["name"], "arguments": ""}] if "id" in call else []
            )
            told["calls"][call["index"]]["arguments"] += call["function"]["arguments"]
        told["logprobs"] += (choice["logprobs"] or {}).get("content", [])
        told["tokens"] += choice.get("foredraft", {}).get("tokens", [])
        told["rejected"] += choice.get("foredraft", {}).get("rejected", [])
        told["reasons"].append(choice["finish_reason"])
    return told


def named(call: dict) -> tuple[str, str]:
    return call["function"]["name"], call["function"]["arguments"]


def test_a_whole_chat():
    reply = whole_chat(steps_of(TEXT, PLAIN))
    assert reply["id"].startswith("chatcmpl-") and reply["object"] == "chat.completion" and reply["model"] == "m"
    assert reply["system_fingerprint"] == FINGERPRINT == "foredraft-0.1.0"
    [choice] = reply["choices"]
    assert choice == {
        "index": 0,
        "message": {"role": "assistant", "content": TEXT, "refusal": None},
        "logprobs": None,
        "finish_reason": "stop",
    }
    assert "metrics" not in reply


def test_a_streamed_chat():
    chunks = streamed_chat(steps_of(TEXT, PLAIN))
    assert len({chunk["id"] for chunk in chunks}) == 1 and all("usage" not in chunk for chunk in chunks)
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert chunks[-1]["choices"][0]["delta"] == {} and chunks[-1]["choices"][0]["finish_reason"] == "stop"
    told = joined(chunks)
    assert told["content"] == TEXT and set(told["reasons"][:-1]) == {None}


@pytest.mark.parametrize("kind", ["token", "word", "sentence"])
@settings(max_examples=60, deadline=None)
@given(text=st.text(st.sampled_from("ab .!\né雨"), min_size=1, max_size=20), size=st.integers(1, 5))
def test_details_belong_to_their_chunks(kind, text, size):
    """Each token stands with the chunk that holds its last character, whatever the chunks."""
    steps = steps_of(text, PLAIN, size=size)
    chunks = streamed_chat(steps, stream_chunk=kind, logprobs=True, top_logprobs=2, return_drafts=True)
    told, tokens = joined(chunks), steps[-1].output.token_ids
    assert told["content"] == text
    assert [token["id"] for token in told["tokens"]] == tokens
    assert [entry["logprob"] for entry in told["logprobs"]] == [logprobs_of(token).logprob for token in tokens]
    assert len(told["rejected"]) == len(steps)
    read = spelled = ""
    for choice in (chunk["choices"][0] for chunk in chunks[1:-1]):
        read += choice["delta"]["content"]
        spelled += "".join(token["text"] for token in choice["foredraft"]["tokens"])
        assert read.startswith(spelled)
        assert kind != "token" or read == spelled


def test_words_and_sentences_are_streamed_whole():
    for kind, chunks in [("word", ["Hello, ", "all. ", "I ", "am."]), ("sentence", ["Hello, all. ", "I am."])]:
        told = streamed_chat(steps_of("Hello, all. I am.", PLAIN, size=3), stream_chunk=kind)
        assert [chunk["choices"][0]["delta"].get("content") for chunk in told[1:-1]] == chunks


def test_several_continuations_are_ordered():
    steps = [steps_of(text, PLAIN, sample=sample) for sample, text in enumerate(["one", "two two", "3"])]
    mixed = [step for several in zip_longest(*steps[::-1]) for step in several if step is not None]
    reply = whole_chat(mixed, n=3)
    assert [(choice["index"], choice["message"]["content"]) for choice in reply["choices"]] == [
        (0, "one"),
        (1, "two two"),
        (2, "3"),
    ]
    assert reply["usage"]["prompt_tokens"] == 3
    chunks = streamed_chat(mixed, n=3, stream_options={"include_usage": True})
    assert [joined(chunks, index)["content"] for index in range(3)] == ["one", "two two", "3"]
    assert chunks[-1]["usage"] == reply["usage"] and chunks[-1]["choices"] == []
    assert all(chunk["usage"] is None for chunk in chunks[:-1])


def test_usage():
    steps = [*steps_of("abcd", PLAIN, sample=0), *steps_of("ab", PLAIN, sample=1), *steps_of("x", PLAIN, index=1)]
    usage = usage_of([step.output for step in steps if step.output is not None])
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (6, 10, 16)
    assert usage["completion_tokens_details"] == {"accepted_prediction_tokens": 4, "rejected_prediction_tokens": 4}


def test_statistics_are_summed():
    steps = [*steps_of("abc", PLAIN, sample=0), *steps_of("a", PLAIN, sample=1)]
    metrics = whole_chat(steps, n=2, return_statistics=True)["metrics"]["speculative_decoding"]
    assert metrics == {
        "mean_acceptance_length": 2.0,
        "draft_acceptance_rate": 0.5,
        "num_spec_steps": 3,
        "num_draft_tokens": 6,
        "num_accepted_draft_tokens": 3,
        "num_forwards": 3,
        "tau": 2.0,
        "acceptance_per_position": [1.0, 0.0],
        "accepted_by": {"prediction": 3},
        "drafted_by": {"prediction": 6},
        "draft_seconds": 0.5,
        "verify_seconds": 1.0,
        "other_seconds": 0.5,
        "estimated_speed_up": 2.0,
        "choices": {},
    }
    last = streamed_chat(steps, n=2, return_statistics=True)[-1]
    assert last["choices"] == [] and last["metrics"]["speculative_decoding"] == metrics and "usage" not in last
    last = streamed_completion(steps, n=2, return_statistics=True, stream_options={"include_usage": True})[-1]
    assert last["metrics"]["speculative_decoding"] == metrics and last["usage"]["completion_tokens"] == 6


@pytest.mark.parametrize("marked", [False, True])
@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("size", [1, 3, 50])
def test_tool_calls(format, marked, size):
    tokenizer = tokenizer_for(format, marked=marked)
    before = "" if format == "llama" else "Let me see. "
    steps = steps_of(before + BOTH[format], tokenizer, size=size)
    [choice] = whole_chat(steps, tokenizer, tools=TOOLS)["choices"]
    calls = [("weather", '{"city": "Kyōto", "days": 2}'), ("now", "{}")]
    assert choice["message"]["content"] == (before.strip() or None) and choice["finish_reason"] == "tool_calls"
    assert [named(call) for call in choice["message"]["tool_calls"]] == calls
    for kind in ("token", "word"):
        chunks = streamed_chat(steps, tokenizer, tools=TOOLS, stream_chunk=kind, logprobs=True, return_drafts=True)
        told = joined(chunks)
        assert told["content"] == before.strip() and told["reasons"][-1] == "tool_calls"
        assert [(call["name"], call["arguments"]) for call in told["calls"]] == calls
        assert len({call["id"] for call in told["calls"]}) == 2
        assert [token["id"] for token in told["tokens"]] == steps[-1].output.token_ids
        begun = [call for chunk in chunks[1:-1] for call in chunk["choices"][0]["delta"].get("tool_calls", [])]
        starts = [call for call in begun if "id" in call]
        assert [(call["index"], call["type"], call["function"]["arguments"]) for call in starts] == [
            (0, "function", ""),
            (1, "function", ""),
        ]


@pytest.mark.parametrize(
    ("fields", "reason", "calls"),
    [({"tools": TOOLS}, "length", 1), ({"tools": TOOLS, "tool_choice": "none"}, "stop", 0), ({}, "stop", 0)],
)
def test_when_calls_are_told(fields, reason, calls):
    tokenizer, text = tokenizer_for("hermes"), CALLS["hermes"][1]
    [choice] = whole_chat(steps_of(text, tokenizer, reason=reason), tokenizer, **fields)["choices"]
    assert len(choice["message"].get("tool_calls", [])) == calls and choice["finish_reason"] == reason
    assert choice["message"]["content"] == (None if calls else text)


def test_what_opens_like_a_call_is_streamed_in_the_end():
    tokenizer = tokenizer_for("hermes")
    steps = steps_of("See <tool_call> {", tokenizer, size=4)
    told = joined(streamed_chat(steps, tokenizer, tools=TOOLS))
    assert told["content"] == "See <tool_call> {" and told["reasons"][-1] == "stop"


@pytest.mark.parametrize("reason", ["timeout", "shutdown"])
def test_ends_that_openai_has_no_word_for(reason):
    steps = steps_of("Hel", PLAIN, reason=reason)
    replies = [whole_chat(steps), streamed_chat(steps)[-1], whole_completion(steps), streamed_completion(steps)[-1]]
    for [choice] in (reply["choices"] for reply in replies):
        assert choice["finish_reason"] == "length" and choice["foredraft"] == {"ended": reason}


def test_failures_are_not_replies():
    for reason in ("error", "cancelled"):
        with pytest.raises(AssertionError):
            ending(reason)


def test_chat_logprobs():
    steps = steps_of("ö", PLAIN)
    [choice] = whole_chat(steps, logprobs=True, top_logprobs=2)["choices"]
    first, second, end = choice["logprobs"]["content"]
    assert first["token"] == second["token"] == "\N{REPLACEMENT CHARACTER}"
    assert bytes(first["bytes"] + second["bytes"]).decode() == "ö"
    assert end["token"] == "<|end|>" and end["top_logprobs"][1]["token"] == "<|end|>"
    assert first["top_logprobs"][1] == {key: first[key] for key in ("token", "logprob", "bytes")}


def test_impossible_tokens_have_the_least_logprob():
    names, entry = TokenNames(PLAIN), TokenLogprobs(token=1, logprob=-inf, top=[(1, -inf)])
    [told] = chat_logprobs([entry], names)["content"]
    assert told["logprob"] == told["top_logprobs"][0]["logprob"] == -9999.0
    assert completion_logprobs([1], [0], [entry], names, top=1)["token_logprobs"] == [-9999.0]


def test_a_whole_completion():
    reply = whole_completion(steps_of(TEXT, PLAIN))
    assert reply["id"].startswith("cmpl-") and reply["object"] == "text_completion"
    assert reply["choices"] == [{"index": 0, "text": TEXT, "logprobs": None, "finish_reason": "stop"}]
    chunks = streamed_completion(steps_of(TEXT, PLAIN))
    assert joined(chunks)["content"] == TEXT and chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert all(chunk["object"] == "text_completion" for chunk in chunks)


def test_choices_of_several_prompts_are_numbered_through():
    steps = [
        step
        for index, sample in [(1, 1), (0, 1), (1, 0), (0, 0)]
        for step in steps_of(f"{index}{sample}", PLAIN, index=index, sample=sample)
    ]
    fields = {"prompt": ["one", "two"], "n": 2, "echo": True}
    texts = ["one00", "one01", "two10", "two11"]
    choices = whole_completion(steps, **fields)["choices"]
    assert [choice["text"] for choice in choices] == texts and [choice["index"] for choice in choices] == [0, 1, 2, 3]
    chunks = streamed_completion(steps, prompts=[PROMPT, PROMPT], **fields)
    assert [joined(chunks, index)["content"] for index in range(4)] == texts


def test_prompts_of_token_ids_are_echoed_as_text():
    [choice] = whole_completion(steps_of("x", PLAIN), prompt=[list(PROMPT)], echo=True)["choices"]
    assert choice["text"] == PLAIN.decode(PROMPT) + "x"
    [opening, *_] = streamed_completion(steps_of("x", PLAIN), prompt=list(PROMPT), echo=True)
    assert opening["choices"][0]["text"] == PLAIN.decode(PROMPT)


@pytest.mark.parametrize("top", [0, 1])
def test_completion_logprobs_with_the_prompt(top):
    """As lm-eval reads them: prompt and text in one list, the first token unknown, top tokens beside."""
    steps = steps_of("hé", PLAIN)
    [choice] = whole_completion(steps, echo=True, logprobs=top)["choices"]
    told, prompt = choice["logprobs"], PLAIN.decode(PROMPT)
    assert told["tokens"] == [*prompt, "h", "bytes:\\xc3", "bytes:\\xa9", "<|end|>"]
    assert told["text_offset"] == [0, 1, 2, 3, 4, 4, 5]
    assert told["token_logprobs"][0] is None and told["token_logprobs"][1] == logprobs_of(PROMPT[1]).logprob
    if top:
        assert told["top_logprobs"][0] is None
        assert told["top_logprobs"][3] == {" ": -0.5, "h": told["token_logprobs"][3]}
    else:
        assert told["top_logprobs"] is None


@pytest.mark.parametrize("size", [1, 2, 9])
def test_streamed_completion_logprobs_join_to_the_whole(size):
    steps = steps_of("hé you, STOP!", PLAIN, size=size, stop=("STOP",))
    whole = whole_completion(steps, logprobs=2)["choices"][0]["logprobs"]
    chunks = streamed_completion(steps, logprobs=2, stream_chunk="word")
    pieces = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    for key, values in whole.items():
        assert [value for piece in pieces if piece for value in piece[key]] == values
    assert whole["text_offset"][-1] == len("hé you, ")


def test_streamed_offsets_count_an_echoed_prompt():
    with pytest.raises(FieldError, match="cannot be streamed") as refusal:
        streamed_completion([], echo=True, logprobs=1)
    assert refusal.value.param == "logprobs"


def test_a_token_written_to_run_the_prompt_is_not_shown():
    steps = steps_of("x", PLAIN, reason="length")
    fields = {"max_tokens": 0, "echo": True}
    reply = whole_completion(steps, logprobs=1, **fields)
    [choice] = reply["choices"]
    assert choice["text"] == PLAIN.decode(PROMPT) and choice["finish_reason"] == "length"
    assert len(choice["logprobs"]["tokens"]) == 3 and reply["usage"]["completion_tokens"] == 0
    chunks = streamed_completion(steps, stream_options={"include_usage": True}, **fields)
    assert joined(chunks)["content"] == PLAIN.decode(PROMPT)
    assert chunks[-1]["usage"]["completion_tokens"] == 0


def test_drafts_are_named():
    steps = steps_of("abc", PLAIN, size=2)
    chunks = streamed_completion(steps, return_drafts=True)
    assert chunks[0]["choices"][0]["foredraft"] == {
        "tokens": [
            {"id": PLAIN.convert_tokens_to_ids("a"), "text": "a", "drafter": "ngram"},
            {"id": PLAIN.convert_tokens_to_ids("b"), "text": "b", "drafter": None},
        ],
        "rejected": [{"id": 50, "text": PLAIN.decode([50]), "depth": 1, "drafter": "suffix"}],
    }


def test_tokens_without_a_tokenizer_are_called_by_number():
    assert TokenNames(None).text(7) == "token_id:7"
    request = chat_request(stream=True, logprobs=True)
    stream = ChatStream(request, model="m", tokenizer=None)
    [*_, last] = [chunk for step in steps_of("a", PLAIN) for chunk in stream.push(step)]
    assert last["choices"][0]["finish_reason"] == "stop"


def test_tokens_of_sentencepiece_keep_their_spaces():
    tokenizer = Tokenizer(models.BPE({"\u2581a": 0, "a": 1, "<0xC3>": 2, "<0xA9>": 3}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    names = TokenNames(PreTrainedTokenizerFast(tokenizer_object=tokenizer))
    assert [names.text(token) for token in (0, 1)] == [" a", "a"]
    assert names.bytes(2) + names.bytes(3) == "é".encode() and names.unique_text(2) == "bytes:\\xc3"
    assert names.text(9) == "token_id:9"
