"""OpenAI's own Python client against a running server."""

import json

import openai
import pytest
from live_server import served
from openai import OpenAI
from spelling_target import spelling_engine

from foredraft.serving.server_config import ServerConfig

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 8}, "people": {"type": "integer", "maximum": 99}},
    "required": ["city", "people"],
    "additionalProperties": False,
}
CITY_FORMAT = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}


def told(said: str) -> list[dict]:
    return [{"role": "user", "content": f"say {said}"}]


def chat(client: OpenAI, said: str, **fields):
    return client.chat.completions.create(model="scripted", messages=told(said), **({"temperature": 0} | fields))


def complete(client: OpenAI, prompt, **fields):
    return client.completions.create(model="scripted", prompt=prompt, **({"temperature": 0} | fields))


def test_models(client):
    assert [model.id for model in client.models.list()] == ["scripted"]
    assert client.models.retrieve("scripted").owned_by == "foredraft"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("another")


def test_chat(client):
    reply = chat(client, "hello there")
    (choice,) = reply.choices
    assert (choice.message.role, choice.message.content, choice.finish_reason) == ("assistant", "hello there", "stop")
    assert reply.object == "chat.completion" and reply.model == "scripted"
    usage = reply.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens and usage.completion_tokens >= 11


def test_chat_streamed(client):
    chunks = list(chat(client, "hello there", stream=True, stream_options={"include_usage": True}))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices) == "hello there"
    assert chunks[0].choices[0].delta.role == "assistant" and chunks[-1].usage.completion_tokens >= 11


def test_several_choices_are_seeded_each(client):
    asked = {"n": 3, "seed": 5, "temperature": 1, "max_completion_tokens": 12}
    first, again = (chat(client, "dice", **asked) for _ in "12")
    texts = [choice.message.content for choice in first.choices]
    assert len(set(texts)) == 3 and texts == [choice.message.content for choice in again.choices]
    assert [choice.index for choice in first.choices] == [0, 1, 2]
    assert {choice.finish_reason for choice in first.choices} == {"length"}


def test_stop_strings_are_cut_off(client):
    reply = chat(client, "one, two, three", stop=[" three", " two"])
    assert (reply.choices[0].message.content, reply.choices[0].finish_reason) == ("one,", "stop")


def test_chat_logprobs(client):
    content = chat(client, "hey", logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert "".join(entry.token for entry in content[:3]) == "hey"
    for entry in content:
        assert len(entry.top_logprobs) == 2 and entry.top_logprobs[0].logprob == entry.logprob <= 0


def test_chat_logprobs_streamed(client):
    chunks = chat(client, "hey", logprobs=True, top_logprobs=1, stream=True)
    entries = [entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content]
    assert "".join(entry.token for entry in entries[:3]) == "hey"


def test_a_logit_bias_forbids_a_token(client, spelling):
    digit = spelling.service.engine.target.ids[ord("7")]
    reply = chat(client, "dice", logit_bias={str(digit): -100}, temperature=1, seed=1, max_tokens=60)
    assert len(reply.choices[0].message.content) == 60 and "7" not in reply.choices[0].message.content


def test_completions(client):
    reply = complete(client, ["the ", "fox "], n=2, max_tokens=5)
    assert [choice.index for choice in reply.choices] == [0, 1, 2, 3]
    texts = [choice.text for choice in reply.choices]
    assert texts == ["quick"] * 4 and reply.usage.completion_tokens == 20 and reply.usage.prompt_tokens == 8


def test_completions_of_tokens(client, spelling):
    tokens = spelling.service.engine.encode("the ")
    assert complete(client, tokens, max_tokens=5).choices[0].text == "quick"
    assert [choice.text for choice in complete(client, [tokens, tokens], max_tokens=5).choices] == ["quick"] * 2


def test_completions_streamed(client):
    chunks = list(complete(client, "the ", max_tokens=9, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == "quick bro"


@pytest.mark.parametrize("max_tokens", [0, 3])
def test_echo_with_logprobs_scores_the_prompt(client, max_tokens):
    choice = complete(client, "the fox", echo=True, logprobs=2, max_tokens=max_tokens).choices[0]
    assert choice.text.startswith("the fox") and len(choice.text) == 7 + max_tokens
    scores = choice.logprobs
    assert "".join(scores.tokens) == choice.text and scores.text_offset == list(range(7 + max_tokens))
    assert scores.token_logprobs[0] is None and scores.top_logprobs[0] is None
    assert all(score <= 0 for score in scores.token_logprobs[1:])


def test_a_prediction_is_counted_in_the_usage(client):
    said = "a text that is known before it is written"
    reply = chat(client, said, prediction={"type": "content", "content": said})
    details = reply.usage.completion_tokens_details
    assert reply.choices[0].message.content == said and details.accepted_prediction_tokens > 10


def test_speculation_is_chosen_by_request_and_told_of(client):
    asked = {"return_statistics": True}
    plain = chat(client, "aaaaaaaaaaaaaaaa", extra_body=asked | {"speculation": {"enabled": False}})
    drafted = chat(client, "aaaaaaaaaaaaaaaa", extra_body=asked | {"speculation": {"method": "ngram"}})
    counts = [reply.metrics["speculative_decoding"]["num_draft_tokens"] for reply in (plain, drafted)]
    assert counts[0] == 0 < counts[1]
    assert plain.choices[0].message.content == drafted.choices[0].message.content


def test_tool_calls(client):
    reply = chat(client, CALL, tools=[WEATHER])
    (choice,) = reply.choices
    (call,) = choice.message.tool_calls
    assert (choice.finish_reason, call.type, call.function.name) == ("tool_calls", "function", "weather")
    assert json.loads(call.function.arguments) == {"city": "Rome"} and not choice.message.content


def test_tool_calls_streamed(client):
    name, arguments = "", ""
    for chunk in chat(client, CALL, tools=[WEATHER], stream=True):
        assert not chunk.choices[0].delta.content
        for call in chunk.choices[0].delta.tool_calls or []:
            name += call.function.name or ""
            arguments += call.function.arguments or ""
    assert (name, json.loads(arguments)) == ("weather", {"city": "Rome"})
    assert chunk.choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}], ids=str)
def test_a_tool_call_can_be_forced(client, choice):
    reply = chat(client, CALL, tools=[WEATHER], tool_choice=choice, max_tokens=200)
    assert reply.choices[0].message.tool_calls[0].function.name == "weather"


def test_a_conversation_with_a_tools_answer(client):
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}}
    messages = [
        {"role": "user", "content": "how is it in Rome?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
        *told("it is sunny"),
    ]
    reply = client.chat.completions.create(model="scripted", messages=messages, tools=[WEATHER], temperature=0)
    assert reply.choices[0].message.content == "it is sunny"


def test_a_json_schema_is_kept_to(client):
    reply = chat(client, '{"city": "Rome", "people": 3}', response_format=CITY_FORMAT, max_tokens=80)
    assert json.loads(reply.choices[0].message.content) == {"city": "Rome", "people": 3}


@pytest.mark.parametrize("format", [{"type": "json_object"}, CITY_FORMAT], ids=["object", "schema"])
def test_a_model_that_would_say_something_else_writes_json(tiny, format):
    with tiny.client() as client:
        reply = client.chat.completions.create(
            model=tiny.model,
            messages=[{"role": "user", "content": "Rome as JSON with city and people"}],
            response_format=format,
            temperature=0.7,
            seed=1,
            max_tokens=300,
        )
    if reply.choices[0].finish_reason == "stop":
        assert isinstance(json.loads(reply.choices[0].message.content), dict)
    else:
        assert format["type"] == "json_object" and reply.choices[0].message.content.lstrip().startswith("{")


def test_a_real_model_says_the_same_streamed_whole_and_without_speculation(tiny):
    asked = {"model": tiny.model, "messages": [{"role": "user", "content": "Write a list of ten fruits."}]}
    asked |= {"seed": 3, "temperature": 0.8, "max_tokens": 60}
    with tiny.client() as client:
        whole = client.chat.completions.create(**asked).choices[0].message.content
        streamed = "".join(
            chunk.choices[0].delta.content or "" for chunk in client.chat.completions.create(**asked, stream=True)
        )
        plain = client.chat.completions.create(**asked, extra_body={"speculation": {"enabled": False}})
    assert whole == streamed == plain.choices[0].message.content != ""


WRONG = {
    "top_p": {"top_p": 3},
    "n": {"n": 0},
    "logit_bias": {"logit_bias": {"5000": 1}},
    "stop": {"stop": ["x"] * 99},
    "top_logprobs": {"logprobs": True, "top_logprobs": 101},
    "tool_choice": {"tool_choice": "required"},
    "stream_options": {"stream_options": {"include_usage": True}},
    "speculation.method": {"extra_body": {"speculation": {"method": "eagle3"}}},
    "guided_regex": {"extra_body": {"guided_regex": "(x{1000}){1000}"}},
}
UNSUPPORTED = {
    "modalities": ["audio"],
    "audio": {},
    "reasoning_effort": "low",
    "store": True,
    "web_search_options": {},
    "whatever": 1,
}


@pytest.mark.parametrize(("name", "fields"), WRONG.items(), ids=WRONG)
def test_what_is_wrong_is_a_bad_request_that_names_it(client, name, fields):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, "x", **fields)
    assert name in caught.value.message


@pytest.mark.parametrize(("field", "value"), UNSUPPORTED.items(), ids=UNSUPPORTED)
def test_what_is_not_supported_is_refused_by_name(client, field, value):
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, "x", extra_body={field: value})
    assert caught.value.param == field and field in caught.value.message


def test_tools_without_a_template_for_them_are_refused(tiny):
    with tiny.client() as client, pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model=tiny.model, messages=told("x"), tools=[WEATHER])
    assert caught.value.param == "tools"


def test_a_prompt_over_the_context_is_a_bad_request(client):
    with pytest.raises(openai.BadRequestError, match="context"):
        complete(client, "x" * 5000, max_tokens=5)


def test_another_model_is_not_found(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="another", messages=told("x"))
    assert caught.value.code == "model_not_found"


def test_a_wrong_key_is_an_authentication_error():
    with served(spelling_engine(), ServerConfig(api_key="right")) as live:
        with live.client("wrong") as client, pytest.raises(openai.AuthenticationError):
            client.models.list()
        with live.client("right") as client:
            assert chat(client, "hello").choices[0].message.content == "hello"


def test_a_full_queue_is_a_rate_limit_error():
    with served(spelling_engine(max_batch=1), ServerConfig(max_waiting=1)) as live, live.client() as client:
        streams = [chat(client, "dice", stream=True, max_tokens=3500, temperature=1) for _ in "12"]
        with pytest.raises(openai.RateLimitError) as caught:
            chat(client, "hello")
        assert int(caught.value.response.headers["retry-after"]) >= 1
        for stream in streams:
            stream.close()


def test_a_served_name_replaces_the_models_own():
    with served(spelling_engine(), ServerConfig(served_model_name="house/speller")) as live, live.client() as client:
        assert client.models.retrieve("house/speller").id == "house/speller"
        with pytest.raises(openai.NotFoundError):
            chat(client, "x")
        reply = client.chat.completions.create(model="house/speller", messages=told("hi"), temperature=0)
        assert (reply.model, reply.choices[0].message.content) == ("house/speller", "hi")
