"""The parts of one step, as functions over its work: draft, forward, verify."""

import torch
from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.outcome import Verdict
from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.core.step_plan import StepPlan
from foredraft.drafters.drafter import Drafter, DraftTask, Observation
from foredraft.engine.running import Option, Work
from foredraft.model.capture import States
from foredraft.model.slot_pool import SlotPool
from foredraft.verification.verifier import accept


def place_chunks(batch: list[Work], pool: SlotPool) -> None:
    """Take cache slots for every pending token of the step."""
    for work in batch:
        work.chunk_slots = pool.take(work.running.table, work.chunk)


def propose(orders: list[tuple[Work, Option]]) -> list[DraftTree]:
    """A draft for each piece of work by the option chosen for it; each drafter is asked once for all of its tasks."""
    trees = [DraftTree() for _ in orders]
    groups: dict[int, list[tuple[int, DraftTask]]] = {}
    for place, (work, option) in enumerate(orders):
        task = draft_task(work, option.speculation)
        if task is not None:
            groups.setdefault(id(option.drafter), []).append((place, task))
    for group in groups.values():
        drafter = orders[group[0][0]][1].drafter
        for (place, task), tree in zip(group, drafter.propose([task for _, task in group]), strict=True):
            assert len(tree) - tree.probes <= task.nodes
            trees[place] = tree
    return trees


def place_draft(work: Work, tree: DraftTree, pool: SlotPool) -> None:
    """Make `tree` the work's draft, with cache slots for its nodes."""
    work.tree = tree
    work.node_slots = tree.slots if tree.slots is not None else pool.take(work.running.table, len(tree))


def draft_task(work: Work, config: SpeculationConfig) -> DraftTask | None:
    """The request's order for a draft; none when it may write one token at most, which needs no draft."""
    running = work.running
    depth = min(config.depth, running.request.remaining - 1)
    if depth < 1:
        return None
    return DraftTask(
        request=running.request,
        speculation=config,
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
        running, guesses = work.running, work.tree.guesses
        rows = len(guesses) + 1
        verdict = accept(running.rule, guesses, running.sampler, own[:rows], tokens and tokens[:rows])
        verdicts.append((work, own, verdict))
    return verdicts


def greedy_tokens(deciding: list[Work], logits: Tensor):
    """The likeliest token of every row when all requests are plainly greedy: one reduction and one transfer."""
    if not all(work.running.sampler.plain_greedy for work in deciding):
        return None
    return iter(logits.argmax(-1).tolist())


def wanted_features(batch: list[Work]) -> tuple[int, ...]:
    """Hidden states that some drafter of the step needs, each once."""
    return tuple(sorted({boundary for work in batch for boundary in work.running.wanted_states}))


def share_features(batch: list[Work], plan: StepPlan, states: States) -> None:
    """Let every request find the hidden states of its rows, where some drafter of it needs any."""
    for work, segment in zip(batch, plan.segments, strict=True):
        if work.running.wanted_states:
            work.states, work.start = states, segment.start


def share_successors(verdicts: list[tuple[Work, Tensor, Verdict]]) -> None:
    """Give every request the target's likeliest next tokens after each of its rows, as many as its drafters need."""
    for work, logits, _ in verdicts:
        if count := work.running.wanted_successors:
            size = work.running.sampler.vocabulary.size
            work.successors = logits[:, :size].topk(min(count, size), dim=-1).indices.tolist()


def kept_rows(work: Work, verdict: Verdict | None) -> slice | Tensor:
    """Rows of the pack that the request has kept: its pending tokens, then the accepted path."""
    path = verdict.path if verdict else []
    if path == list(range(len(path))):  # a view costs next to nothing
        return slice(work.start, work.start + work.chunk + len(path))
    first = work.start + work.chunk
    rows = [*range(work.start, first), *(first + node for node in path)]
    return torch.tensor(rows, device=next(iter(work.states.values())).device)


def observation(
    work: Work, drafter: Drafter, verdict: Verdict | None, committed: list[int], rows: slice | Tensor | None
) -> Observation:
    """What a drafter is told of a step, once its slots are kept."""
    needs, path = drafter.needs, verdict.path if verdict else []
    features = tuple(work.states[boundary][rows] for boundary in needs.features)
    successors = [row[: needs.successors] for row in work.successors] if needs.successors and work.successors else None
    return Observation(
        request=work.running.request,
        table=work.running.table,
        first=len(work.running.table) - work.chunk - len(path),
        tree=work.tree,
        verdict=verdict,
        committed=committed,
        features=features,
        successors=successors,
    )


def kept_slots(work: Work, verdict: Verdict | None) -> list[int]:
    """Slots that stay after the step: the chunk's, then the accepted path's."""
    path = verdict.path if verdict else []
    return work.chunk_slots + [work.node_slots[node] for node in path]


def observe(batch: list[Work], verdicts: dict[int, Verdict], committed: dict[int, list[int]]) -> None:
    """Tell each drafter what became of its requests; of mere prompt chunks only where it needs their features."""
    told: dict[int, tuple[Drafter, list[Observation]]] = {}
    for work in batch:
        name = work.running.request.id
        verdict, tokens = verdicts.get(name), committed.get(name, [])
        rows = kept_rows(work, verdict) if work.states else None
        for drafter in work.running.drafters:
            if verdict is not None or drafter.needs.features:
                _, seen = told.setdefault(id(drafter), (drafter, []))
                seen.append(observation(work, drafter, verdict, tokens, rows))
    for drafter, observations in told.values():
        drafter.observe(observations)
