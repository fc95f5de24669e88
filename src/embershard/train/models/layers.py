"""What the models share."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn


def perceptron(width: int, widths: Sequence[int], *, last: bool = False) -> nn.Sequential:
    """Linear layers of these widths with a ReLU after each, but after the last one only if `last`."""
    layers: list[nn.Module] = []
    for number, wide in enumerate(widths):
        layers.append(nn.Linear(width, wide))
        if last or number < len(widths) - 1:
            layers.append(nn.ReLU())
        width = wide
    return nn.Sequential(*layers)
