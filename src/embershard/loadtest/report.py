"""What a document says in words and numbers, for people: `lines` here, and `page`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from embershard.loadtest import comparison
from embershard.loadtest.tally import ANSWERED, GIVEN_UP, NEVER_SENT, OUTCOMES, PERCENTILES

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

STEP_HEADS: Final = ("asked/s", "answered/s", "p99 ms", "unanswered", "")
"""Of `steps`."""
LATENCY_HEADS: Final = ("ms", *PERCENTILES, "requests")
"""Of `latencies`."""
LEFT_OUT: Final = "what was refused or has failed has no latency, and is in none of these"


def lines(told: Mapping[str, Any]) -> Iterator[str]:
    """For people."""
    yield f"{title(told)}, {seconds_of(told)}"
    if told["ramp"]:
        yield which_step(told)
    requests, *others = rates(told)
    yield f"answered  {requests}"
    yield from (f"          {other}" for other in others)
    for name, *numbers, counted in (LATENCY_HEADS, *latencies(told)):
        yield f"{name:<22}" + "".join(f"{number:>10}" for number in numbers) + f"  {counted}"
    for kind, calls in told["result"]["calls"].items():
        yield f"{kind}s  {outcomes(calls)}"
    if any(timed(calls) < calls["asked"] for calls in told["result"]["calls"].values()):
        yield f"          {LEFT_OUT}"
    yield f"client    {cpus(told)}"
    if ramp := told["ramp"]:
        for cells in (STEP_HEADS, *steps(ramp)):
            yield "{:<14}{:>12}{:>10}{:>12}  {}".format(*cells).rstrip()
    for warning in told["warnings"]:
        yield f"warning: {warning}"
    if beside := told["comparison"]:
        for cells in ((f"beside {beside['began'][:19]}", *comparison.HEADS), *comparison.rows(beside)):
            yield "{:<30}{:>14}{:>14}{:>8}".format(*cells)
        yield from (f"warning: {difference}" for difference in differences(beside))


def title(told: Mapping[str, Any]) -> str:
    """What was asked of whom; of a search, what it has found."""
    asked = told["configuration"]
    if told["ramp"]:
        return f"{told['served']['name']!r} at {asked['target']}: {verdict(told['ramp'])}"
    how = f"callers: {asked['callers']:,}" if asked["rate"] is None else f"{asked['rate']:,.6g} requests/s"
    return f"{told['served']['name']!r} at {asked['target']}: {asked['loop']} loop, {how}"


def seconds_of(told: Mapping[str, Any]) -> str:
    """How long, and whether as long as was meant."""
    whole, asked = told["result"], told["configuration"]
    early = f" of {asked['seconds']:g}, ended early" if whole["interrupted"] else ""
    return f"{whole['seconds']:.4g} s{early}, after {asked['warmup_s']:g} s of warm-up"


def which_step(told: Mapping[str, Any]) -> str:
    """Of which step of a search the numbers are."""
    step = "the highest step that passed" if told["ramp"]["highest_per_s"] else "no step has passed; the last one"
    return f"{step}: {told['configuration']['rate']:,.6g} requests/s"


def rates(told: Mapping[str, Any]) -> Iterator[str]:
    """Requests a second that were answered, and what that moved."""
    whole = told["result"]
    asked = "" if whole["asked_per_s"] is None else f" of {whole['asked_per_s']:,.1f} asked"
    yield f"{whole['answered_per_s']:,.1f} requests/s{asked}"
    if late := sum(calls[ANSWERED] - calls["answered_in_time"] for calls in whole["calls"].values()):
        yield f"(answers that came after the end, and aren't in these rates: {late:,})"
    if whole["rows_per_s"] is not None:
        moved = whole["bytes_per_s"]
        size = f"{moved / 1e6:,.1f} MB/s" if moved >= 1e6 else f"{moved / 1e3:,.1f} kB/s"
        yield f"{whole['rows_per_s']:,.0f} rows/s (vectors that lookups answered), {size}"


def latencies(told: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """What is to be read under LATENCY_HEADS of each histogram that says something of its own."""
    is_open = told["configuration"]["loop"] == "open"
    for kind, calls in told["result"]["calls"].items():
        asked = calls["asked"]
        found = [(f"{kind}, from when due" if is_open else kind, calls["latency_ms"], timed(calls))]
        if is_open:
            late_ms = told["result"]["client"]["late_ms"][kind]
            found.append((f"{kind}, from when sent", calls["service_ms"], calls[ANSWERED]))
            found.append(("client was late by", late_ms, asked - calls[NEVER_SENT]))
        for name, numbers, count in found:
            yield name, *(shown(numbers[percentile]) for percentile in PERCENTILES), f"{count:,} of {asked:,}"


def timed(calls: Mapping[str, Any]) -> int:
    """Requests that have a latency."""
    return sum(calls[name] for name in (ANSWERED, *GIVEN_UP))


def shown(number: float | None) -> str:
    """Milliseconds."""
    return "–" if number is None else f"{number:,.2f}" if number < 100 else f"{number:,.0f}"


def outcomes(calls: Mapping[str, Any]) -> str:
    """What became of all that was asked for; what never happened isn't named."""
    named = [f"{calls[name]:,} {name.replace('_', ' ')}" for name in OUTCOMES if calls[name] or name == ANSWERED]
    failed = [f"{count:,} {status}" for status, count in calls["failed"].items()]
    return f"{calls['asked']:,} asked: {', '.join([*named, *failed])}"


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
