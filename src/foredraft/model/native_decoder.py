"""The whole forward of a model as one call into the native extension.

Shapes: T rows of the pack, R wanted rows, V vocabulary.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from foredraft.core.step_plan import StepPlan
from foredraft.model.capture import States
from foredraft.model.layer_skips import NOTHING_SKIPPED, LayerSkips, ReadShares
from foredraft.model.loading import first_line
from foredraft.model.native_parts import ModelParts, parts_of
from foredraft.model.native_program import Sections, write_model
from foredraft.model.native_run import PlanRunner
from foredraft.model.native_runtime import DTYPES, NotCovered, Runtime
from foredraft.model.program_writer import SAME
from foredraft.model.slot_pool import LayerGroup

BUILD_ERRORS = (RuntimeError, TypeError, ValueError)  # of the extension


class NativeDecoder:
    """A model's program, run over plans.

    Attributes:
        program, runtime: The program, and who made it.
        runner: Runs it.
        path: A line that says what runs it: kernels, threads and format of the weights.
        dtype: Of activations and cache.
        width, vocabulary: Of hidden states and of logits.
        head_matrix: Number of the vocabulary head among the program's matrices, for programs that borrow it.
        layers: The layers' indices.
        shares: What each sublayer reads of the weights.
        weight_bytes: What weights in another format than the module's take; 0 for the same format.
        sections: Numbers of the program's sections.
        head_alone: The one for hidden states from elsewhere, which a forward leaves out.
    """

    def __init__(self, program: Any, parts: ModelParts, runtime: Runtime, head_matrix: int, weights: str = SAME):
        self.program, self.runtime, self.head_matrix = program, runtime, head_matrix
        table = parts.embedding.weight
        self.dtype, self.width, self.vocabulary = table.dtype, table.shape[1], parts.head.out_features
        self.runner = PlanRunner(program, runtime, logits=self.vocabulary, dtype=self.dtype)
        self.layers, self.shares = range(len(parts.layers)), shares_of(parts)
        threads = f"{runtime.threads} thread{'s' if runtime.threads > 1 else ''}"
        self.path = f"{self.runner.path}, {threads}" + (f", {weights} weights" if weights != SAME else "")
        self.weight_bytes = 0 if weights == SAME else program.weight_bytes + table.numel() * table.element_size()
        self.sections = Sections(len(parts.layers))
        self.head_alone = [self.sections.head]

    def __call__(
        self, plan: StepPlan, layers: LayerGroup, features: Sequence[int] = (), skips: LayerSkips = NOTHING_SKIPPED
    ) -> tuple[Tensor, States]:
        """Logits of the plan's wanted rows, [R, V], and the hidden states `features` of all rows, [T, hidden] each.

        The sublayers `skips` are left out: nothing of them is computed or stored.
        """
        rows = len(plan.ids)
        states = {boundary: torch.empty(rows, self.width, dtype=self.dtype) for boundary in features}
        skip = self.head_alone if skips is NOTHING_SKIPPED else self.left_out(skips)
        return self.runner(plan, layers, (), skip=skip, kept=states), states

    def left_out(self, skips: LayerSkips) -> list[int]:
        """Sections of the sublayers `skips`, and the one that every forward leaves out."""
        sections = [self.sections.attention(layer) for layer in skips.attention]
        return sections + [self.sections.mlp(layer) for layer in skips.mlp] + self.head_alone


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
        return self.decoder.runner.alone(rows, skip=self.skip).unflatten(0, x.shape[:-1])


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
        head = write_model(program, parts, weights=weights, release=release)
    except BUILD_ERRORS as error:
        raise refusal(module, error) from None
    decoder = NativeDecoder(program, parts, runtime, head, weights)
    if release:
        module.lm_head = NativeHead(decoder)
    return decoder


def refusal(module: nn.Module, error: Exception) -> NotCovered:
    """What to raise where one of `BUILD_ERRORS` says why the extension does not take `module`."""
    return NotCovered(f"native kernels refuse {type(module).__name__}: {first_line(error)}")


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
