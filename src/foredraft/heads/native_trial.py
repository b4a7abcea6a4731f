"""The trial a head passes before the native path runs it: the answers of its own modules, chunk, tree and block."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from foredraft.core.plan_builder import Rows
from foredraft.heads.dflash import DFlashHead
from foredraft.heads.layer import LayerSizes
from foredraft.heads.medusa import MedusaHeads
from foredraft.model.slot_pool import LayerGroup, LayerShape
from foredraft.model.trial import FIRST, SLOTS, agree, first_rows, moved, second_rows

CPU = torch.device("cpu")
FAR = 1000  # positions, where rotations are told apart that are alike at the beginning


def reproduces(native: object, head: nn.Module, dtype: torch.dtype) -> bool:
    """Whether `native` answers as `head` does, up to rounding, that of int8 weights included.

    Rounding a weight to int8 moves it by half of 1/127 of the largest of its group, about a hundredth of what products
    say: in bf16, where alone it is done, the tolerance has room for that many times over.
    """
    answers = answers_of(head)
    wanted, got = answers(head, dtype), answers(native, dtype)
    return all(agree(one, other, dtype) for one, other in zip(wanted, got, strict=True))


def answers_of(head: nn.Module) -> Callable[[object, torch.dtype], list[Tensor]]:
    if isinstance(head, MedusaHeads):
        return medusa_answers
    return dflash_answers if isinstance(head, DFlashHead) else feature_answers


def medusa_answers(heads, dtype: torch.dtype) -> list[Tensor]:
    return [heads(states(3, heads.config.hidden_size, dtype))]


def feature_answers(head, dtype: torch.dtype) -> list[Tensor]:
    """Of a chunk that follows features, and of another with two siblings that follows what rows hand on."""
    sizes, answers = head.config.sizes, []
    width = getattr(head.config, "target_hidden_size", sizes.hidden_size)
    features = states(len(FIRST), len(head.feature_layers) * width, dtype)
    for start in (0, FAR):
        layers = storage(sizes, getattr(head.config, "layers", 1), len(SLOTS), dtype)
        first, second = (moved(rows(head.config.vocabulary), CPU, start) for rows in (first_rows, second_rows))
        scale = sizes.head_dim**-0.5
        _, _, fused = head.begin(first, features, layers, scale)
        answers += [fused, *head.run(second, states(len(second.ids), sizes.hidden_size, dtype), layers, scale)]
    return answers


def dflash_answers(head, dtype: torch.dtype) -> list[Tensor]:
    """Guesses of a block behind four positions, in scattered slots."""
    config, answers = head.config, []
    block, context = config.block_size, len(FIRST)
    slots = list(range(block + context))[::-1]
    features = states(context, len(head.feature_layers) * config.target_hidden_size, dtype)
    for start in (0, FAR):
        layers = storage(config.sizes, config.layers, len(slots), dtype)
        head.store(features, moved(chunk([0] * context, slots[:context], []), CPU, start), layers)
        tokens = [FIRST[0]] + [config.mask_token_id] * (block - 1)
        plan = moved(chunk(tokens, slots[context:], slots[:context]), CPU, start)
        plan.wanted = list(range(1, block))
        answers.append(head.guess(plan, layers))
    return answers


def chunk(tokens: list[int], slots: list[int], before: list[int]) -> Rows:
    """Rows behind those in the slots `before`."""
    return Rows(
        tokens=tokens,
        pending=len(tokens),
        parents=[],
        slots=slots,
        context=len(before),
        context_slots=torch.tensor(before, dtype=torch.int64),
        logits=0,
    )


def storage(sizes: LayerSizes, layers: int, slots: int, dtype: torch.dtype) -> LayerGroup:
    shape = LayerShape(sizes.kv_heads, sizes.head_dim, sizes.head_dim)
    return LayerGroup(dict.fromkeys(range(layers), shape), slots, dtype, CPU)


def states(rows: int, width: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)).to(dtype)
