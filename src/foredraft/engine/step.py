"""The parts of one step, as functions over its work: draft, forward, verify."""

import torch
from torch import Tensor

from foredraft.core.outcome import Verdict
from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.step_plan import StepPlan
from foredraft.drafters.drafter import Drafter, DraftTask, Observation
from foredraft.engine.running import Work
from foredraft.model.capture import States
from foredraft.model.slot_pool import SlotPool
from foredraft.verification.verifier import accept


def place_chunks(batch: list[Work], pool: SlotPool) -> None:
    """Take cache slots for every pending token of the step."""
    for work in batch:
        work.chunk_slots = pool.take(work.running.table, work.chunk)


def draft(batch: list[Work], pool: SlotPool) -> None:
    """Ask each drafter once for all of its requests, and take cache slots for the nodes."""
    deciding = [work for work in batch if work.decides]
    for drafter, group in by_drafter(deciding):
        tasks = [(work, task) for work in group if (task := draft_task(work)) is not None]
        trees = drafter.propose([task for _, task in tasks]) if tasks else []
        for (work, task), tree in zip(tasks, trees, strict=True):
            assert len(tree) <= task.nodes
            work.tree = tree
            work.node_slots = tree.slots if tree.slots is not None else pool.take(work.running.table, len(tree))


def by_drafter(batch: list[Work]) -> list[tuple[Drafter, list[Work]]]:
    """The work of each drafter, in the order the drafters first appear."""
    groups: dict[int, tuple[Drafter, list[Work]]] = {}
    for work in batch:
        groups.setdefault(id(work.running.drafter), (work.running.drafter, []))[1].append(work)
    return list(groups.values())


def draft_task(work: Work) -> DraftTask | None:
    """The request's order for a draft; none when it may write one token at most, which needs no draft."""
    running, config = work.running, work.running.request.speculation
    depth = min(config.num_speculative_tokens, running.request.remaining - 1)
    if depth < 1:
        return None
    return DraftTask(
        request=running.request,
        sampler=running.sampler,
        table=running.table,
        nodes=config.nodes if config.branches else depth,
        depth=depth,
    )


def plan_of(batch: list[Work], device: torch.device) -> StepPlan:
    return build_plan([rows_of(work, device) for work in batch], device)


def rows_of(work: Work, device: torch.device) -> Rows:
    request, table = work.running.request, work.running.table
    return Rows(
        tokens=request.tokens[request.computed : request.computed + work.chunk] + work.tree.tokens,
        pending=work.chunk,
        parents=work.tree.parents,
        slots=work.chunk_slots + work.node_slots,
        context=len(table),
        context_slots=table.committed(device),
        logits=work.logit_rows,
    )


def verify(batch: list[Work], logits: Tensor) -> list[tuple[Work, Tensor, Verdict]]:
    """Verdicts of all requests that decide in this step, each with its rows of logits."""
    deciding = [work for work in batch if work.decides]
    rows = logits.split([work.logit_rows for work in deciding])
    chosen = greedy_tokens(deciding, logits)
    verdicts = []
    for work, own in zip(deciding, rows, strict=True):
        tokens = [next(chosen) for _ in range(work.logit_rows)] if chosen else None
        running = work.running
        verdicts.append((work, own, accept(running.rule, work.tree, running.sampler, own, tokens)))
    return verdicts


def greedy_tokens(deciding: list[Work], logits: Tensor):
    """The likeliest token of every row when all requests are plainly greedy: one reduction and one transfer."""
    if not all(work.running.sampler.plain_greedy for work in deciding):
        return None
    return iter(logits.argmax(-1).tolist())


def wanted_features(batch: list[Work]) -> tuple[int, ...]:
    """Hidden states that some drafter of the step needs, each once."""
    return tuple(dict.fromkeys(boundary for work in batch for boundary in work.running.drafter.needs.features))


def share_features(batch: list[Work], plan: StepPlan, states: States) -> None:
    """Give every request the hidden states its drafter needs, of all of its rows, [rows, features x hidden]."""
    for work, segment in zip(batch, plan.segments, strict=True):
        needed = work.running.drafter.needs.features
        if needed:
            work.features = torch.cat([states[boundary][segment.row_slice] for boundary in needed], dim=-1)


def observation(work: Work, verdict: Verdict | None, committed: list[int]) -> Observation:
    """What the drafter is told of a step, once its slots are kept."""
    path, features = verdict.path if verdict else [], None
    if work.features is not None:
        rows = [*range(work.chunk), *(work.chunk + node for node in path)]
        features = work.features if len(rows) == len(work.features) else work.features[rows]
    return Observation(
        request=work.running.request,
        table=work.running.table,
        first=len(work.running.table) - work.chunk - len(path),
        tree=work.tree,
        verdict=verdict,
        committed=committed,
        features=features,
    )


def kept_slots(work: Work, verdict: Verdict | None) -> list[int]:
    """Slots that stay after the step: the chunk's, then the accepted path's."""
    path = verdict.path if verdict else []
    return work.chunk_slots + [work.node_slots[node] for node in path]


def observe(batch: list[Work], verdicts: dict[int, Verdict], committed: dict[int, list[int]]) -> None:
    """Tell each drafter what became of its requests; of mere prompt chunks only where it needs their features."""
    told = [work for work in batch if work.running.request.id in verdicts or work.features is not None]
    for drafter, group in by_drafter(told):
        ids = [work.running.request.id for work in group]
        drafter.observe(
            [observation(work, verdicts.get(i), committed.get(i, [])) for work, i in zip(group, ids, strict=True)]
        )
