"""What a section of `make bench` has measured: tables, curves, and which targets hold; and how people are told."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np


@dataclass(frozen=True, kw_only=True, slots=True)
class Spread:
    """One figure, measured several times."""

    median: float
    """Of all measurements."""
    low: float
    """Their first quartile."""
    high: float
    """Their third."""

    @classmethod
    def of(cls, measured: Sequence[float]) -> Spread:
        """Of these measurements, one at least."""
        low, median, high = (float(number) for number in np.quantile(measured, (0.25, 0.5, 0.75)))
        return cls(median=median, low=low, high=high)

    @classmethod
    def of_ratios(cls, ours: Sequence[float], theirs: Sequence[float]) -> Spread:
        """Of ours / theirs, where both were measured one after the other in each round."""
        return cls.of([mine / other for mine, other in zip(ours, theirs, strict=True)])

    def __str__(self) -> str:
        return f"{told(self.median)} ({told(self.low)} – {told(self.high)})"


@dataclass(frozen=True, kw_only=True, slots=True)
class Target:
    """What was aimed at, and what came of it."""

    name: str
    """What is compared, at which size."""
    measured: Spread
    """A ratio, or bytes a row."""
    target: float
    """What it is to be."""
    sense: Literal["at least", "at most"]
    """On which side of it."""
    note: str = ""
    """What must be known to read it, or why it is missed."""

    @property
    def holds(self) -> bool:
        """Whether the median is on the right side."""
        return self.measured.median >= self.target if self.sense == "at least" else self.measured.median <= self.target


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """Figures for people to read."""

    title: str
    """What it shows, with units."""
    columns: Sequence[str]
    """Heads of the columns."""
    rows: Sequence[Sequence[str | float | int]]
    """One line each."""
    note: str = ""
    """A sentence below it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Plot:
    """Curves over one axis."""

    name: str
    """Of its file, without ending."""
    title: str
    """What it shows."""
    x: str
    """What the horizontal axis is, with its unit; logarithmic, as the other is."""
    y: str
    """What the vertical one is."""
    curves: Mapping[str, Sequence[tuple[float, float]]]
    """{name: points}."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """Of one section."""

    section: str
    """Its name, which is that of its result files."""
    configuration: Mapping[str, Any]
    """All that was chosen: sizes, seeds, rounds, versions of peers."""
    tables: Sequence[Table]
    """What was found."""
    targets: Sequence[Target] = ()
    """What was aimed at."""
    plots: Sequence[Plot] = ()
    """What it looks like."""
    raw: Mapping[str, Any] = field(default_factory=dict)
    """Every measurement, for whoever wants to compute on."""


def told(cell: str | float | int) -> str:
    """For people: numbers with three digits that count, or all before the point."""
    if isinstance(cell, float):
        return f"{cell:,.0f}" if abs(cell) >= 100 else f"{cell:.3g}"
    return f"{cell:,}" if isinstance(cell, int) else cell
