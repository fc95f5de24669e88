"""What a trained model is compared with: what learns of the same files, by one of some settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

Metrics = Mapping[str, float | None]


class Method(NamedTuple):
    """Something that can learn."""

    learn: Callable[..., Metrics]
    """Takes a split; and, if there is a grid, a seed and settings. Says how good it is on what evaluates."""
    grid: Mapping[str, Sequence[Any]] = {}
    """{setting: values to try}; none given: it only counts."""
