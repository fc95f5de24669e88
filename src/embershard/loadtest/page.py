"""A document as one HTML file that needs no other."""

from __future__ import annotations

import json
from html import escape
from typing import TYPE_CHECKING, Any, Final

from embershard.loadtest import comparison, plots, report

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
_TABLE: Final = ("name", "rows", "dim", "ids", "dtype")


def page(told: Mapping[str, Any], earlier: Mapping[str, Any] | None = None) -> str:
    """The whole file; `earlier` is another test's document, where `told` has a comparison with it."""
    name = escape(report.title(told))
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="en"><meta charset="utf-8"><title>Load test of {name}</title>',
            f"<style>{_STYLE}</style>",
            f"<h1>Load test of {name}</h1>",
            f'<p class="quiet">{escape(told["began"])}, {escape(report.seconds_of(told))}</p>',
            *(f'<p class="warning">{escape(warning)}</p>' for warning in told["warnings"]),
            *_numbers(told),
            *(_ramp(told) if told["ramp"] else ()),
            *(_comparison(told["comparison"]) if told["comparison"] else ()),
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


def _numbers(told: Mapping[str, Any]) -> Iterator[str]:
    if told["ramp"]:
        yield f"<p>{report.which_step(told)}</p>"
    requests, *others = report.rates(told)
    yield f"<p>Answered <b>{requests}</b></p>"
    yield from (f"<p>{other}</p>" for other in others)
    yield _table(report.LATENCY_HEADS, report.latencies(told))
    for kind, calls in told["result"]["calls"].items():
        yield f"<p>{kind}s: {escape(report.outcomes(calls))}</p>"
    yield f'<p class="quiet">Client: {report.cpus(told)}</p>'
    yield f'<p class="quiet">Requests: {report.LEFT_OUT}.</p>'
    if told["configuration"]["loop"] == "open":
        yield (
            '<p class="quiet">From when due: from the time that was fixed beforehand, to the answer, or until it was '
            "given up. From when sent: of those that were answered.</p>"
        )


def _ramp(told: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2>Steps: {report.verdict(told['ramp'])}</h2>"
    yield plots.ramp(told)
    yield _table(report.STEP_HEADS, report.steps(told["ramp"]))


def _comparison(beside: Mapping[str, Any]) -> Iterator[str]:
    yield f"<h2>Beside the test of {escape(beside['began'])}</h2>"
    yield _table(("", *comparison.HEADS), comparison.rows(beside))
    yield from (f'<p class="warning">{escape(difference)}</p>' for difference in report.differences(beside))


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
