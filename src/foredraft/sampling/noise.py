"""Noise that belongs to a position: counter-based, so any token's noise can be computed alone, in any order.

Every value is a hash of its coordinates. Nothing is drawn from a stateful generator, so a drafter, the target and a
later replay see the same noise for the same seed, position and token.
"""

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import torch
from torch import Tensor

from foredraft.model.native_runtime import helpers

BITS = 64
MASK = (1 << BITS) - 1
# splitmix64 (Steele, Lea, Flood 2014): the odd increment and the finaliser's (shift, multiplier) rounds.
INCREMENT = 0x9E3779B97F4A7C15
ROUNDS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
LAST_SHIFT = 31
GUMBEL_SALT = 0x6A09E667F3BCC908

UNIT_BITS = 52
UNIT = 2.0**-UNIT_BITS
# Rows are hashed in pieces this large so that the working set stays in the second-level cache.
CHUNK = 1 << 17

native = helpers()  # has the same noise at a fraction of the time
NATIVE_LOGITS = (torch.bfloat16, torch.float32)


def gumbel(seed: int, positions: Sequence[int], width: int, device: torch.device | str = "cpu") -> Tensor:
    """Standard Gumbel noise of the token ids 0 to width - 1 at each absolute position.

    A value depends on (seed, position, token id) alone, whatever the other rows and the width are. The hash is exact
    integer arithmetic and the logarithms are taken in float64, so devices agree but for a rare last-bit rounding.
    Values lie in (-3.6, 36.8); none is infinite.

    Args:
        seed: Any int; taken modulo 2**64.
        positions: Absolute positions, [R].
        width: Tokens of a row.

    Returns:
        float32 [R, width] on `device`.
    """
    return gumbel_rows(torch.tensor(position_keys([seed] * len(positions), positions), device=device), width)


def gumbel_rows(keys: Tensor, width: int) -> Tensor:
    """`gumbel` of several seeds: `keys` [R] int64 from `position_keys`; float32 [R, width]."""
    if native and keys.is_cpu:
        noise = torch.empty(len(keys), width, dtype=torch.float32)
        native.gumbel_rows(keys.contiguous(), noise)
        return noise
    steps = torch.arange(width, device=keys.device) * signed(INCREMENT)  # [V]
    pieces = keys[:, None].split(max(1, CHUNK // width))
    rows = [noise_of(mixed(piece + steps)) for piece in pieces]
    return rows[0] if len(rows) == 1 else torch.cat(rows)


def position_keys(seeds: Sequence[int], positions: Sequence[int]) -> list[int]:
    """What the noise of each position is hashed from, as signed 64-bit ints."""
    if native:
        return native.position_keys(list(map(seed_key, seeds)), positions)
    return [position_key(seed, position) for seed, position in zip(seeds, positions, strict=True)]


def position_key(seed: int, position: int) -> int:
    return signed(mixed_int(position * INCREMENT + seed_key(seed)))


@lru_cache(maxsize=4096)
def seed_key(seed: int) -> int:
    return mixed_int(seed ^ GUMBEL_SALT)


def gumbel_at(seed: int, positions: Tensor, tokens: Tensor) -> Tensor:
    """`gumbel` of single pairs: the noise of `tokens[i]` at `positions[i]`, float32 [N], bit for bit the same."""
    keys = row_keys(seed, positions)
    if native and keys.is_cpu:
        noise = torch.empty(len(keys), dtype=torch.float32)
        native.gumbel_pairs(keys.contiguous(), tokens.contiguous(), noise)
        return noise
    return noise_of(mixed(keys + tokens * signed(INCREMENT)))


def row_keys(seed: int, positions: Tensor) -> Tensor:
    return mixed(positions * signed(INCREMENT) + signed(seed_key(seed)))


def noise_of(hashed: Tensor) -> Tensor:
    """Standard Gumbel values of 64-bit hashes."""
    units = shifted(hashed, BITS - UNIT_BITS).double().add_(0.5).mul_(UNIT)  # strictly inside (0, 1)
    return units.log_().neg_().log_().neg_().float()


def natively_chosen(logits: Tensor) -> bool:
    """Whether `choose` can read these rows, [R, V]."""
    return native is not None and logits.is_cpu and logits.dtype in NATIVE_LOGITS and logits.stride(-1) == 1


def choose(
    logits: Tensor | list[Tensor], divisors: list[float] | None = None, keys: list[int] | None = None
) -> list[int]:
    """The argmax of each row of `logits / divisor + noise`, as float32, or without keys of the logits.

    The noise is `gumbel_rows(keys)`, but is worked out only for the few tokens that might win.

    Args:
        logits: [R, V], or several that are read one after another.
        divisors: One for each row; 1 without.
        keys: From `position_keys`, one for each row.
    """
    return native.choose(logits, divisors, keys)


def likeliest(logits: Tensor, count: int) -> list[list[int]]:
    """The tokens of the `count` largest of each row of logits [R, V], the largest first."""
    if natively_chosen(logits):
        return native.top(logits, count)[1]
    return logits.topk(count, dim=-1).indices.tolist()


def uniform(seed: int, position: int, stream: str, index: int) -> float:
    """A number in [0, 1) keyed by its arguments; independent between streams and of `gumbel`."""
    key = mixed_int(seed ^ stream_salt(stream))
    key = mixed_int(key + position * INCREMENT)
    return (mixed_int(key + index * INCREMENT) >> (BITS - 53)) * 2.0**-53


@lru_cache
def stream_salt(stream: str) -> int:
    return int.from_bytes(blake2b(stream.encode(), digest_size=8).digest(), "little")


def mixed(values: Tensor) -> Tensor:
    """Splitmix64's finaliser on int64 bit patterns, in place."""
    for shift, multiplier in ROUNDS:
        values.bitwise_xor_(shifted(values, shift)).mul_(signed(multiplier))
    return values.bitwise_xor_(shifted(values, LAST_SHIFT))


def shifted(values: Tensor, bits: int) -> Tensor:
    """Logical shift right: torch's own shift of int64 copies the sign."""
    return (values >> bits).bitwise_and_((1 << (BITS - bits)) - 1)


def mixed_int(value: int) -> int:
    """`mixed` for one Python int, modulo 2**64."""
    value &= MASK
    for shift, multiplier in ROUNDS:
        value = (value ^ (value >> shift)) * multiplier & MASK
    return value ^ (value >> LAST_SHIFT)


def signed(value: int) -> int:
    """The int64 with the same 64 bits."""
    return value - (1 << BITS) if value >> (BITS - 1) else value
