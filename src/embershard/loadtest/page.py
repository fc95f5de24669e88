"""A document as one HTML file that needs no other."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any, Final

from embershard.loadtest import plots
from embershard.loadtest.report import latencies, messages, outcomes, seconds_of, shown, title

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

_STYLE: Final = """
body { font: 15px/1.5 system-ui, sans-serif; color: #223; max-width: 62em; margin: 2em auto; padding: 0 1em }
h1 { font-size: 1.5em; margin-bottom: 0 } h2 { font-size: 1.1em; margin: 2em 0 .4em } p { margin: .3em 0 }
table { border-collapse: collapse } td, th { padding: .25em .9em .25em 0; text-align: right; font-weight: normal }
td:first-child, th:first-child { text-align: left } th { color: #667; border-bottom: 1px solid #ccd }
table.facts td { text-align: left; vertical-align: top } table.facts td:first-child { color: #667 }
td { font-variant-numeric: tabular-nums } svg { max-width: 100%; height: auto }
.warning { background: #fff4dc; border-left: 4px solid #e0a020; padding: .4em .8em } .quiet { color: #667 }
"""


def page(told: Mapping[str, Any], earlier: Mapping[str, Any] | None = None) -> str:
    """The whole file; `earlier` is another test's document, where `told` has a comparison with it."""
    name = escape(title(told))
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Load test of {name}</title>',
            f"<style>{_STYLE}</style>",
            f"<h1>Load test of {name}</h1>",
            f'<p class="quiet">{escape(told["began"])}, {escape(seconds_of(told))}</p>',
            *(f'<p class="warning">{escape(warning)}</p>' for warning in told["warnings"]),
            *_numbers(told),
            *(_ramp(told) if told["ramp"] else ()),
            *(_comparison(told["comparison"]) if told.get("comparison") else ()),
            "<h2>Latency by percentile</h2>",
            plots.percentiles(told, earlier),
            "<h2>Latency over time</h2>",
            plots.over_time(told),
            "<h2>Requests asked for and answered</h2>",
            plots.rates(told),
            "<h2>What was asked for</h2>",
            _facts(told["configuration"]),
            "<h2>What was served</h2>",
            _facts({key: value for key, value in told["served"].items() if key != "tables"}),
            _table(("table", *_TABLE[1:]), [[table[key] for key in _TABLE] for table in told["served"]["tables"]]),
            "<h2>Who asked</h2>",
            _facts(told["client"]),
            "</html>\n",
        ]
    )


_TABLE: Final = ("name", "rows", "dim", "ids", "dtype")


def _numbers(told: Mapping[str, Any]) -> Iterator[str]:
    whole = told["result"]
    rate = "" if whole["asked_per_s"] is None else f" of {whole['asked_per_s']:,.1f} asked"
    yield (
        f"<p><b>{whole['answered_per_s']:,.1f} requests/s</b> answered{rate}, {whole['rows_per_s']:,.0f} rows/s, "
        f"{whole['bytes_per_s'] / 1e6:,.1f} MB/s</p>"
    )
    rows = [[name, *map(shown, numbers.values())] for name, numbers in latencies(told)]
    yield _table(("ms", "p50", "p90", "p99", "p99.9", "max"), rows)
    for kind, calls in whole["calls"].items():
        yield f"<p>{kind}s: {escape(outcomes(calls))}</p>"
        yield from (f'<p class="quiet">{escape(message)}</p>' for message in messages(calls))
    cpus = ", ".join(f"{cpu:.0%}" for cpu in whole["client"]["cpus"])
    yield f'<p class="quiet">Client processes used {cpus} of a core.</p>'
    if told["configuration"]["loop"] == "open":
        yield (
            '<p class="quiet">From when due: from the time that was fixed beforehand, to the answer, or until it was '
            "given up. From when sent: of those that were answered.</p>"
        )


def _ramp(told: Mapping[str, Any]) -> Iterator[str]:
    ramp = told["ramp"]
    found = "none" if ramp["highest_per_s"] is None else f"{ramp['highest_per_s']:,.0f} requests/s"
    yield f"<h2>Highest rate with p99 within {ramp['p99_ms']:g} ms: {found}</h2>"
    yield plots.ramp(told)
    yield _table(
        ("asked/s", "answered/s", "p99 ms", "unanswered", ""),
        [
            [
                f"{step['rate']:,.1f}",
                f"{step['answered_per_s']:,.1f}",
                shown(max(numbers["p99"] or 0.0 for numbers in step["latency_ms"].values())),
                f"{step['unanswered']:,}",
                "" if step["passed"] else "too high",
            ]
            for step in ramp["steps"]
        ],
    )


def _comparison(told: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2>Beside the test of {escape(told['began'])}</h2>"
    pairs = {name.replace("_per_s", "/s"): pair for name, pair in told["rates"].items()}
    for kind, numbers in told["latency_ms"].items():
        pairs |= {f"{kind} {name} ms": pair for name, pair in numbers.items()}
    yield _table(
        ("", "earlier", "now", "ratio"),
        [[name, *(_number(pair[key]) for key in ("earlier", "now", "ratio"))] for name, pair in pairs.items()],
    )
    for difference in told["differences"]:
        yield f'<p class="warning">It differed in {escape(difference)}</p>'


def _number(number: float | None) -> str:
    return "–" if number is None else f"{number:,.2f}"


def _facts(facts: Mapping[str, Any]) -> str:
    rows = "".join(f"<tr><td>{escape(key)}<td>{escape(_fact(value))}" for key, value in facts.items())
    return f'<table class="facts">{rows}</table>'


def _fact(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {item:,}" for key, item in value.items())
    if isinstance(value, float):
        return f"{value:,.6g}"
    return "–" if value is None else value if isinstance(value, str) else json.dumps(value)


def _table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    head = "".join(f"<th>{escape(name)}" for name in heads)
    body = "".join("<tr>" + "".join(f"<td>{escape(_cell(cell))}" for cell in row) for row in rows)
    return f"<table><tr>{head}{body}</table>"


def _cell(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)
