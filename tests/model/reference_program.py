"""The native program interpreter again, in plain torch and op by op: what the extension is compared with.

Same methods as `foredraft_native.Program`. An op's sums are fp32 and its result is rounded to the program's dtype.

Shapes: T rows of the run, R wanted rows, H query heads, G key-value heads, D head size, S keys a row may see.
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import gelu, silu

from foredraft.model.int8_weights import GROUP, quantized
from foredraft.sampling.noise import gumbel_rows

DTYPES = {"bf16": torch.bfloat16, "fp32": torch.float32}
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu": gelu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
}
ALWAYS = -1
View = tuple[int, int, int]  # buffer, first column, columns


def rounded_rows(x: Tensor) -> Tensor:
    """Rows [..., in] as int8 weights see them: each group of inputs rounded to int8 times a scale of its own."""
    groups = x.unflatten(-1, (-1, GROUP))
    most = groups.abs().amax(-1, keepdim=True)
    return ((groups * (127 / most.clamp_min(1e-30))).round() * (most / 127)).flatten(-2)


class ReferenceCache:
    """Keys and values by layer, [slots, G, D] each."""

    def __init__(self, keys: list[Tensor], values: list[Tensor]):
        self.keys, self.values = keys, values


@dataclass(kw_only=True)
class Run:
    """What the ops of one run read and write."""

    cache: ReferenceCache | None
    tokens: Tensor
    positions: Tensor
    write: Tensor
    segments: list[tuple]
    logit_rows: Tensor
    features: dict[int, Tensor]
    logits: Tensor | None
    inputs: list[Tensor]
    output: Tensor | None
    rows: int
    buffers: dict[int, Tensor]


class ReferenceProgram:
    """A list of ops over buffers [T, width]."""

    def __init__(self, dtype: str, kernels: str = "reference", pool: object = None):
        self.dtype = DTYPES[dtype]
        self.widths: list[int] = []
        self.matrices: list[Tensor] = []  # fp32
        self.int8: set[int] = set()  # of the matrices
        self.rotaries: list[tuple[Tensor, float]] = []
        self.weight_bytes = 0
        self.columns = 0  # of the logits
        self.ops: list[tuple[int, Callable[[Run], None]]] = []
        self.number = ALWAYS

    # parts

    def buffer(self, width: int) -> int:
        self.widths.append(width)
        return len(self.widths) - 1

    def matrix(self, weight: Tensor, form: str) -> int:
        assert weight.dtype == self.dtype and weight.ndim == 2
        if form == "int8":
            self.int8.add(len(self.matrices))
            whole, scale = quantized(weight.float())
            weight = (whole.unflatten(1, (-1, GROUP)).float() * scale.float()[..., None]).flatten(1)
        self.weight_bytes += weight.numel() + 2 * weight.numel() // GROUP if form == "int8" else weight.nbytes
        self.matrices.append(weight.float().clone())
        return len(self.matrices) - 1

    def gated_matrix(self, gate: Tensor, up: Tensor, form: str) -> int:
        assert gate.shape == up.shape
        return self.matrix(torch.cat([gate, up]), form)

    def rotary(self, inverse_frequencies: Tensor, factor: float) -> int:
        assert inverse_frequencies.dtype == torch.float32
        self.rotaries.append((inverse_frequencies.clone(), factor))
        return len(self.rotaries) - 1

    def section(self, number: int) -> None:
        self.number = number

    # ops

    def op(self, work: Callable[[Run], None]) -> None:
        self.ops.append((self.number, work))

    def read(self, run: Run, view: View) -> Tensor:
        """Columns of a buffer in fp32, [rows, width]."""
        buffer, offset, width = view
        assert offset + width <= self.widths[buffer]
        return run.buffers[buffer][: run.rows, offset : offset + width].float()

    def write(self, run: Run, view: View, value: Tensor) -> None:
        buffer, offset, width = view
        assert value.shape == (run.rows, width) and offset + width <= self.widths[buffer]
        run.buffers[buffer][: run.rows, offset : offset + width] = self.rounded(value)

    def rounded(self, value: Tensor) -> Tensor:
        return value.to(self.dtype)

    def twice(self, value: Tensor) -> Tensor:
        """Rounded, and fp32 again for what follows in the same op."""
        return self.rounded(value).float()

    def tokens_embedded(self, dst: View, table: Tensor, scale: float) -> None:
        assert table.dtype == self.dtype
        self.op(lambda run: self.write(run, dst, table[run.tokens].float() * scale))

    def input(self, dst: View, index: int) -> None:
        self.op(lambda run: self.write(run, dst, run.inputs[index].float()))

    def norm(self, dst: View, src: View, weight: Tensor, eps: float, wide: bool) -> None:
        self.op(lambda run: self.write(run, dst, self.normed(self.read(run, src), weight, eps, wide)))

    def normed(self, x: Tensor, weight: Tensor, eps: float, wide: bool) -> Tensor:
        """RMS norm over the last dimension, x fp32; not yet rounded."""
        assert weight.shape == x.shape[-1:]
        unit = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)
        return (unit if wide else self.twice(unit)) * weight.float()

    def product(self, x: Tensor, matrix: int) -> Tensor:
        return (rounded_rows(x) if matrix in self.int8 else x) @ self.matrices[matrix].T

    def linear(
        self, dst: View, src: View, matrix: int, bias: Tensor | None = None, residual: View | None = None
    ) -> None:
        def work(run: Run) -> None:
            out = self.product(self.read(run, src), matrix)
            out = out if bias is None else out + bias.float()
            self.write(run, dst, out if residual is None else self.read(run, residual) + self.twice(out))

        self.op(work)

    def gated(self, dst: View, src: View, matrix: int, activation: str) -> None:
        def work(run: Run) -> None:
            gate, up = self.product(self.read(run, src), matrix).chunk(2, dim=-1)
            shape = self.twice(ACTIVATIONS[activation](self.twice(gate)))
            self.write(run, dst, shape * self.twice(up))

        self.op(work)

    def activation(self, dst: View, src: View, activation: str) -> None:
        self.op(lambda run: self.write(run, dst, ACTIVATIONS[activation](self.read(run, src))))

    def add(self, dst: View, a: View, b: View) -> None:
        self.op(lambda run: self.write(run, dst, self.read(run, a) + self.read(run, b)))

    def scale(self, dst: View, src: View, factor: float) -> None:
        self.op(lambda run: self.write(run, dst, self.read(run, src) * factor))

    def attend(
        self,
        dst: View,
        src: View,
        *,
        layer: int,
        heads: int,
        kv_heads: int,
        head_size: int,
        scale: float,
        window: int = 0,
        softcap: float = 0.0,
        rotary: int = -1,
        query_norm: Tensor | None = None,
        key_norm: Tensor | None = None,
        norm_eps: float = 0.0,
        norm_wide: bool = False,
    ) -> None:
        def work(run: Run) -> None:
            parts = self.read(run, src).view(run.rows, heads + 2 * kv_heads, head_size)
            query, key, value = parts.split([heads, kv_heads, kv_heads], dim=1)
            query = self.placed(run, query, rotary, query_norm, norm_eps, norm_wide)
            key = self.placed(run, key, rotary, key_norm, norm_eps, norm_wide)
            self.stored(run, layer, key, value)
            out = torch.zeros(run.rows, heads, head_size)
            for segment in run.segments:
                rows = slice(segment[0], segment[0] + segment[1])
                out[rows] = self.attended(run, query[rows], segment, layer, scale, window, softcap)
            self.write(run, dst, out.flatten(1))

        self.op(work)

    def store(
        self,
        src: View,
        *,
        layer: int,
        kv_heads: int,
        head_size: int,
        rotary: int = -1,
        key_norm: Tensor | None = None,
        norm_eps: float = 0.0,
        norm_wide: bool = False,
    ) -> None:
        def work(run: Run) -> None:
            key, value = self.read(run, src).view(run.rows, 2 * kv_heads, head_size).chunk(2, dim=1)
            self.stored(run, layer, self.placed(run, key, rotary, key_norm, norm_eps, norm_wide), value)

        self.op(work)

    def placed(self, run: Run, x: Tensor, rotary: int, norm: Tensor | None, eps: float, wide: bool) -> Tensor:
        """Heads [T, N, D] normed where there is a weight, and rotated to the rows' positions where they are."""
        if norm is not None:
            x = self.twice(self.normed(x, norm, eps, wide))
        if rotary < 0:
            return x
        frequencies, factor = self.rotaries[rotary]
        angles = run.positions[: run.rows, None].float() * frequencies  # [T, d / 2]
        cos, sin = (self.twice(turn * factor)[:, None] for turn in (angles.cos(), angles.sin()))
        half = frequencies.shape[0]
        first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
        turned = [
            self.twice(first * cos) - self.twice(second * sin),
            self.twice(second * cos) + self.twice(first * sin),
            rest,
        ]
        return self.twice(torch.cat(turned, dim=-1))

    def stored(self, run: Run, layer: int, key: Tensor, value: Tensor) -> None:
        run.cache.keys[layer][run.write] = self.rounded(key)
        run.cache.values[layer][run.write] = self.rounded(value)

    def attended(
        self, run: Run, query: Tensor, segment: tuple, layer: int, scale: float, window: int, softcap: float
    ) -> Tensor:
        """What the rows of one segment gather, [rows, H, D] fp32."""
        start, rows, context, first, slots, ancestors = segment
        reach = context + rows
        slots = torch.arange(first, first + reach) if slots is None else slots
        repeat = query.shape[1] // run.cache.keys[layer].shape[1]
        keys = run.cache.keys[layer][slots].float().repeat_interleave(repeat, dim=1)  # [S, H, D]
        values = run.cache.values[layer][slots].float().repeat_interleave(repeat, dim=1)
        scores = torch.einsum("rhd,shd->hrs", query, keys) * scale
        scores = softcap * torch.tanh(scores / softcap) if softcap else scores
        here = run.positions[start : start + rows]
        seen = torch.ones(rows, reach, dtype=torch.bool)
        if isinstance(ancestors, list):
            ancestors = above(ancestors, rows)
        seen[:, context:] = seen[:, context:].tril() if ancestors is None else ancestors
        if window:
            there = torch.cat([torch.arange(context) + here[0] - context, here])
            seen &= here[:, None] - there[None] < window
        weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
        return torch.einsum("hrs,shd->rhd", weights, values)

    # what leaves

    def keep(self, boundary: int, src: View, norm: Tensor | None = None, eps: float = 0.0, wide: bool = False) -> None:
        def work(run: Run) -> None:
            if boundary in run.features:
                x = self.read(run, src)
                run.features[boundary].copy_(self.rounded(x if norm is None else self.normed(x, norm, eps, wide)))

        self.op(work)

    def select_rows(self, dst: View, src: View) -> None:
        def work(run: Run) -> None:
            chosen = self.read(run, src)[run.logit_rows]
            run.rows = len(run.logit_rows)
            self.write(run, dst, chosen)

        self.op(work)

    def logits(self, src: View, matrix: int, scale: float = 1.0, softcap: float = 0.0, offset: int = 0) -> None:
        self.columns = max(self.columns, offset + len(self.matrices[matrix]))

        def work(run: Run) -> None:
            if run.logits is None:
                return
            out = self.twice(self.product(self.read(run, src), matrix)) * scale
            out = softcap * torch.tanh(out / softcap) if softcap else out
            run.logits[:, offset : offset + out.shape[1]] = self.rounded(out)

        self.op(work)

    def output(self, src: View) -> None:
        def work(run: Run) -> None:
            if run.output is not None:
                run.output.copy_(self.rounded(self.read(run, src)))

        self.op(work)

    def run(
        self,
        cache: ReferenceCache | None,
        tokens: list[int],
        positions: list[int],
        write: list[int],
        segments: list[tuple],
        logit_rows: list[int],
        features: list[int],
        feature_outs: list[Tensor],
        logits: Tensor | None,
        inputs: list[Tensor],
        output: Tensor | None,
        skip: list[int],
        choice: tuple[list[float] | None, list[int] | None] | None = None,
    ) -> list[int] | None:
        count = len(tokens)
        if choice and logits is None:
            logits = torch.empty(len(logit_rows), self.columns, dtype=self.dtype)
        assert len(positions) == len(write) == count
        assert all(type(number) is int for numbers in (tokens, positions, write, logit_rows) for number in numbers)
        run = Run(
            cache=cache,
            tokens=torch.tensor(tokens),
            positions=torch.tensor(positions),
            write=torch.tensor(write),
            segments=segments,
            logit_rows=torch.tensor(logit_rows, dtype=torch.int64),
            features=dict(zip(features, feature_outs, strict=True)),
            logits=logits,
            inputs=inputs,
            output=output,
            rows=count,
            buffers={
                i: torch.full((count, width), float("nan"), dtype=self.dtype) for i, width in enumerate(self.widths)
            },
        )
        assert all(0 <= row < count for row in logit_rows)
        left_out = set(skip)
        for number, work in self.ops:
            if number not in left_out:
                work(run)
        return choose(logits, *choice) if choice else None


def above(parents: list[int], rows: int) -> Tensor:
    """What the rows of a tree see of each other, its last ones being nodes with `parents`, [rows, rows] bool."""
    pending = rows - len(parents)
    seen = torch.ones(rows, rows, dtype=torch.bool).tril()
    for row in range(pending, rows):
        node, path = row - pending, {row}
        while node >= 0:
            path.add(pending + node)
            node = parents[node]
        seen[row, pending:] = torch.tensor([other in path for other in range(pending, rows)])
    return seen


def choose(logits: Tensor, divisors: list[float] | None, keys: list[int] | None) -> list[int]:
    scores = logits.float()
    if divisors is not None:
        scores = scores / torch.tensor(divisors)[:, None]
    if keys is not None:
        scores = scores + gumbel_rows(torch.tensor(keys, dtype=torch.int64), scores.shape[1])
    return scores.argmax(-1).tolist()


class ReferenceRuntime:
    """Takes the place of `NativeRuntime`: programs and caches of this file."""

    kernels, threads = "reference", 1

    def program(self, dtype: str) -> ReferenceProgram:
        return ReferenceProgram(dtype)

    def cache(self, keys: list[Tensor], values: list[Tensor]) -> ReferenceCache:
        return ReferenceCache(keys, values)
