"""What came of a run, for people."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from embershard.store import drift_report


def lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Of what `Run.to_its_end` returns."""
    speed = f", {result['examples_per_s']:,.0f} examples/s" if result["examples_per_s"] else ""
    yield f"{result['steps']:,} steps, {result['seconds']:,.1f} s of them in this process{speed}"
    for name, value in (result["metrics"] or {}).items():
        yield f"{name} {'–' if value is None else format(value, '.4f')}"
    for feature, count in result["cut"].items():
        if count:
            yield f"{feature}: {count:,} bags were longer than max_length, and were cut"
    if result["drift"] is not None:
        yield from drift_report.lines(result["drift"])
    if result["published"] is not None:
        yield f"step {result['published']['step']:,} is served as version {result['published']['version']:,}"
    yield f"snapshot {result['snapshot']}"
