"""A head in torch and on the native path, in one dtype and exactly, run through the same plans."""

from collections.abc import Callable, Iterable
from copy import deepcopy

import torch
from packed_heads import HIDDEN, VOCABULARY, borrowed
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from foredraft.core.plan_builder import Rows, build_plan
from foredraft.core.step_plan import StepPlan
from foredraft.heads.native_heads import native_head
from foredraft.heads.shared import Borrowed
from foredraft.model.native_decoder import NativeDecoder, native_decoder_of
from foredraft.model.native_runtime import BF16_ONLY, NativeRuntime, kernel_names
from foredraft.model.slot_pool import LayerGroup, LayerShape
from foredraft.model.trial import distance

SLOTS = 96
SLACK = 1.5  # times the error of the modules themselves in bf16
CASES = [(torch.bfloat16, name) for name in kernel_names()]
CASES += [(torch.float32, name) for name in kernel_names() if not name.endswith(BF16_ONLY)]
CPU = torch.device("cpu")


def decoder_over(borrowed: Borrowed, kernels: str) -> NativeDecoder:
    """A target's decoder with the embedding and the vocabulary head that a head borrows."""
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        num_key_value_heads=2,
    )
    module = LlamaForCausalLM(config).to(borrowed.embed.weight.dtype).eval().requires_grad_(False)
    module.model.embed_tokens, module.lm_head = borrowed.embed, borrowed.head
    return native_decoder_of(module, {0: None}, NativeRuntime(kernels, 2))


@torch.no_grad()
def rounded(head: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy whose weights are those of `dtype`, still in fp32."""
    head = deepcopy(head)
    for part in (head, *parts_borrowed(head)):
        for parameter in part.parameters():
            parameter.copy_(parameter.to(dtype))
    return head


def in_dtype(head: nn.Module, dtype: torch.dtype) -> nn.Module:
    """A copy in `dtype`, rotary frequencies in fp32 as always."""
    head = deepcopy(head)
    for part in (head, *parts_borrowed(head)):
        for parameter in part.parameters():
            parameter.data = parameter.data.to(dtype)
    return head


def parts_borrowed(head: nn.Module) -> list[nn.Module]:
    return [head.borrowed[0].embed, head.borrowed[0].head] if hasattr(head, "borrowed") else []


def borrowed_by(head: nn.Module) -> Borrowed:
    """What `head` borrows; for one that borrows nothing, parts of any target of its dtype."""
    if hasattr(head, "borrowed"):
        return head.borrowed[0]
    dtype, any_target = next(head.parameters()).dtype, borrowed()
    return Borrowed(any_target.embed.to(dtype), any_target.head.to(dtype))


class Trio:
    """The head exactly, in torch and natively, each over layers of its own."""

    def __init__(self, head: nn.Module, dtype: torch.dtype, kernels: str):
        self.dtype, self.dtypes = dtype, [torch.float32, dtype, dtype]
        exact = rounded(head, dtype)
        module = in_dtype(exact, dtype)
        self.heads = [exact, module, native_head(module, decoder_over(borrowed_by(module), kernels))]
        sizes, layers = getattr(head.config, "sizes", None), getattr(head.config, "layers", 1)
        shapes = {}
        if sizes is not None:
            shapes = dict.fromkeys(range(layers), LayerShape(sizes.kv_heads, sizes.head_dim, sizes.head_dim))
        self.groups = [LayerGroup(shapes, SLOTS, dtype, CPU) for dtype in self.dtypes]

    def states(self, rows: int, width: int, seed: int) -> Tensor:
        """Random numbers that `dtype` holds exactly."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randn(rows, width, generator=generator).to(self.dtype)

    @torch.inference_mode()
    def check(self, run: Callable[[object, LayerGroup, torch.dtype], Iterable[Tensor]]) -> list[Tensor]:
        """The tensors `run(head, layers, dtype)` gives are the same for all; those of the native head."""
        answers = [[*run(*parts)] for parts in zip(self.heads, self.groups, self.dtypes, strict=True)]
        for true, wanted, got in zip(*answers, strict=True):
            assert got.shape == wanted.shape and got.dtype == wanted.dtype
            assert_near(true, wanted, got)
        return answers[-1]

    def check_layers(self, slots: list[int]) -> None:
        """What the heads have stored is the same too."""
        for layer in self.groups[0].shapes:
            for part in ("keys", "values"):
                assert_near(*(getattr(group, part)[layer][slots].flatten(1) for group in self.groups))


def assert_near(true: Tensor, wanted: Tensor, got: Tensor) -> None:
    """In fp32 the same to 1e-5 of the largest number; in bf16 about as near to the truth as the modules are."""
    if not got.numel():
        return
    if got.dtype is torch.float32:
        assert (got - wanted).abs().max() <= 1e-5 * wanted.abs().max()
    else:
        assert distance(true, got) <= SLACK * distance(true, wanted) + 0.002


class Texts:
    """Slots of several requests' rows, scattered or each in a run of its own."""

    def __init__(self, count: int, *, scattered: bool):
        order = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(3)).tolist()
        share = SLOTS // count
        self.free = [
            order[i * share : (i + 1) * share] if scattered else [*range(i * share, (i + 1) * share)]
            for i in range(count)
        ]
        self.slots: list[list[int]] = [[] for _ in range(count)]

    def plan(self, counts: list[int], *, logits: list[int], parents: list[int] = (), keep: bool = True) -> StepPlan:
        """So many more rows of each request, the last of them nodes that hang by `parents`; `logits` rows wanted."""
        rows = [
            self.rows(*parts, list(parents), keep)
            for parts in zip(range(len(counts)), counts, logits, strict=True)
            if parts[1]
        ]
        return build_plan(rows, CPU)

    def rows(self, text: int, count: int, logits: int, parents: list[int], keep: bool) -> Rows:
        own, before = self.free[text][:count], list(self.slots[text])
        if keep:
            self.free[text], self.slots[text] = self.free[text][count:], before + own
        run = before and before == list(range(before[0], before[0] + len(before)))
        return Rows(
            tokens=[(7 * place + 3 * text + 1) % VOCABULARY for place in own],
            pending=count - len(parents),
            parents=parents,
            slots=own,
            context=len(before),
            context_slots=slice(before[0], before[0] + len(before)) if run else torch.tensor(before, dtype=torch.int64),
            logits=logits,
        )
