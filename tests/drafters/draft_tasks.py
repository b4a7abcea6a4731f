"""Tasks for drafters that look at nothing but the request."""

from foredraft.core.request import Request
from foredraft.core.sampling_params import SamplingParams
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.drafter import DraftTask


def make_request(tokens: list[int], **speculation) -> Request:
    return Request(prompt=tokens, params=SamplingParams(), speculation=SpeculationConfig(**speculation), seed=0)


def task_for(request: Request, *, nodes: int = 64, depth: int = 64) -> DraftTask:
    return DraftTask(
        request=request, speculation=request.speculation, sampler=None, table=None, nodes=nodes, depth=depth
    )
