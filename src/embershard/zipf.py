"""Zipf's law over a bounded number of ranks, and ranks scattered over ids: both without a table of all ids.

Shapes: N draws.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def zipf(generator: np.random.Generator, ranks: int, exponent: float, size: int) -> NDArray[np.int64]:
    """int64 [N]: draws from 1 to `ranks`, k as often as 1 / k to the `exponent`, exactly.

    Rejection-inversion: W. Hörmann and G. Derflinger, "Rejection-inversion to generate variates from monotone discrete
    distributions", 1996. Fewer than one draw in fifty is refused.
    """
    low, high = _area(1.5, exponent) - 1, _area(ranks + 0.5, exponent)
    sure = 2 - _border(_area(2.5, exponent) - 2**-exponent, exponent)
    drawn_N = np.empty(size, np.int64)
    left = np.arange(size)
    while len(left):
        areas = high + generator.random(len(left)) * (low - high)
        borders = _border(areas, exponent)
        found = np.clip(np.rint(borders), 1, ranks)
        taken = (found - borders <= sure) | (areas >= _area(found + 0.5, exponent) - found**-exponent)
        drawn_N[left[taken]] = found[taken]
        left = left[~taken]
    return drawn_N


def scattered(numbers_N: NDArray[np.int64], count: int, generator: np.random.Generator) -> NDArray[np.int64]:
    """int64 [N]: numbers from 0 to `count` - 1, each sent to another such number of its own.

    The generator chooses the permutation: it mixes as many bits as `count` needs, over and over until a number is below
    `count` again.
    """
    bits = max(2, (count - 1).bit_length())
    mask, half = np.uint64(2**bits - 1), np.uint64(bits // 2)
    # Odd factors and shifts to the right can be undone, so no two numbers meet.
    factors = generator.integers(0, 2**63, 3, np.uint64) * np.uint64(2) + np.uint64(1)
    offsets = generator.integers(0, 2**63, 3, np.uint64)
    mixed_N = numbers_N.astype(np.uint64)
    left = np.arange(len(mixed_N))
    while len(left):
        moved = mixed_N[left]
        for factor, offset in zip(factors, offsets, strict=True):
            moved = (moved * factor + offset) & mask
            moved ^= moved >> half
        mixed_N[left] = moved
        left = left[moved >= count]
    return mixed_N.astype(np.int64)


def _area(x: NDArray[np.float64] | float, exponent: float) -> NDArray[np.float64] | float:
    """The integral of 1 / xˢ from 1 to x."""
    power = 1 - exponent
    return np.log(x) if power == 0 else np.expm1(power * np.log(x)) / power


def _border(area: NDArray[np.float64] | float, exponent: float) -> NDArray[np.float64] | float:
    """Where that integral is so large."""
    power = 1 - exponent
    return np.exp(area) if power == 0 else np.exp(np.log1p(np.maximum(area * power, 2**-53 - 1)) / power)
