"""What a document says in words and numbers, for people: `lines` here, and `page`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from embershard.loadtest import comparison
from embershard.loadtest.tally import ANSWERED, OUTCOMES, PERCENTILES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STEP_HEADS: Final = ("asked/s", "answered/s", "p99 ms", "unanswered", "")
"""Of `steps`."""
_LONGEST: Final = 200
"""Characters of a message."""


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """For people."""
    yield f"{title(told)}, {seconds_of(told)}"
    requests, moved = rates(told)
    yield f"answered  {requests}"
    yield f"          {moved}"
    yield f"{'ms':<22}" + "".join(f"{name:>10}" for name in PERCENTILES)
    for name, numbers in latencies(told):
        yield f"{name:<22}" + "".join(f"{number:>10}" for number in numbers)
    for kind, calls in told["result"]["calls"].items():
        yield f"{kind}s  {outcomes(calls)}"
        yield from (f"          {message}" for message in messages(calls))
    yield f"client    {cpus(told)}"
    if ramp := told["ramp"]:
        for cells in (STEP_HEADS, *steps(ramp)):
            yield "{:<14}{:>12}{:>10}{:>12}  {}".format(*cells).rstrip()
        yield verdict(ramp)
    for warning in told["warnings"]:
        yield f"warning: {warning}"
    if beside := told["comparison"]:
        for cells in ((f"beside {beside['began'][:19]}", *comparison.HEADS), *comparison.rows(beside)):
            yield "{:<30}{:>14}{:>14}{:>8}".format(*cells)
        yield from (f"warning: {difference}" for difference in differences(beside))


def title(told: Mapping[str, Any]) -> str:
    """What was asked of whom."""
    asked = told["configuration"]
    how = f"{asked['callers']:,} callers" if asked["rate"] is None else f"{asked['rate']:,.6g} requests/s"
    return f"{told['served']['name']!r} at {asked['target']}: {asked['loop']} loop, {how}"


def seconds_of(told: Mapping[str, Any]) -> str:
    """How long, and whether as long as was meant."""
    whole, asked = told["result"], told["configuration"]
    early = f" of {asked['seconds']:g}, ended early" if whole["interrupted"] else ""
    return f"{whole['seconds']:.4g} s{early}, after {asked['warmup_s']:g} s of warm-up"


def rates(told: Mapping[str, Any]) -> tuple[str, str]:
    """Requests a second that were answered, and what that moved."""
    whole = told["result"]
    asked = "" if whole["asked_per_s"] is None else f" of {whole['asked_per_s']:,.1f} asked"
    return (
        f"{whole['answered_per_s']:,.1f} requests/s{asked}",
        f"{whole['rows_per_s']:,.0f} rows/s, {whole['bytes_per_s'] / 1e6:,.1f} MB/s",
    )


def latencies(told: Mapping[str, Any]) -> Iterator[tuple[str, list[str]]]:
    """(name, PERCENTILES in milliseconds) of each histogram that says something of its own."""
    is_open = told["configuration"]["loop"] == "open"
    for kind, calls in told["result"]["calls"].items():
        found = {f"{kind}, from when due" if is_open else kind: calls["latency_ms"]}
        if is_open:
            found[f"{kind}, from when sent"] = calls["service_ms"]
            found["client was late by"] = told["result"]["client"]["late_ms"][kind]
        for name, numbers in found.items():
            yield name, [shown(numbers[percentile]) for percentile in PERCENTILES]


def shown(number: float | None) -> str:
    """Milliseconds."""
    return "–" if number is None else f"{number:,.2f}" if number < 100 else f"{number:,.0f}"


def outcomes(calls: Mapping[str, Any]) -> str:
    """What became of all that was asked for; what never happened isn't named."""
    named = [f"{calls[name]:,} {name.replace('_', ' ')}" for name in OUTCOMES if calls[name] or name == ANSWERED]
    failed = [f"{count:,} {status}" for status, count in calls["failed"].items()]
    return f"{calls['asked']:,} asked: {', '.join([*named, *failed])}"


def messages(calls: Mapping[str, Any]) -> Iterator[str]:
    """What the service said of what it didn't answer."""
    for name, message in calls["messages"].items():
        if message == name:  # gRPC's own, which adds nothing
            continue
        yield f"{name}, for one: {message if len(message) <= _LONGEST else message[:_LONGEST] + '…'}"


def cpus(told: Mapping[str, Any]) -> str:
    """What the client processes used."""
    used = told["result"]["client"]["cpus"]
    return ", ".join(f"{cpu:.0%}" for cpu in used) + f" of a core{' each' if len(used) > 1 else ''}"


def steps(ramp: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """What is to be read under STEP_HEADS of each step of a search."""
    for step in ramp["steps"]:
        yield (
            f"{step['rate']:,.1f}",
            f"{step['answered_per_s']:,.1f}",
            shown(step["p99_ms"]),
            f"{step['unanswered']:,}",
            "" if step["passed"] else "too high",
        )


def verdict(ramp: Mapping[str, Any]) -> str:
    """What a search has found."""
    found = "none" if ramp["highest_per_s"] is None else f"{ramp['highest_per_s']:,.0f} requests/s"
    early = ", as far as it got: it was ended early" if ramp["interrupted"] else ""
    return f"highest rate with p99 within {ramp['p99_ms']:g} ms: {found}{early}"


def differences(beside: Mapping[str, Any]) -> Iterator[str]:
    """In what two tests differed, which makes their comparison worth less."""
    yield from (f"the other test differed in {difference}" for difference in beside["differences"])
