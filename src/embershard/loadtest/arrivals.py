"""When requests are due: a Poisson process, fixed beforehand, and dealt out to processes.

Shapes: N arrivals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


def arrivals(rate: float, warmup_s: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """float64 [N]: ascending times of a Poisson process of `rate` a second, in a warm-up and the `seconds` after it.

    Each of the two has exactly as many as the rate says: given how many there are, the times of a Poisson process are
    independent and uniform.
    """
    generator = np.random.default_rng([seed, 1])
    spans = (0.0, warmup_s), (warmup_s, seconds)
    times_N = np.concatenate([begin + span * generator.random(round(rate * span)) for begin, span in spans])
    times_N.sort()
    return times_N


def updates_among(count: int, share: float, seed: int) -> NDArray[np.bool_]:
    """bool [N]: which of so many requests are updates."""
    return np.random.default_rng([seed, 2]).random(count) < share
