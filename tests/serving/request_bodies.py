"""Bodies of requests, read as the server reads them."""

from typing import Any

from pydantic import ValidationError

from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.serving.errors import FieldError
from foredraft.serving.protocol.chat_request import ChatRequest
from foredraft.serving.protocol.completion_request import CompletionRequest
from foredraft.serving.protocol.field_errors import FieldProblem, first_problem
from foredraft.serving.protocol.limits import Limits
from foredraft.serving.protocol.to_order import sampling_of, speculation_of

SECRET = "the password is swordfish"
USER = {"role": "user", "content": SECRET}


def chat(**fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"messages": [USER], **fields})


def completion(**fields: Any) -> CompletionRequest:
    return CompletionRequest.model_validate({"prompt": SECRET, **fields})


def sampled(request: ChatRequest | CompletionRequest, **limits: int) -> SamplingParams:
    return sampling_of(request, limits=Limits(**limits))


def problem_of(kind: type, body: Any, **limits: int) -> FieldProblem | None:
    """What is wrong with a body by the time its request would go to the engine; none where it would go."""
    try:
        request = kind.model_validate(body)
        sampling_of(request, limits=Limits(**limits))
        speculation_of(request, SpeculationConfig())
    except ValidationError as error:
        errors = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        return first_problem(errors, body)
    except FieldError as error:
        return FieldProblem(error.param, str(error))
    return None


def chat_problem(**fields: Any) -> FieldProblem | None:
    return problem_of(ChatRequest, {"messages": [USER], **fields})


def completion_problem(**fields: Any) -> FieldProblem | None:
    return problem_of(CompletionRequest, {"prompt": SECRET, **fields})
