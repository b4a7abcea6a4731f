"""GET /health and /version: whether the server serves, and which release it is."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends
from fastapi.responses import JSONResponse
from pydantic import BaseModel

from foredraft import __version__
from foredraft.serving.declared_replies import errors
from foredraft.serving.service import Service, service_of

router = APIRouter(tags=["server"])


class Health(BaseModel):
    """Whether requests are served, and why not."""

    status: Literal["ok", "unavailable"]
    reason: str | None = None


UNAVAILABLE = {503: {"model": Health, "description": "No request can be served."}}


@router.get("/health", response_model=Health, responses=UNAVAILABLE)
async def health(service: Annotated[Service, Depends(service_of)]) -> JSONResponse:
    """200 while requests are served; 503 with the reason once the engine is dead or the server stops."""
    reason = service.trouble()
    if reason is None:
        return JSONResponse({"status": "ok"})
    return JSONResponse({"status": "unavailable", "reason": reason}, status_code=503)


@router.get("/version", responses=errors(401))
async def version() -> dict[str, str]:
    """The release of foredraft."""
    return {"version": __version__}
