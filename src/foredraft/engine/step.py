"""The parts of one step, as functions over its work: draft, forward, verify."""

import torch
from torch import Tensor

from foredraft.core.draft_tree import NO_DRAFT, DraftTree
from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.core.step_plan import StepPlan, TokenChoice
from foredraft.drafters.drafter import Drafter, DraftTask, Observation
from foredraft.engine.row_choice import choice_of, told
from foredraft.engine.running import Option, Work
from foredraft.engine.writing import prompt_logprobs
from foredraft.model.capture import States
from foredraft.model.slot_pool import SlotPool
from foredraft.sampling.joint_choice import drawn_together, greedy_together
from foredraft.sampling.noise import likeliest
from foredraft.verification.verifier import accept


def place_chunks(batch: list[Work], pool: SlotPool) -> None:
    """Take cache slots for every pending token of the step."""
    for work in batch:
        work.chunk_slots = pool.take(work.running.table, work.chunk)


def propose(orders: list[tuple[Work, Option]]) -> list[DraftTree]:
    """A draft for each piece of work by the option chosen for it; each drafter is asked once for all of its tasks."""
    trees = [NO_DRAFT] * len(orders)
    groups: dict[int, list[tuple[int, DraftTask]]] = {}
    for place, (work, option) in enumerate(orders):
        task = draft_task(work, option.speculation) if option.drafter.needs.drafts else None
        if task is not None:
            groups.setdefault(id(option.drafter), []).append((place, task))
    for group in groups.values():
        drafter = orders[group[0][0]][1].drafter
        for (place, task), tree in zip(group, drafter.propose([task for _, task in group]), strict=True):
            assert len(tree) - tree.probes <= task.nodes
            trees[place] = tree
    return trees


def draft(orders: list[tuple[Work, Option]], pool: SlotPool) -> None:
    """Make and place the draft that each piece of work is to have."""
    for (work, _), tree in zip(orders, propose(orders), strict=True):
        place_draft(work, tree, pool)


def place_draft(work: Work, tree: DraftTree, pool: SlotPool) -> None:
    """Make `tree` the work's draft, with cache slots for its nodes."""
    if len(tree):
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
        growth=work.growth,
    )


def plan_of(batch: list[Work], device: torch.device) -> StepPlan:
    plan = build_plan([rows_of(work, device) for work in batch], device)
    plan.choice = choice_of(batch)
    return plan


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


def verify(batch: list[Work], logits: Tensor, choice: TokenChoice | None) -> None:
    """Give every request that decides in this step its logits and its verdict."""
    tokens = choice.tokens if choice else None
    if tokens is None or choice.logits:
        share_logits(batch, logits)
    deciding = [work for work in batch if work.decides]
    chosen = chosen_together(deciding) if tokens is None else told(batch, tokens)
    for work in deciding:
        running = work.running
        work.verdict = accept(
            running.rule, work.tree.guesses, running.sampler, work.choice_logits, chosen.get(id(work))
        )


def share_logits(batch: list[Work], logits: Tensor) -> None:
    """Split the logits [rows, V] of a step; those of a prompt that is to be scored are read here."""
    parts = logits.split([work.logit_rows for work in batch]) if len(batch) > 1 else [logits]
    for work, own in zip(batch, parts, strict=True):
        if len(own) > work.decision_rows:
            work.running.prompt_logprobs += prompt_logprobs(work, own[: work.chunk])
            own = own[len(own) - work.decision_rows :]
        work.logits = own


def chosen_together(deciding: list[Work]) -> dict[int, list[int]]:
    """The token of each row of those requests that need no more for it than their logits and noise, by id of work."""
    asked = [work for work in deciding if work.needs_no_law]
    greedy = [work for work in asked if work.running.sampler.plain_greedy]
    drawn = [work for work in asked if not work.running.sampler.greedy and work.running.sampler.plain]
    chosen = {}
    if greedy:
        tokens = greedy_together([work.choice_logits for work in greedy])
        chosen |= zip(map(id, greedy), tokens, strict=True)
    if drawn:
        samplers = [work.running.sampler for work in drawn]
        depths = [[0, *work.tree.guesses.depths] for work in drawn]
        tokens = drawn_together(samplers, [work.choice_logits for work in drawn], depths)
        chosen |= zip(map(id, drawn), tokens, strict=True)
    return chosen


def wanted_features(batch: list[Work]) -> tuple[int, ...]:
    """Hidden states that some drafter of the step needs, each once."""
    return tuple(sorted({boundary for work in batch for boundary in work.running.wanted_states}))


def share_features(batch: list[Work], plan: StepPlan, states: States) -> None:
    """Let every request find the hidden states of its rows, where some drafter of it needs any."""
    for work, segment in zip(batch, plan.segments, strict=True):
        if work.running.wanted_states:
            work.states, work.start = states, segment.start


def share_successors(batch: list[Work]) -> None:
    """Give every request the target's likeliest next tokens after each of its rows, as many as its drafters need."""
    for work in batch:
        if work.verdict is not None and (count := work.running.wanted_successors):
            size = work.running.sampler.vocabulary.size
            work.successors = likeliest(work.logits[:, :size], min(count, size))


def kept_rows(work: Work) -> slice | Tensor:
    """Rows of the pack that the request has kept: its pending tokens, then the accepted path."""
    path = work.path
    if path == list(range(len(path))):  # a view costs next to nothing
        return slice(work.start, work.start + work.chunk + len(path))
    first = work.start + work.chunk
    rows = [*range(work.start, first), *(first + node for node in path)]
    return torch.tensor(rows, device=next(iter(work.states.values())).device)


def observation(work: Work, drafter: Drafter, rows: slice | Tensor | None) -> Observation:
    """What a drafter is told of a step, once its slots are kept."""
    needs = drafter.needs
    successors = [row[: needs.successors] for row in work.successors] if needs.successors and work.successors else None
    return Observation(
        request=work.running.request,
        table=work.running.table,
        first=len(work.running.table) - work.chunk - len(work.path),
        tree=work.tree,
        verdict=work.verdict,
        committed=work.event.tokens if work.event else [],
        features=tuple(work.states[boundary][rows] for boundary in needs.features),
        successors=successors,
    )


def kept_slots(work: Work) -> list[int]:
    """Slots that stay after the step: the chunk's, then the accepted path's."""
    return work.chunk_slots + [work.node_slots[node] for node in work.path]


def observe(batch: list[Work]) -> None:
    """Tell each drafter what became of its requests; of mere prompt chunks only where it needs their features."""
    told: dict[int, tuple[Drafter, list[Observation]]] = {}
    for work in batch:
        rows = kept_rows(work) if work.states else None
        for drafter in work.running.told:
            needs = drafter.needs
            if needs.slotted and work.tree.slots is None:
                continue
            if work.verdict is not None or needs.features:
                _, seen = told.setdefault(id(drafter), (drafter, []))
                seen.append(observation(work, drafter, rows))
    for drafter, observations in told.values():
        drafter.observe(observations)
