"""The trial a model passes before it is used: a small packed forward must say what transformers' own forward says.

Six tokens in two chunks, then two siblings below the last: context, chunk, tree and scattered slots in four rows.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.slots import Slots
from foredraft.core.step_plan import StepPlan
from foredraft.model.attention import NAME
from foredraft.model.slot_pool import LayerGroup, LayerShape

FIRST, SECOND, SIBLINGS = [5, 3, 7, 4], [6, 2], [8, 9]
TRIAL_POSITIONS = 7
SLOTS = [0, 2, 4, 6, 7, 5, 3, 1]
TOLERANCE = {torch.float32: 1e-4, torch.float16: 0.03, torch.bfloat16: 0.15}  # tiny random models: under a quarter

Run = Callable[[StepPlan, LayerGroup], Tensor]


@dataclass(slots=True)
class LayerProbe:
    """Stands in for a layer group during one forward and notes what each layer stores."""

    shapes: dict[int, LayerShape] = field(default_factory=dict)
    last: tuple[Tensor, Tensor] | None = None

    def write(self, layer: int, slots: Slots, key: Tensor, value: Tensor) -> None:
        self.shapes[layer] = LayerShape(key.shape[0], key.shape[2], value.shape[2])
        self.last = (key, value)

    def read(self, layer: int, slots: Slots) -> tuple[Tensor, Tensor]:
        return self.last


def first_rows(vocabulary: int) -> Rows:
    return Rows(
        tokens=[token % vocabulary for token in FIRST],
        pending=len(FIRST),
        parents=[],
        slots=SLOTS[:4],
        context=0,
        context_slots=slice(0, 0),
        logits=0,
    )


def second_rows(vocabulary: int) -> Rows:
    return Rows(
        tokens=[token % vocabulary for token in SECOND + SIBLINGS],
        pending=len(SECOND),
        parents=[-1, -1],
        slots=SLOTS[4:],
        context=len(FIRST),
        context_slots=torch.tensor(SLOTS[:4]),
        logits=4,
    )


def stored_shapes(run: Run, vocabulary: int, device: torch.device) -> dict[int, LayerShape]:
    """What each layer that uses the attention interface stores for a token."""
    probe = LayerProbe()
    run(build_plan([first_rows(vocabulary)], device), probe)
    return probe.shapes


def packed_logits(
    run: Run, shapes: dict[int, LayerShape], vocabulary: int, dtype: torch.dtype, device: torch.device, first: int = 0
) -> Tensor:
    """Logits of the second chunk and of both siblings through packed forwards, told they start at `first`, [4, V]."""
    layers = LayerGroup(shapes, len(SLOTS), dtype, device)
    for rows in (first_rows(vocabulary), second_rows(vocabulary)):
        logits = run(moved(rows, device, first), layers)
    return logits


def moved(rows: Rows, device: torch.device, first: int) -> StepPlan:
    """A plan of `rows`, told that their text starts at `first`."""
    plan = build_plan([rows], device)
    plan.places = [place + first for place in plan.places]
    return plan


@torch.inference_mode()
def plain_logits(module: nn.Module, vocabulary: int, device: torch.device) -> Tensor:
    """The same four rows by transformers alone, each sibling in a text of its own, [4, V]."""
    texts = torch.tensor([[*FIRST, *SECOND, sibling] for sibling in SIBLINGS], device=device) % vocabulary
    module.set_attn_implementation("eager")
    logits = module(input_ids=texts, use_cache=False).logits
    module.set_attn_implementation(NAME)
    return torch.cat([logits[0, len(FIRST) :], logits[1, -1:]])


def agree(wanted: Tensor, got: Tensor, dtype: torch.dtype) -> bool:
    """Whether two computations of logits agree up to the rounding of `dtype`."""
    return distance(wanted, got) <= TOLERANCE[dtype]  # False for NaN


def distance(wanted: Tensor, got: Tensor) -> float:
    """Size of the error against the spread of the wanted logits."""
    wanted, got = wanted.double(), got.double()
    spread = (wanted - wanted.mean(-1, keepdim=True)).norm()
    return float((got - wanted).norm() / spread.clamp_min(1e-9))
