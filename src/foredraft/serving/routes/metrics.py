"""GET /metrics: what Prometheus scrapes."""

from typing import Annotated

from fastapi import APIRouter, Depends
from fastapi.responses import Response

from foredraft.serving.declared_replies import errors
from foredraft.serving.service import Service, service_of

router = APIRouter(tags=["server"])
TEXT = {200: {"description": "Prometheus' text format.", "content": {"text/plain": {"schema": {"type": "string"}}}}}


@router.get("/metrics", response_class=Response, responses=TEXT | errors(401))
async def metrics(service: Annotated[Service, Depends(service_of)]) -> Response:
    """Counters, gauges and latencies of the engine and the server in Prometheus' text format."""
    body, content_type = service.metrics.render()
    return Response(body, headers={"content-type": content_type})
