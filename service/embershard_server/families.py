"""Numbers as prometheus_client's families of metrics."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

if TYPE_CHECKING:
    from embershard.meters import Histogram

PREFIX = "embershard_"

Numbers = Mapping[Any, float]
"""{values of the labels: number}."""
Histograms = Mapping[Any, "Histogram"]
"""Likewise."""


def counter(name: str, text: str, labels: Sequence[str], numbers: Numbers) -> CounterMetricFamily:
    """What only ever grows; `_total` is added to its name."""
    family = CounterMetricFamily(PREFIX + name, text, labels=labels)
    for values, number in numbers.items():
        family.add_metric(values, number)
    return family


def gauge(name: str, text: str, labels: Sequence[str], numbers: Numbers) -> GaugeMetricFamily:
    """What is so now."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels)
    for values, number in numbers.items():
        family.add_metric(values, number)
    return family


def histogram(name: str, text: str, labels: Sequence[str], histograms: Histograms) -> HistogramMetricFamily:
    """How many observations there were up to each bound; with labels, only where there were any."""
    family = HistogramMetricFamily(PREFIX + name, text, labels=labels)
    for values, one in histograms.items():
        if values and not any(one.counts):
            continue
        bounds = [*map(str, one.bounds), "+Inf"]
        family.add_metric(values, list(zip(bounds, accumulate([*one.counts]), strict=True)), one.sum)
    return family
