"""A head run as drafting runs it: committed pairs in chunks over scattered slots, then a row at a time."""

import torch
from torch import Tensor, nn

from foredraft.core.plan_builder import Rows, build_plan
from foredraft.heads.layer import LayerSizes
from foredraft.heads.packed_attend import PackedAttend
from foredraft.heads.shared import Borrowed
from foredraft.model.slot_pool import LayerGroup, LayerShape

HIDDEN, VOCABULARY, SLOTS = 32, 40, 64
PAIRS, DRAFTS = 11, 4
CHUNKS = (1, 6, 4)
TOLERANCE = {"rtol": 2e-5, "atol": 2e-5}


def sizes(**options) -> LayerSizes:
    """Heads whose sizes together are not the hidden size, and a base nobody has by default."""
    wide = {"hidden_size": HIDDEN, "intermediate_size": 56, "heads": 4, "kv_heads": 2, "head_dim": 12}
    rope = {"rope_type": "default", "rope_theta": 321.0}
    return LayerSizes(**wide, rms_norm_eps=1e-5, **({"rope": rope} | options))


def borrowed() -> Borrowed:
    embed, head = nn.Embedding(VOCABULARY, HIDDEN), nn.Linear(HIDDEN, VOCABULARY, bias=False)
    return Borrowed(spread(embed, 1), spread(head, 2))


@torch.no_grad()
def spread(module: nn.Module, seed: int = 0) -> nn.Module:
    """Weights far from their start, so that every one of them decides the output."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in module.parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        parameter.copy_(0.18 * noise if parameter.ndim > 1 else parameter + 0.3 * noise)
    return module.eval().requires_grad_(False)


def random_pairs(width: int, seed: int = 5) -> tuple[Tensor, list[int]]:
    """Features [pairs, width] and the tokens after them."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(VOCABULARY, (PAIRS,), generator=generator).tolist()
    return torch.randn(PAIRS, width, generator=generator), tokens


class PackedHead:
    """The head over scattered slots."""

    def __init__(self, head: nn.Module, shapes: dict[int, LayerShape], scale: float):
        self.head, self.scale = head, scale
        self.layers = LayerGroup(shapes, SLOTS, torch.float32, torch.device("cpu"))
        self.free = torch.randperm(SLOTS, generator=torch.Generator().manual_seed(3)).tolist()
        self.slots: list[int] = []

    @torch.inference_mode()
    def rows(self, tokens: list[int], hidden: Tensor, parents: list[int] = (), *, keep: bool = True) -> Tensor:
        """Output of the next rows, [rows, hidden]; `parents` hang the last of them as tree nodes."""
        own = [self.free.pop() for _ in tokens]
        rows = Rows(
            tokens=tokens,
            pending=len(tokens) - len(parents),
            parents=list(parents),
            slots=own,
            context=len(self.slots),
            context_slots=torch.tensor(self.slots, dtype=torch.int64),
            logits=len(tokens),
        )
        plan = build_plan([rows], torch.device("cpu"))
        out = self.head(plan.tokens, hidden[None], plan.positions, PackedAttend(plan, self.layers, self.scale))[0]
        self.slots += own if keep else []
        return out

    def committed(self, tokens: list[int], features: Tensor) -> Tensor:
        hidden = self.head.fuse(features)
        stretches = zip(torch.tensor(tokens).split(CHUNKS), hidden.split(CHUNKS), strict=True)
        return torch.cat([self.rows(chunk.tolist(), own) for chunk, own in stretches])


def assert_drafts_like(head, sizes: LayerSizes, layers: int, features: Tensor, tokens: list[int], straight) -> None:
    """A head of our own layers through `PackedHead`, as `assert_packed_like` compares it."""
    shape = LayerShape(sizes.kv_heads, sizes.head_dim, sizes.head_dim)
    packed = PackedHead(head, dict.fromkeys(range(layers), shape), sizes.head_dim**-0.5)
    assert_packed_like(packed, features, tokens, straight)


def assert_packed_like(packed: PackedHead, features: Tensor, tokens: list[int], straight) -> None:
    """Chunks, then drafts step by step, against `straight`: from fused hidden states and tokens of a whole text to the
    outputs of all of its rows, what each row feeds back, and its logits."""
    head = packed.head
    out = packed.committed(tokens, features)
    hidden, texts = head.fuse(features), list(tokens)
    for _ in range(DRAFTS):
        wanted, fed_back, logits = straight(hidden, texts)
        torch.testing.assert_close(out, wanted[-len(out) :], **TOLERANCE)
        torch.testing.assert_close(head.fed_back(out), fed_back[-len(out) :], **TOLERANCE)
        torch.testing.assert_close(head.logits(out), logits[-len(out) :], **TOLERANCE)
        assert_nodes_like(packed, hidden, texts, head.fed_back(out[-1:]), straight)
        texts, hidden = [*texts, int(logits[-1].argmax())], torch.cat([hidden, fed_back[-1:]])
        out = packed.rows(texts[-1:], head.fed_back(out[-1:]))


def assert_nodes_like(packed: PackedHead, hidden: Tensor, texts: list[int], handed: Tensor, straight) -> None:
    """Two siblings and a child of the second, below the last row run, are each the end of a text of their own."""
    first, second, below = 7, 8, 9
    last = packed.slots.pop()  # the root is run again, as growing a tree does
    states = torch.cat([hidden[-1:], handed, handed])
    siblings = packed.rows([texts[-1], first, second], states, [-1, -1], keep=False)
    states = torch.cat([states, packed.head.fed_back(siblings[2:])])
    nodes = packed.rows([texts[-1], first, second, below], states, [-1, -1, 1], keep=False)
    for row, path in ((1, [first]), (2, [second]), (3, [second, below])):
        own = states[[1, 3][: len(path)]]
        wanted = straight(torch.cat([hidden, own]), [*texts, *path])[0]
        torch.testing.assert_close(nodes[row], wanted[-1], **TOLERANCE)
    packed.slots.append(last)
