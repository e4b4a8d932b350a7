"""The learning rates of a run as whole numbers: the same on every platform, which `math.cos` does not promise."""

from typing import Final

UNIT: Final = 1 << 32
"""The peak."""

_BITS: Final = 128
"""Behind the point, of a cosine. The recurrence loses twice the bits of the number of steps; 32 remain for any run."""

_PI: Final = 0x3_243F6A8885A308D313198A2E03707344
"""Times 2^128."""


def relative_rates(steps: int, *, warmup: int, final_fraction: float, decays: bool) -> list[int]:
    """Return the rate of each of `steps` steps over the peak, in UNITs: that of `lr_at`, but for the warm-up, which
    counts as the peak. Whole numbers from 1 to UNIT that never rise."""
    warmup = min(warmup, steps)
    if not decays:
        return [UNIT] * steps
    final = int(final_fraction * UNIT)  # a product with a power of two is exact
    cosines = half_turn(steps - warmup)
    falling = [max(1, final + ((UNIT - final) * ((1 << _BITS) + cosine) >> (_BITS + 1))) for cosine in cosines]
    return [UNIT] * warmup + falling


def half_turn(count: int) -> list[int]:
    """Return cos(pi k / count) for k from 0 to `count - 1`, times 2^128, by Chebyshev's recurrence."""
    if count == 0:
        return []
    one = 1 << _BITS
    first = _cosine(_PI // count)
    found = [one, first]
    while len(found) < count:
        found.append((2 * first * found[-1] >> _BITS) - found[-2])
    return found[:count]


def _cosine(angle: int) -> int:
    """Cosine of an angle up to pi, both times 2^128, by Taylor's series."""
    square = angle * angle >> _BITS
    term, total, number = 1 << _BITS, 0, 0
    while term:
        total += -term if number % 4 else term
        number += 2
        term = (term * square >> _BITS) // (number * (number - 1))
    return total
