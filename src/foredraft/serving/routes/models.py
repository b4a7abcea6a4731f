"""GET /v1/models and /v1/models/{model}: the one model that is served."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends

from foredraft.serving.declared_replies import errors
from foredraft.serving.service import Service, service_of

router = APIRouter(tags=["models"])


def model_card(service: Service) -> dict[str, Any]:
    """OpenAI's description of a model, and the length of its context as vLLM gives it."""
    return {
        "id": service.model_name,
        "object": "model",
        "created": service.created,
        "owned_by": "foredraft",
        "max_model_len": service.engine.target.context_length,
    }


@router.get("/v1/models", responses=errors(401))
async def models(service: Annotated[Service, Depends(service_of)]) -> dict[str, Any]:
    """Every model there is: one."""
    return {"object": "list", "data": [model_card(service)]}


@router.get("/v1/models/{model:path}", responses=errors(401, 404))
async def model(model: str, service: Annotated[Service, Depends(service_of)]) -> dict[str, Any]:
    """The model of this name; 404 for another."""
    service.require_model(model)
    return model_card(service)
