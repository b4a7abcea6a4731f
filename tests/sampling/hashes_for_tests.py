"""The noise's hash backwards: keys that give a token the hash a test wants."""

from foredraft.sampling import noise


def key_of(bits: int, token: int) -> int:
    """The signed key under which `token` has the hash `bits`."""
    return noise.signed(unmixed(bits) - token * noise.INCREMENT & noise.MASK)


def unmixed(value: int) -> int:
    """What `mixed_int` makes `value` of."""
    value = unshifted(value, noise.LAST_SHIFT)
    for shift, multiplier in reversed(noise.ROUNDS):
        value = unshifted(value * pow(multiplier, -1, 1 << noise.BITS) & noise.MASK, shift)
    return value


def unshifted(value: int, shift: int) -> int:
    """What `x ^ x >> shift` makes `value` of."""
    found = value
    for _ in range(noise.BITS // shift):
        found = value ^ found >> shift
    return found
