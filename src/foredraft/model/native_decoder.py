"""The whole forward of a model as one call into the native extension.

Shapes: T rows of the pack, R wanted rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from foredraft.core.plan_builder import indices
from foredraft.core.step_plan import Segment, StepPlan
from foredraft.model.capture import States
from foredraft.model.layer_skips import NOTHING_SKIPPED, LayerSkips, ReadShares
from foredraft.model.native_parts import ModelParts, parts_of
from foredraft.model.native_program import SAME, ProgramBuilder, Sections
from foredraft.model.native_runtime import DTYPES, NotCovered, Runtime
from foredraft.model.slot_pool import LayerGroup

CPU = torch.device("cpu")
BUILD_ERRORS = (RuntimeError, TypeError, ValueError)


class NativeDecoder:
    """A model's program, run over plans.

    Attributes:
        line: Kernels, threads and weights, for people.
        head_matrix: Number of the vocabulary head among the program's matrices, for programs that borrow it.
        layers: The layers' indices.
        shares: What each sublayer reads of the weights.
        weight_bytes: What weights in another format than the module's take; 0 for the same format.
    """

    def __init__(self, program: Any, parts: ModelParts, runtime: Runtime, head_matrix: int, weights: str = SAME):
        self.program, self.runtime, self.head_matrix = program, runtime, head_matrix
        self.dtype = parts.embedding.weight.dtype
        self.width, self.vocabulary = parts.embedding.embedding_dim, parts.head.out_features
        self.layers, self.shares = range(len(parts.layers)), shares_of(parts)
        threads = f"{runtime.threads} thread{'s' if runtime.threads > 1 else ''}"
        self.line = f"{runtime.kernels} kernels, {threads}" + (f", {weights} weights" if weights != SAME else "")
        table = parts.embedding.weight
        self.weight_bytes = 0 if weights == SAME else program.weight_bytes + table.numel() * table.element_size()
        self.sections = Sections(len(parts.layers))
        self.head_alone = [self.sections.head]
        self.caches: WeakKeyDictionary[LayerGroup, Any] = WeakKeyDictionary()

    def __call__(
        self, plan: StepPlan, layers: LayerGroup, features: Sequence[int] = (), skips: LayerSkips = NOTHING_SKIPPED
    ) -> tuple[Tensor, States]:
        """Logits of the plan's wanted rows, [R, V], and the hidden states `features` of all rows, [T, hidden] each.

        The sublayers `skips` are left out: nothing of them is computed or stored.
        """
        rows, tokens = plan.logit_rows, plan.tokens[0]
        logits = torch.empty(rows.shape[0], self.vocabulary, dtype=self.dtype)
        states = {boundary: torch.empty(tokens.shape[0], self.width, dtype=self.dtype) for boundary in features}
        self.program.run(
            self.caches.get(layers) or self.cache_of(layers),
            tokens,
            plan.positions[0],
            indices(plan.write, CPU),
            [span(segment) for segment in plan.segments],
            rows,
            list(states),
            list(states.values()),
            logits if rows.shape[0] else None,
            [],
            None,
            self.head_alone if skips is NOTHING_SKIPPED else self.left_out(skips),
        )
        return logits, states

    def left_out(self, skips: LayerSkips) -> list[int]:
        sections = [self.sections.attention(layer) for layer in skips.attention]
        return sections + [self.sections.mlp(layer) for layer in skips.mlp] + self.head_alone

    def cache_of(self, layers: LayerGroup) -> Any:
        """The extension's handle of a group's storage, made once."""
        keys, values = ([part[layer] for layer in self.layers] for part in (layers.keys, layers.values))
        self.caches[layers] = self.runtime.cache(keys, values)
        return self.caches[layers]


class NativeHead(nn.Module):
    """The vocabulary head in the place of the module's own: drafters borrow it there."""

    def __init__(self, decoder: NativeDecoder):
        super().__init__()
        self.decoder = decoder
        self.in_features, self.out_features = decoder.width, decoder.vocabulary
        self.skip = [number for number in decoder.sections.all if number != decoder.sections.head]

    def forward(self, x: Tensor) -> Tensor:
        """[..., hidden] to [..., V]."""
        rows = x.reshape(-1, self.in_features).contiguous()
        count = rows.shape[0]
        logits = torch.empty(count, self.out_features, dtype=rows.dtype)
        if count:
            zeros, all_rows = torch.zeros(count, dtype=torch.int64), torch.arange(count)
            self.decoder.program.run(None, zeros, zeros, zeros, [], all_rows, [], [], logits, [rows], None, self.skip)
        return logits.unflatten(0, x.shape[:-1])


def native_decoder_of(
    module: nn.Module,
    windows: dict[int, int | None],
    runtime: Runtime,
    *,
    weights: str = SAME,
    release: bool = False,
) -> NativeDecoder:
    """A decoder over the parts of an unpacked `module`, whose layers have `windows` by config.

    With `release` the module's linears give up their weights to it, and its head becomes a `NativeHead`. Raises
    `NotCovered`; where that comes from the extension some weights may be gone already.
    """
    parts = parts_of(module, windows)
    dtype = parts.embedding.weight.dtype
    try:
        program = runtime.program(DTYPES[dtype])
        head = ProgramBuilder(program, parts, weights=weights, release=release).build()
    except BUILD_ERRORS as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise NotCovered(f"native kernels refuse {type(module).__name__}: {reason}") from None
    decoder = NativeDecoder(program, parts, runtime, head, weights)
    if release:
        module.lm_head = NativeHead(decoder)
    return decoder


def span(segment: Segment) -> tuple:
    """A segment as the extension reads it: start, rows, context, first slot of a run or -1, slots, ancestors."""
    keys = segment.keys
    first, slots = (keys.start, None) if isinstance(keys, slice) else (-1, keys)
    return segment.start, segment.rows, segment.context, first, slots, segment.ancestors


def shares_of(parts: ModelParts) -> ReadShares:
    attention = [numbers([*layer.attention.projections, layer.attention.output]) for layer in parts.layers]
    mlp = [numbers([*layer.mlp.lead, layer.mlp.down]) for layer in parts.layers]
    head = numbers([parts.head])
    total = sum(attention) + sum(mlp) + head
    return ReadShares(
        attention=tuple(number / total for number in attention),
        mlp=tuple(number / total for number in mlp),
        head=head / total,
    )


def numbers(linears: list[nn.Linear]) -> int:
    return sum(one.in_features * one.out_features for one in linears)
