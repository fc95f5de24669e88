"""Plots of documents, as SVG to be put into a page."""

from __future__ import annotations

import io
import math
from typing import TYPE_CHECKING, Any, Final

import matplotlib
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator

from embershard.loadtest.tally import decoded

if TYPE_CHECKING:
    from collections.abc import Mapping

_STYLE: Final = {
    "svg.fonttype": "none",  # the reader's own font, and text that can be searched
    "svg.hashsalt": "embershard",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#889",
    "axes.labelcolor": "#445",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e6ee",
    "xtick.color": "#556",
    "ytick.color": "#556",
    "legend.frameon": False,
}
_COLORS: Final = {"lookup": "#2563ad", "update": "#c2571a"}
_SENT: Final = {"lookup": "#7fb2e5", "update": "#eeb38a"}
_EARLIER: Final = "#8a8f9c"
_STEPS_A_NINE: Final = 40


def percentiles(told: Mapping[str, Any], earlier: Mapping[str, Any] | None) -> str:
    """Latency by percentile: the further to the right, the rarer."""
    figure, axes = _axes("requests that took no longer, of those that have a latency", "ms")
    is_open = told["configuration"]["loop"] == "open"
    nines = 1.0
    for kind, calls in told["result"]["calls"].items():
        for name, color, label in (
            ("latency_us", _COLORS[kind], f"{kind}, from when due" if is_open else kind),
            ("service_us", _SENT[kind], f"{kind}, from when sent"),
        ):
            if name == "latency_us" or is_open:
                nines = max(nines, _curve(axes, calls["histograms"][name], color=color, label=label))
    for kind, calls in (earlier or {"result": {"calls": {}}})["result"]["calls"].items():
        label = f"{kind}, earlier"
        nines = max(nines, _curve(axes, calls["histograms"]["latency_us"], color=_EARLIER, label=label, linestyle="--"))
    ticks = [0, math.log10(2), *range(1, math.floor(nines) + 1)]
    axes.set_xticks(ticks, [f"{100 - 100 / 10**tick:.6g} %" for tick in ticks])
    _scaled(axes)
    return _svg(figure, axes)


def over_time(told: Mapping[str, Any]) -> str:
    """The median and the longest latency of what was due in each span."""
    figure, axes = _axes("s since the warm-up ended", "ms")
    for kind, calls in told["result"]["calls"].items():
        spans = [span for span in calls["timeline"] if span["p50_ms"] is not None]
        for name, label, style in (("max_ms", "max", "-"), ("p50_ms", "p50", ":")):
            axes.plot(
                [span["at_s"] for span in spans],
                [span[name] for span in spans],
                color=_COLORS[kind],
                linestyle=style,
                label=f"{kind} {label}",
            )
    _scaled(axes)
    return _svg(figure, axes)


def rates(told: Mapping[str, Any]) -> str:
    """What was asked for, and what was answered."""
    figure, axes = _axes("s since the warm-up ended", "requests/s")
    spans = list(zip(*(calls["timeline"] for calls in told["result"]["calls"].values()), strict=True))
    at = [span[0]["at_s"] for span in spans]
    shown = [("answered_per_s", "answered", _COLORS["lookup"])]
    if told["configuration"]["loop"] == "open":
        shown.insert(0, ("asked_per_s", "asked", _EARLIER))
    for name, label, color in shown:
        axes.plot(at, [sum(part[name] for part in span) for span in spans], color=color, label=label)
    axes.set_ylim(bottom=0)
    return _svg(figure, axes)


def ramp(told: Mapping[str, Any]) -> str:
    """Every step of a search: p99 by rate."""
    figure, axes = _axes("requests/s asked", "p99, ms")
    for passed, color, marker, label in ((True, "#2c8a57", "o", "within"), (False, "#b3312c", "x", "too high")):
        steps = [step for step in told["ramp"]["steps"] if step["passed"] is passed]
        p99 = [math.nan if step["p99_ms"] is None else step["p99_ms"] for step in steps]
        axes.scatter([step["rate"] for step in steps], p99, color=color, marker=marker, label=label, zorder=3)
    axes.axhline(told["ramp"]["p99_ms"], color=_EARLIER, linestyle="--", label="budget")
    if any(step["p99_ms"] is not None for step in told["ramp"]["steps"]):
        _logarithmic(axes, "x")
    _scaled(axes)
    return _svg(figure, axes)


def _curve(axes: Any, text: str, **style: Any) -> float:
    """Draws one, as far as it has enough values; returns how far, in nines."""
    histogram = decoded(text)
    if not (count := histogram.get_total_count()):
        return 0.0
    nines = max(math.log10(count), 0.5)
    steps = math.ceil(nines * _STEPS_A_NINE)
    x = [nines * step / steps for step in range(steps + 1)]
    wanted = [100 - 100 / 10**one for one in x]
    values = histogram.get_percentile_to_value_dict(wanted)
    axes.plot(x, [values[percentile] / 1000 for percentile in wanted], **style)
    return nines


def _axes(x: str, y: str) -> tuple[Figure, Any]:
    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(8.6, 3.0), layout="constrained")
        axes = figure.add_subplot()
    axes.set_xlabel(x)
    axes.set_ylabel(y)
    return figure, axes


def _scaled(axes: Any) -> None:
    """From zero; logarithmic where that can't show all."""
    low, high = axes.dataLim.y0, axes.dataLim.y1
    if 0 < low < high / 10:
        _logarithmic(axes, "y")
    else:
        axes.set_ylim(bottom=0)


def _logarithmic(axes: Any, name: str) -> None:
    """With numbers as people write them, and enough of these."""
    axes.set(**{f"{name}scale": "log"})
    axis = getattr(axes, f"{name}axis")
    axis.set_major_locator(LogLocator(subs=(1, 2, 3, 5, 7)))
    axis.set_major_formatter("{x:,g}")
    axis.set_minor_formatter("")


def _svg(figure: Figure, axes: Any) -> str:
    with matplotlib.rc_context(_STYLE):
        if axes.get_legend_handles_labels()[0]:  # there is none where nothing was measured
            figure.legend(loc="outside right upper", fontsize=9)
        written = io.StringIO()
        figure.savefig(written, format="svg", metadata={"Date": None})
    text = written.getvalue()
    return text[text.index("<svg") :]
