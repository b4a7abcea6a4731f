"""POST /tokenize and /detokenize, also under /v1: the model's own reading of a text, in vLLM's form."""

from typing import Annotated

from fastapi import APIRouter, Depends
from pydantic import BaseModel

from foredraft.core.errors import PromptError, require
from foredraft.engine.engine import Engine
from foredraft.serving.chat.template import render
from foredraft.serving.declared_replies import errors
from foredraft.serving.errors import FieldError
from foredraft.serving.protocol.chat_request import ChatRequest
from foredraft.serving.protocol.token_requests import DetokenizeRequest, TokenizeRequest
from foredraft.serving.service import Service, service_of

MAX_TOKENS = 2**20  # to be written as text in one call
REFUSED = errors(400, 401, 404, 413)

router = APIRouter(tags=["tokens"])


class TokenizeReply(BaseModel):
    """Tokens of a text or a conversation.

    Attributes:
        count: How many they are.
        max_model_len: How many the context holds, output included.
        tokens: Their ids.
        token_strs: Their names in the vocabulary, where they were asked for.
    """

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeReply(BaseModel):
    """The text of tokens, special ones included."""

    prompt: str


@router.post("/tokenize", responses=REFUSED)
@router.post("/v1/tokenize", include_in_schema=False)
async def tokenize(request: TokenizeRequest, service: Annotated[Service, Depends(service_of)]) -> TokenizeReply:
    """The tokens of a prompt, or of a conversation as the chat template writes it."""
    require_served(request, service)
    return await service.prepare(tokenized, request, service)


@router.post("/detokenize", responses=REFUSED)
@router.post("/v1/detokenize", include_in_schema=False)
async def detokenize(request: DetokenizeRequest, service: Annotated[Service, Depends(service_of)]) -> DetokenizeReply:
    """The text of token ids."""
    require_served(request, service)
    return await service.prepare(detokenized, request, service.engine)


def require_served(request: TokenizeRequest | DetokenizeRequest, service: Service) -> None:
    """Raise a 404 for another model's name, `PromptError` where the target has no tokenizer."""
    if request.model is not None:
        service.require_model(request.model)
    target = service.engine.target
    require(target.tokenizer is not None, f"{target.name} has no tokenizer to read or write text with", PromptError)


def tokenized(request: TokenizeRequest, service: Service) -> TokenizeReply:
    target = service.engine.target
    tokens = prompt_tokens(request, target.tokenizer) if request.messages is None else chat_tokens(request, service)
    names = target.tokenizer.convert_ids_to_tokens(tokens) if request.return_token_strs else None
    return TokenizeReply(count=len(tokens), max_model_len=target.context_length, tokens=tokens, token_strs=names)


def prompt_tokens(request: TokenizeRequest, tokenizer) -> list[int]:
    special = request.add_special_tokens is not False
    return tokenizer(request.prompt, add_special_tokens=special)["input_ids"]


def chat_tokens(request: TokenizeRequest, service: Service) -> list[int]:
    """Raises `PromptError` where there is no chat template, `FieldError` for what it leaves no room for."""
    count, most = len(request.messages), service.limits.max_messages
    if count > most:
        raise FieldError(f"messages has {count} entries; at most {most} are read", param="messages")
    if request.add_special_tokens:
        problem = "add_special_tokens is true; the chat template writes all there are, leave it out"
        raise FieldError(problem, param="add_special_tokens")
    return render(service.engine, ChatRequest(messages=request.messages))


def detokenized(request: DetokenizeRequest, engine: Engine) -> DetokenizeReply:
    """Raises `FieldError` for ids outside the vocabulary."""
    tokens, size = request.tokens, engine.target.vocabulary.size
    if len(tokens) > MAX_TOKENS:
        raise FieldError(f"tokens has {len(tokens)} ids; at most {MAX_TOKENS} are written", param="tokens")
    wrong = next((place for place, token in enumerate(tokens) if not 0 <= token < size), None)
    if wrong is not None:
        raise FieldError(f"tokens holds {tokens[wrong]}; ids are from 0 to {size - 1}", param=f"tokens.{wrong}")
    text = engine.target.tokenizer.decode(tokens, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return DetokenizeReply(prompt=text)
