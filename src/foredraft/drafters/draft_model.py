"""Drafting by a smaller model of the same vocabulary (Leviathan et al. 2023, Chen et al. 2023), chain or tree.

The draft model's keys and values live in extra layers of the target's pool, under the target's own slots: what
acceptance keeps or frees serves both. A token the draft model has not run through, such as the last one of a chain that
was accepted whole, is caught up at the next draft.
"""

from torch import Tensor

from foredraft.core.draft_tree import DraftTree
from foredraft.core.errors import VocabularyError, require
from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.request import Request
from foredraft.core.speculation_config import SpeculationConfig
from foredraft.drafters.draft_cache import CATCH_UP_ROWS, Forward
from foredraft.drafters.draft_choice import choices_for
from foredraft.drafters.drafter import Drafter, DrafterNeeds, DraftTask, Observation, register
from foredraft.drafters.foreign_draft_models import make_foreign_draft_model
from foredraft.drafters.growing_tree import GrowingTree, going_on
from foredraft.drafters.level_ranking import grow
from foredraft.drafters.looped_draft import drafted, looped_drafts
from foredraft.drafters.prefix_state import PrefixState
from foredraft.drafters.table_slots import first_slots
from foredraft.drafters.vocabulary_check import same_vocabulary
from foredraft.heads.draft_loop import DraftLoop
from foredraft.model.layer_skips import NOTHING_SKIPPED, LayerSkips
from foredraft.model.loading import find_checkpoint, load_tokenizer
from foredraft.model.native_decoder import NativeDecoder
from foredraft.model.slot_pool import SlotPool
from foredraft.model.target import ModelTarget, load_beside


class DraftModelDrafter:
    """Drafts with a model of its own.

    Attributes:
        model: The draft model, its layers attached to `pool`.
        context_length: Positions it was made for; it drafts nothing past them.
        loop: Makes whole drafts in one call, where the model takes the native path.
        filled: Positions of each request whose keys and values the draft model has stored.
        ran: Slots of the nodes of each request's last draft that the draft model ran through; they tell nodes apart,
            even in a draft that was cut.
    """

    name = "draft_model"
    needs = DrafterNeeds(samples=True, stepwise=True, resumes=True, slotted=True)

    def __init__(self, model: Forward, pool: SlotPool, *, context_length: int):
        self.model, self.pool, self.context_length = model, pool, context_length
        self.loop = loop_of(model)
        self.filled: dict[int, int] = {}
        self.ran: dict[int, set[int]] = {}

    def propose(self, tasks: list[DraftTask]) -> list[DraftTree]:
        """Trees for requests within the draft model's own context, empty ones past it."""
        trees = {task.request.id: DraftTree() for task in tasks}
        fitting = [task for task in tasks if len(task.request.tokens) + task.depth <= self.context_length]
        for task, tree in zip(fitting, self.trees(fitting) if fitting else [], strict=True):
            trees[task.request.id] = tree
        return list(trees.values())

    def trees(self, tasks: list[DraftTask]) -> list[DraftTree]:
        self.catch_up(tasks)
        return drafted(tasks, self.loop, self.looped, self.grown)

    def looped(self, tasks: list[DraftTask]) -> list[DraftTree]:
        """Drafts made in one call, which runs what is pending, too."""
        trees = looped_drafts(self.loop, tasks, self.pool, self.name, self.filled)
        self.filled.update((task.request.id, len(task.request.tokens)) for task in tasks)
        self.ran.update((task.request.id, ran) for task, (_, ran) in zip(tasks, trees, strict=True))
        return [tree for tree, _ in trees]

    def grown(self, tasks: list[DraftTask]) -> list[DraftTree]:
        """Trees grown level by level, each level one forward."""
        logits = self.forward([self.pending_rows(task, last=True) for task in tasks])
        self.filled.update((task.request.id, len(task.request.tokens)) for task in tasks)
        drafts = [
            GrowingTree(task, choices_for(task), self.pool, self.name, len(task.request.tokens)) for task in tasks
        ]
        grow(drafts, logits)
        while going := going_on(drafts):
            grow(going, self.forward([draft.rows() for draft in going]))
        trees = [draft.finished() for draft in drafts]
        for draft, tree in zip(drafts, trees, strict=True):
            self.ran[draft.task.request.id] = {tree.slots[node] for node in draft.ran}
        return trees

    def catch_up(self, tasks: list[DraftTask]) -> None:
        """Run the draft model through committed tokens it has not seen, all but the last stretch of each request."""
        while behind := [task for task in tasks if self.missing(task) > CATCH_UP_ROWS]:
            self.forward([self.pending_rows(task, last=False) for task in behind])
            for task in behind:
                self.filled[task.request.id] = self.filled.get(task.request.id, 0) + CATCH_UP_ROWS

    def missing(self, task: DraftTask) -> int:
        return len(task.request.tokens) - self.filled.get(task.request.id, 0)

    def pending_rows(self, task: DraftTask, *, last: bool) -> Rows:
        start, tokens = self.filled.get(task.request.id, 0), task.request.tokens
        stop = len(tokens) if last else start + CATCH_UP_ROWS
        committed = len(task.table)
        slots = task.table.slots[start:stop] + task.table.tail[max(0, start - committed) : max(0, stop - committed)]
        return Rows(
            tokens=tokens[start:stop],
            pending=stop - start,
            parents=[],
            slots=slots,
            context=start,
            context_slots=first_slots(task.table, start, self.pool.device),
            logits=int(last),
        )

    def forward(self, rows: list[Rows]) -> Tensor:
        return self.model.forward(build_plan(rows, self.pool.device))

    def observe(self, observations: list[Observation]) -> None:
        """Count the accepted nodes the draft model ran through: their keys and values stay valid."""
        for seen in observations:
            ran = self.ran.pop(seen.request.id, set())
            slots = seen.tree.slots or []
            for node in seen.path:
                if node >= len(slots) or slots[node] not in ran:
                    break
                self.filled[seen.request.id] += 1

    def leave(self, request: Request, length: int) -> PrefixState:
        """How many of the first `length` positions have been run; the others are caught up by whoever drafts next."""
        filled = min(self.filled.get(request.id, 0), length)
        return PrefixState(filled, filled)

    def resume(self, request: Request, state: PrefixState) -> None:
        """Go on from another request's text."""
        self.close(request)
        self.filled[request.id] = state.filled

    def close(self, request: Request) -> None:
        self.filled.pop(request.id, None)
        self.ran.pop(request.id, None)


def loop_of(model: Forward, skips: LayerSkips = NOTHING_SKIPPED) -> DraftLoop | None:
    """What makes whole drafts in one call without the sublayers `skips`, where the model takes the native path."""
    decoder = getattr(model, "decoder", None)
    if not isinstance(decoder, NativeDecoder):
        return None
    cache, skip = decoder.runner.cache(model.layers), decoder.left_out(skips)
    return DraftLoop(program=decoder.program, cache=cache, first_skip=skip, skip=skip, target_ids=None)


@register("draft_model")
def make_draft_model(config: SpeculationConfig, target: ModelTarget) -> Drafter:
    """Load `config.model` beside `target`, to draft as `config.vocabulary_matching` says.

    Raises `ConfigError`, `ModelError` or `VocabularyError`.
    """
    require(
        config.model is not None, "method draft_model needs a draft model: give its folder, hub id or embedded name"
    )
    require(isinstance(target, ModelTarget), f"{target.name} is no loaded model; draft_model cannot draft for it")
    missing = f"{target.name} came without a tokenizer; the tokens of {config.model!r} cannot be compared with its own"
    require(target.tokenizer is not None, missing, VocabularyError)
    checkpoint = find_checkpoint(config.model)
    tokenizer = load_tokenizer(checkpoint)
    matching = config.vocabulary_matching
    if matching != "auto" or not same_vocabulary(target.tokenizer, tokenizer):
        return make_foreign_draft_model(checkpoint, tokenizer, target, config)
    model = load_beside(target, checkpoint, config.draft_weights)
    model.attach(target.pool, f"draft_model {config.model} {len(target.pool.groups)}")  # engines may share a target
    return DraftModelDrafter(model, target.pool, context_length=checkpoint.capability.context_length)
