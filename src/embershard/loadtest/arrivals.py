"""When requests are due: a Poisson process, fixed beforehand, and dealt out to processes.

Shapes: N arrivals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def arrivals(rate: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """float64 [N]: ascending times from 0 to `seconds` of a Poisson process of `rate` a second.

    Given how many there are, their times are independent and uniform.
    """
    generator = np.random.default_rng([seed, 1])
    times_N = generator.random(generator.poisson(rate * seconds)) * seconds
    times_N.sort()
    return times_N


def updates_among(count: int, share: float, seed: int) -> NDArray[np.bool_]:
    """bool [N]: which of so many requests are updates."""
    return np.random.default_rng([seed, 2]).random(count) < share
