"""foredraft as a contestant of the benchmark of the forward: its packed forward on the path and in the format named.

python benchmarks/forward_foredraft.py auto|off|KERNEL bf16|int8
"""

import sys
from collections.abc import Sequence
from contextlib import closing
from time import perf_counter

import torch
from forward_worker import serve

from foredraft import Engine, SamplingParams, TokenEvent
from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.speculation_config import OFF
from foredraft.core.step_plan import StepPlan
from foredraft.model.native_runtime import extension_version
from foredraft.model.slot_pool import SlotTable
from foredraft.model.target import load_target

CACHE_TOKENS = 2048
CHUNK = 256


class Foredraft:
    def __init__(self, native: str, dtype: str):
        """On the path that `native` asks `load_target` for."""
        self.native, self.dtype = native, dtype
        self.table: SlotTable | None = None

    def load(self, model: str, threads: int) -> dict:
        self.engine = self.table = None  # two large models at once are for nothing
        target = load_target(
            model, dtype=self.dtype, device="cpu", threads=threads, cache_tokens=CACHE_TOKENS, native=self.native
        )
        self.engine = Engine(target, speculation=OFF, max_batch=1, prefix_cache=False)
        return {"torch": torch.__version__, "native": extension_version(), "path": target.model.path}

    @property
    def pool(self):
        return self.engine.target.pool

    def logits(self, tokens: Sequence[int]) -> list[float]:
        self.fill([])
        return self.forward(tokens)[-1].float().tolist()

    def fill(self, tokens: Sequence[int]) -> None:
        if self.table is not None:
            self.pool.close(self.table)
        self.table = self.pool.open(CACHE_TOKENS)
        for start in range(0, len(tokens), CHUNK):
            part = tokens[start : start + CHUNK]
            slots = self.pool.take(self.table, len(part))
            self.engine.target.forward(self.plan(part, slots, 1))
            self.pool.keep(self.table, slots)

    def forward(self, tokens: Sequence[int]) -> torch.Tensor:
        """Logits, [R, V]; the cache stays as it is."""
        plan = self.plan(tokens, self.pool.take(self.table, len(tokens)), len(tokens))
        logits, _ = self.engine.target.forward(plan)
        self.pool.keep(self.table, [])
        return logits

    def plan(self, tokens: Sequence[int], slots: list[int], logits: int) -> StepPlan:
        rows = Rows(
            tokens=list(tokens),
            pending=len(tokens),
            parents=[],
            slots=slots,
            context=len(self.table),
            context_slots=self.table.committed(self.pool.device),
            logits=logits,
        )
        return build_plan([rows], self.pool.device)

    def steps(self, tokens: Sequence[int]) -> list[float]:
        plan = self.plan(tokens, self.pool.take(self.table, len(tokens)), len(tokens))
        start = perf_counter()
        self.engine.target.forward(plan)
        seconds = perf_counter() - start
        self.pool.keep(self.table, [])
        return [seconds]

    def write(self, tokens: Sequence[int], new: int) -> tuple[float, list[int]]:
        self.fill([])  # the request wants its slots for itself
        text, first = [], None
        sampling = SamplingParams(max_new_tokens=new, ignore_eos=True)
        with closing(self.engine.stream([list(tokens)], sampling)) as events:
            for event in events:
                if isinstance(event, TokenEvent):
                    first = first or perf_counter()
                    text += event.tokens
        return perf_counter() - first, text


if __name__ == "__main__":
    serve(Foredraft(*sys.argv[1:]))
