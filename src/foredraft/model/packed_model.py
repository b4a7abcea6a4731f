"""A loaded transformers model that computes packed forwards over a slot pool."""

import inspect
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import cached_property

import torch
from torch import Tensor, nn

from foredraft.core.errors import ModelError, require
from foredraft.core.step_plan import StepPlan
from foredraft.model.attention import Ambient, running
from foredraft.model.capability import Capability
from foredraft.model.capture import States, capturing
from foredraft.model.decoder import Decoder
from foredraft.model.devices import Device
from foredraft.model.graphed_model import GraphedModel
from foredraft.model.layer_skips import NOTHING_SKIPPED, LayerSkips, SkippableLayers
from foredraft.model.loading import Checkpoint, first_line, load_module
from foredraft.model.native_decoder import NativeDecoder
from foredraft.model.native_program import released
from foredraft.model.native_runtime import NotCovered
from foredraft.model.program_writer import SAME
from foredraft.model.slot_pool import LayerGroup, LayerShape, SlotPool
from foredraft.model.trial import (
    TOLERANCE,
    TRIAL_POSITIONS,
    agree,
    distance,
    packed_logits,
    plain_logits,
    stored_shapes,
)

LAST_POSITION = 2**20  # where rotations in fp32 still tell neighbours apart
FORWARD_ERRORS = (AssertionError, AttributeError, LookupError, RuntimeError, TypeError, ValueError)


class PackedModel:
    """A model ready for packed forwards.

    Attributes:
        module: The transformers model, reading our attention function.
        capability: Its shape.
        shapes: What each layer stores for a token.
        weight_bytes: Bytes of its weights; tied tensors count once.
        path: A line that says which path its forwards take and why.
        layers: Its storage in a pool, once attached.
        decoder: Runs the module's packed parts without the module, or graphs of it, where that says the same.
    """

    def __init__(self, module: nn.Module, capability: Capability, device: torch.device):
        """Wrap `module`. Raises `ModelError` when not all of its layers use the attention interface."""
        self.module, self.capability, self.device = module, capability, device
        self.dtype = module.dtype
        self.weight_bytes = sum(p.numel() * p.element_size() for p in module.parameters())
        self.keeps_rows = "logits_to_keep" in inspect.signature(module.forward).parameters
        self.path = "module path"
        self.layers: LayerGroup | None = None
        self.decoder: Decoder | GraphedModel | NativeDecoder | None = None
        self.shapes = self.stored_shapes()

    @property
    def bytes_per_token(self) -> int:
        """Bytes of cache one token takes."""
        return sum(shape.numbers for shape in self.shapes.values()) * self.dtype.itemsize

    def attach(self, pool: SlotPool, name: str) -> None:
        """Take storage for this model's layers in `pool`."""
        self.layers = pool.add_layers(name, self.shapes, self.dtype)

    def forward(self, plan: StepPlan) -> Tensor:
        """Logits of the plan's wanted rows, [R, V]; keys and values of all rows are stored in their slots."""
        return self.run(plan, self.layers)

    def forward_with_features(self, plan: StepPlan, features: Sequence[int]) -> tuple[Tensor, States]:
        """As `forward`, and the hidden states of all rows at the boundaries `features`, [T, hidden] each."""
        return self.run_with(plan, self.layers, features)

    def forward_skipping(self, plan: StepPlan, skips: LayerSkips) -> Tensor:
        """As `forward` without the sublayers `skips`; keys and values are stored where an attention runs.

        Raises `ModelError` where the module's sublayers cannot be found.
        """
        return self.runner(plan, self.layers, skips=skips)[0]

    @cached_property
    def skippable(self) -> SkippableLayers | NativeDecoder:
        """The layers, to leave parts of them out. Raises `ModelError` where the module's cannot be found."""
        if isinstance(self.decoder, NativeDecoder):  # whose module may have no weights left to run with
            return self.decoder
        return SkippableLayers(self.module, self.probe_module)

    def probe_module(self) -> None:
        """Run the module itself on a few tokens, storing nothing."""
        stored_shapes(
            lambda plan, layers: self.run_module(plan, layers)[0], self.capability.vocabulary_rows, self.device
        )

    def run(self, plan: StepPlan, layers) -> Tensor:
        return self.run_with(plan, layers, ())[0]

    def run_with(self, plan: StepPlan, layers, features: Sequence[int]) -> tuple[Tensor, States]:
        return self.runner(plan, layers, features)

    @property
    def runner(self) -> Callable[..., tuple[Tensor, States]]:
        """What runs the forwards: the decoder where there is one, else the module."""
        return self.run_module if self.decoder is None else self.decoder

    @torch.inference_mode()
    def run_module(
        self,
        plan: StepPlan,
        layers,
        features: Sequence[int] = (),
        skips: LayerSkips = NOTHING_SKIPPED,
        attend: Callable | None = None,
    ) -> tuple[Tensor, States]:
        """As `run_with` by the module itself without `skips`; its layers attend by `attend` where one is given."""
        rows = plan.logit_rows
        # A forward that wants no logits still computes one row: kernels do not all take an empty product.
        options = {"logits_to_keep": rows if len(rows) else 1} if self.keeps_rows else {}
        ambient = Ambient(plan, layers, self.capability.windows, attend)
        left_out = self.skippable.left_out(skips) if skips != NOTHING_SKIPPED else nullcontext()
        with left_out, running(ambient), capturing(self.module, features) as states:
            output = self.module(input_ids=plan.tokens, position_ids=plan.positions, use_cache=False, **options)
        logits = output.logits[0, : len(rows)] if self.keeps_rows else output.logits[0, rows]
        return logits, {boundary: state[0] for boundary, state in states.items()}

    def stored_shapes(self) -> dict[int, LayerShape]:
        shapes = stored_shapes(self.run, self.capability.vocabulary_rows, self.device)
        if len(shapes) != self.capability.layers:
            seen = f"{len(shapes)} of {self.capability.layers} layers use the attention interface"
            raise ModelError(f"{self.capability.architecture} cannot be run exactly: only {seen}")
        return shapes

    def trial_logits(self) -> Tensor:
        """Logits of the load trial at the first and at the last positions, to compare paths by, [8, V]."""
        last = min(self.capability.context_length, LAST_POSITION) - TRIAL_POSITIONS
        return torch.cat([self.logits_from(first) for first in (0, max(last, 0))])

    def logits_from(self, first: int) -> Tensor:
        vocabulary = self.capability.vocabulary_rows
        return packed_logits(self.run, self.shapes, vocabulary, self.dtype, self.device, first)


def load_packed_model(
    checkpoint: Checkpoint, dtype: torch.dtype, device: Device, *, elsewhere: torch.dtype | None = None
) -> PackedModel:
    """Load `checkpoint` and take the fastest path that reproduces the module path.

    Off the native path it is in the dtype `elsewhere`, where one is given: torch is slow in bf16 on many CPUs.

    Raises `ModelError` for a model that is broken or cannot be run exactly.
    """
    model = checked(checkpoint, dtype, device)
    wanted = model.trial_logits()
    try:
        take_native(model, device, wanted)
        return model
    except NotCovered as missing:
        reason = str(missing)
    possible = device.weights == SAME or not device.strict
    require(possible, f"model {checkpoint.name!r} cannot be run in {device.weights}: {reason}", ModelError)
    if elsewhere not in (None, dtype):
        del model  # before another one is read
        return load_packed_model(checkpoint, elsewhere, device)
    if released(model.module):
        model = wrapped(checkpoint, dtype, device)
    path = device.prepare(model.module)
    if reproduces(model, wanted):
        model.path = path
        take_decoder(model, device.decoder(model), wanted)
    else:
        model = wrapped(checkpoint, dtype, device)
        model.path = "module path: the fast path did not reproduce it on this model"
    model.path += f"; {reason}"
    return model


def take_native(model: PackedModel, device: Device, wanted: Tensor) -> None:
    """Move `model` into the native path where that says `wanted`; raises `NotCovered` where it cannot or does not."""
    model.decoder = device.native_decoder(model.module, model.capability.windows)
    if not reproduces(model, wanted):
        model.decoder = None
        raise NotCovered("native kernels did not reproduce this model")
    model.path = model.decoder.path
    model.weight_bytes = model.decoder.weight_bytes or model.weight_bytes


def take_decoder(model: PackedModel, decoder: Decoder | GraphedModel | None, wanted: Tensor) -> None:
    """Run forwards by `decoder`, where there is one and `model` still says `wanted`."""
    model.decoder = decoder
    if decoder is not None and reproduces(model, wanted):
        model.path += f"; {decoder.note}"
    else:
        model.decoder = None


def wrapped(checkpoint: Checkpoint, dtype: torch.dtype, device: Device) -> PackedModel:
    module = load_module(checkpoint, dtype, device.torch_device)
    return PackedModel(module, checkpoint.capability, device.torch_device)


def checked(checkpoint: Checkpoint, dtype: torch.dtype, device: Device) -> PackedModel:
    """A wrapped model whose packed forward says what transformers' own forward says; raises `ModelError` otherwise."""
    name = checkpoint.capability.architecture
    try:
        model = wrapped(checkpoint, dtype, device)
        wanted = plain_logits(model.module, model.capability.vocabulary_rows, model.device)
        error = distance(wanted, model.logits_from(0))
    except ModelError:
        raise
    except FORWARD_ERRORS as failure:
        raise ModelError(f"{name} cannot be run: its packed forward fails with {first_line(failure)}") from None
    if not error <= TOLERANCE[dtype]:  # NaN is no agreement
        raise ModelError(f"{name} cannot be run exactly: its packed forward is {error:.2g} off transformers' own")
    return model


def reproduces(model: PackedModel, wanted: Tensor) -> bool:
    """Whether a reworked model still says `wanted`; it may also fail where its code reads a replaced module."""
    try:
        return agree(wanted, model.trial_logits(), model.dtype)
    except FORWARD_ERRORS:
        return False
