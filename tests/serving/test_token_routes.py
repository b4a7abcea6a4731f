"""/tokenize and /detokenize over the embedded model's tokenizer, without its network."""

from collections.abc import Iterator

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from transformers import AutoTokenizer

from foredraft import Engine
from foredraft.core.speculation_config import OFF
from foredraft.model.loading import embedded_folder
from foredraft.model.scripted_target import ScriptedTarget
from foredraft.serving.errors import install_error_handlers
from foredraft.serving.protocol.limits import Limits
from foredraft.serving.protocol.token_requests import DetokenizeRequest
from foredraft.serving.routes import tokens as token_routes
from foredraft.serving.server_config import ServerConfig
from foredraft.serving.service import Service

MESSAGES = [{"role": "user", "content": "Name a colour."}]
TEXTS = ["hello world", "  two  spaces , and a comma .\n", "naïve 🙂 日本", "a <|im_end|> b", ""]


@pytest.fixture(scope="module")
def engine() -> Engine:
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder("tiny"))
    target = ScriptedTarget(lambda history: [0.0] * len(tokenizer), vocabulary=len(tokenizer), context_length=77)
    target.tokenizer = tokenizer
    return Engine(target, speculation=OFF)


def client_of(engine: Engine, **config) -> TestClient:
    app = FastAPI()
    app.state.service = Service(engine, ServerConfig(**config))
    app.include_router(token_routes.router)
    install_error_handlers(app)
    return TestClient(app, raise_server_exceptions=False)


@pytest.fixture
def client(engine) -> Iterator[TestClient]:
    with client_of(engine) as client:
        yield client


def error_of(reply) -> dict:
    assert reply.status_code == 400
    return reply.json()["error"]


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("root", ["", "/v1"])
def test_a_text_is_read_as_the_engine_reads_it_and_written_back(engine, client, root, text):
    reply = client.post(f"{root}/tokenize", json={"prompt": text}).json()
    assert reply["tokens"] == (engine.encode(text) if text else [])
    assert (reply["count"], reply["max_model_len"]) == (len(reply["tokens"]), 77)
    assert reply["token_strs"] is None
    written = client.post(f"{root}/detokenize", json={"tokens": reply["tokens"]})
    assert written.json() == {"prompt": text}


def test_a_conversation_is_read_through_the_chat_template(engine, client):
    reply = client.post("/tokenize", json={"messages": MESSAGES, "add_special_tokens": False}).json()
    assert reply["tokens"] == engine.chat(MESSAGES)
    assert reply["count"] == len(reply["tokens"]) > 0


def test_names_of_tokens_come_where_they_are_asked_for(engine, client):
    reply = client.post("/tokenize", json={"prompt": "hello world", "return_token_strs": True}).json()
    assert reply["token_strs"] == engine.target.tokenizer.convert_ids_to_tokens(reply["tokens"])


def test_special_tokens_may_be_left_out(engine, client, monkeypatch):
    asked = []

    def tokenizer(text, *, add_special_tokens):
        asked.append(add_special_tokens)
        return {"input_ids": [1] if add_special_tokens else []}

    monkeypatch.setattr(engine.target, "tokenizer", tokenizer)
    for given in ({}, {"add_special_tokens": True}, {"add_special_tokens": None}, {"add_special_tokens": False}):
        client.post("/tokenize", json={"prompt": "a"} | given)
    assert asked == [True, True, True, False]


def test_special_tokens_beside_a_template_are_refused(client):
    error = error_of(client.post("/tokenize", json={"messages": MESSAGES, "add_special_tokens": True}))
    assert error["param"] == "add_special_tokens"


@pytest.mark.parametrize("body", [{}, {"prompt": "a", "messages": MESSAGES}, {"prompt": 3}, {"prompt": "a", "x": 1}])
def test_a_body_that_is_not_one_text_is_refused(client, body):
    assert error_of(client.post("/tokenize", json=body))["type"] == "invalid_request_error"


def test_too_many_messages_are_refused(engine):
    with client_of(engine, limits=Limits(max_messages=2)) as client:
        assert client.post("/tokenize", json={"messages": MESSAGES * 2}).status_code == 200
        assert error_of(client.post("/tokenize", json={"messages": MESSAGES * 3}))["param"] == "messages"


@pytest.mark.parametrize("token", [-1, "size", 2**31, 2**70])
def test_ids_outside_the_vocabulary_are_refused(engine, client, token):
    size = engine.target.vocabulary.size
    token = size if token == "size" else token
    error = error_of(client.post("/detokenize", json={"tokens": [1, token]}))
    assert error["param"] == "tokens.1" and str(token) in error["message"] and str(size - 1) in error["message"]


@pytest.mark.parametrize("tokens", ["1", [1.5], [True], None])
def test_what_is_no_list_of_ids_is_refused(client, tokens):
    assert error_of(client.post("/detokenize", json={"tokens": tokens}))["param"].startswith("tokens")


def test_no_tokens_are_no_text(client):
    assert client.post("/detokenize", json={"tokens": []}).json() == {"prompt": ""}


def test_more_tokens_than_stated_are_refused(client):
    stated = DetokenizeRequest.model_json_schema()["properties"]["tokens"]["maxItems"]
    assert stated == token_routes.MAX_TOKENS
    assert client.post("/detokenize", json={"tokens": [1] * 1000}).status_code == 200
    assert error_of(client.post("/detokenize", json={"tokens": [1] * (stated + 1)}))["param"] == "tokens"


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})])
def test_another_model_is_not_found(client, path, body):
    assert client.post(path, json=body | {"model": "scripted"}).status_code == 200
    reply = client.post(path, json=body | {"model": "other"})
    assert reply.status_code == 404 and reply.json()["error"]["code"] == "model_not_found"


@pytest.mark.parametrize(("path", "body"), [("/tokenize", {"prompt": "a"}), ("/detokenize", {"tokens": [1]})])
def test_a_target_without_a_tokenizer_says_so(engine, client, monkeypatch, path, body):
    monkeypatch.setattr(engine.target, "tokenizer", None)
    assert "no tokenizer" in error_of(client.post(path, json=body))["message"]
