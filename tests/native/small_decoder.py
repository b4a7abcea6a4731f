"""A small decoder with random weights, written down for any program interpreter."""

from dataclasses import dataclass, field

import foredraft_native as native
import torch
from reference_program import ReferenceCache, ReferenceProgram
from torch import Tensor

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
KERNELS = [*native.kernel_names(), "amx-double"]
VOCABULARY = 70


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A small decoder's sizes."""

    hidden: int = 48
    inner: int = 80
    heads: int = 6
    kv_heads: int = 2
    head_size: int = 10
    rotated: int = 8
    layers: int = 2
    window: int = 0
    softcap: float = 0.0
    activation: str = "silu"
    weights: str = "same"
    wide: bool = False
    head_norms: bool = False
    seed: int = 0

    @property
    def projected(self) -> int:
        return (self.heads + 2 * self.kv_heads) * self.head_size


@dataclass
class Given:
    """What one run is given: rows of a pack and who sees whom."""

    tokens: list[int]
    positions: list[int]
    write: list[int]
    segments: list[tuple]
    wanted: list[int] | None = None
    features: list[int] = field(default_factory=list)


class SmallDecoder:
    """One program over a cache of its own."""

    def __init__(self, program, cache_type, dtype: torch.dtype, sizes: Sizes, slots: int = 256):
        self.program, self.sizes, self.dtype = program, sizes, dtype
        self.random = torch.Generator().manual_seed(sizes.seed)
        shape = (slots, sizes.kv_heads, sizes.head_size)
        self.keys = [torch.zeros(shape, dtype=dtype) for _ in range(sizes.layers)]
        self.values = [torch.zeros(shape, dtype=dtype) for _ in range(sizes.layers)]
        self.cache = cache_type(self.keys, self.values)
        self.write_down()

    def weight(self, *shape: int) -> Tensor:
        return (torch.randn(shape, generator=self.random) * shape[-1] ** -0.5).to(self.dtype)

    def around_one(self, size: int) -> Tensor:
        return 1 + 0.1 * torch.randn(size, generator=self.random)

    def write_down(self) -> None:
        p, s = self.program, self.sizes
        h, x, chosen, normed = ((p.buffer(s.hidden), 0, s.hidden) for _ in range(4))
        # Two views of one wide buffer: offsets and strides are part of what is tested.
        wide = p.buffer(s.projected + 3 + s.heads * s.head_size)
        qkv, mixed = (wide, 0, s.projected), (wide, s.projected + 3, s.heads * s.head_size)
        inner = (p.buffer(s.inner), 0, s.inner)
        rotary = p.rotary(1.0 / 100 ** (torch.arange(0, s.rotated, 2).float() / s.rotated), 1.0)
        p.tokens_embedded(h, self.weight(VOCABULARY, s.hidden) * s.hidden**0.5, 1.5)
        for layer in range(s.layers):
            p.keep(layer, h)
            p.section(2 * layer)
            p.norm(x, h, self.around_one(s.hidden), 1e-6, s.wide)
            p.linear(qkv, x, p.matrix(self.weight(s.projected, s.hidden), s.weights), self.weight(s.projected))
            norms = {"query_norm": self.around_one(s.head_size), "key_norm": self.around_one(s.head_size)}
            p.attend(
                mixed,
                qkv,
                layer=layer,
                heads=s.heads,
                kv_heads=s.kv_heads,
                head_size=s.head_size,
                scale=0.3,
                window=s.window,
                softcap=s.softcap,
                rotary=rotary,
                norm_eps=1e-6,
                norm_wide=s.wide,
                **(norms if s.head_norms else {}),
            )
            p.linear(h, mixed, p.matrix(self.weight(s.hidden, s.heads * s.head_size), "same"), None, h)
            p.section(2 * layer + 1)
            p.norm(x, h, self.around_one(s.hidden), 1e-6, s.wide)
            gate = p.gated_matrix(self.weight(s.inner, s.hidden), self.weight(s.inner, s.hidden), s.weights)
            p.gated(inner, x, gate, s.activation)
            p.linear(h, inner, p.matrix(self.weight(s.hidden, s.inner), "same"), None, h)
            p.section(-1)
        p.keep(s.layers, h)
        p.keep(-1, h, self.around_one(s.hidden), 1e-6, s.wide)
        p.select_rows(chosen, h)
        p.norm(normed, chosen, self.around_one(s.hidden), 1e-6, s.wide)
        p.logits(normed, p.matrix(self.weight(VOCABULARY, s.hidden), "same"), 0.5, s.softcap)

    def run(self, given: Given, skip: tuple[int, ...] = ()) -> tuple[Tensor, list[Tensor]]:
        """Logits of the wanted rows, all of them by default, and the features."""
        wanted = list(range(len(given.tokens))) if given.wanted is None else given.wanted
        logits = torch.full((len(wanted), VOCABULARY), float("nan"), dtype=self.dtype)
        states = [
            torch.full((len(given.tokens), self.sizes.hidden), float("nan")).to(self.dtype) for _ in given.features
        ]
        numbers = (given.tokens, given.positions, given.write)
        self.program.run(
            self.cache, *numbers, given.segments, wanted, given.features, states, logits, [], None, list(skip)
        )
        return logits, states


def native_decoder(kernels: str, dtype: str, sizes: Sizes = Sizes(), threads: int = 2) -> SmallDecoder:  # noqa: B008
    program = native.Program(dtype, kernels, native.Threads(threads))
    return SmallDecoder(program, native.Cache, DTYPES[dtype], sizes)


def reference_decoder(dtype: str, sizes: Sizes = Sizes()) -> SmallDecoder:  # noqa: B008
    return SmallDecoder(ReferenceProgram(dtype), ReferenceCache, DTYPES[dtype], sizes)


def text(tokens: list[int], start: int = 0, first_slot: int = 0) -> Given:
    """Rows of one text, in a run of slots, after `start` positions that are in the cache."""
    rows, positions = len(tokens), list(range(start, start + len(tokens)))
    segment = (0, rows, start, first_slot, None, None)
    return Given(tokens, positions, [first_slot + position for position in positions], [segment])
