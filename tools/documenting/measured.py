"""What benchmarks have measured, out of the files that they have written: nothing here is typed by hand."""

from __future__ import annotations

import json
import re
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from documenting.markdown import table

ROOT: Final = Path(__file__).resolve().parents[2]
RESULTS: Final = ROOT / "benchmarks" / "results"
_SIZES: Final = ("26", "512", "13,312")
_OURS: Final = ("embershard Client, unary", "embershard Client, stream")
_PEERS: Final = ("Redis MGET, hiredis", "Feast-style HMGET, redis-py")
_ECHOES: Final = ("echo by asyncio, unary", "echo by asyncio, stream")


def copied(what: str) -> Iterator[str]:
    """What stands below a heading of a page of results, `FILE: HEADING`, up to the next one; plots are left out."""
    name, _, heading = what.partition(": ")
    text = (ROOT / "benchmarks" / name).read_text()
    parts = re.split(rf"^#+ {re.escape(heading)}\n", text, flags=re.MULTILINE)
    if len(parts) != 2:
        raise SystemExit(f"benchmarks/{name} has no heading {heading!r}, or several")
    lines = re.split(r"^#+ ", parts[1], maxsplit=1, flags=re.MULTILINE)[0].strip().splitlines()
    yield from (line for line in lines if not line.startswith(("![", "Configuration: ")))


def _told(name: str) -> Any:
    return json.loads((RESULTS / f"{name}.json").read_text())


def _rows(heading: str) -> dict[str, dict[str, str]]:
    """{first cell: {column: cell}} of a table of bench.md."""
    lines = [line for line in copied(f"results/bench.md: {heading}") if line.startswith("|")]
    columns, _, *rows = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines)
    return {row[0]: dict(zip(columns, row, strict=True)) for row in rows}


def speed() -> Iterator[str]:
    """Lookups of one caller by our client, beside peers: the better of unary and stream."""
    against = _rows("Serving one table: our requests a second to theirs")

    def row(ids: str) -> tuple[str, ...]:
        measured = _rows(f"Serving one table of 64 numbers a row: {ids} ids a request, 1 caller")
        best = max((measured[name] for name in _OURS), key=lambda one: float(one["requests/s"].replace(",", "")))
        ratios = [against[peer][f"{ids} ids, 1 caller"].partition(" ")[0] for peer in (*_PEERS, *_ECHOES)]
        redis, feast, *echoes = ratios
        echo = " or ".join(f"{ratio} ×" for ratio in echoes)
        return ids, best["requests/s"], f"{best['p50 ms']}, {best['p99 ms']}", f"{redis} ×", f"{feast} ×", echo

    columns = ("ids a request", "requests/s", "p50, p99 ms", "Redis MGET (hiredis)", "Feast's layout in Redis")
    yield from table((*columns, "gRPC echo, unary or stream"), map(row, _SIZES))


def durability() -> Iterator[str]:
    """Updates a second by log mode."""
    modes = _told("durability")["log_modes"]
    columns = ("", *next(iter(modes.values())))
    yield from table(
        columns, [(who, *(f"{one['updates_per_s']:,}" for one in by.values())) for who, by in modes.items()]
    )


def recovery() -> Iterator[str]:
    """How long a start takes by updates in the log."""
    rows = [
        (f"{one['updates']:,}", f"{one['seconds']:.1f}", f"{one['of_them_applying']:.1f}")
        for one in _told("durability")["recovery"]
    ]
    yield from table(("updates in the log", "seconds to the first answer", "of them applying"), rows)


def calm() -> Iterator[str]:
    """Lookups while something else goes on."""
    rows = [
        (what, f"{statistics.median(one['p99_ms']):.1f}", f"{one['of_quiet']:.2f} ×")
        for what, one in _told("durability")["calm"].items()
    ]
    yield from table(("meanwhile", "p99 of lookups, ms", "of the quiet p99"), rows)


def publishing() -> Iterator[str]:
    """From a training step to served."""
    told = _told("publish")
    rows = [
        ("a delta: seconds from the step to served", f"{told['step_to_served_s']:g}"),
        ("its tick, for which lookups wait, ms", f"{told['tick_ms']:g}"),
        ("a publication in full, s", f"{told['full_s']:g}"),
        *((f"p99 of lookups, {what}, ms", f"{statistics.median(p99):.1f}") for what, p99 in told["p99_ms"].items()),
    ]
    yield from table(("", "measured"), rows)


def overload() -> Iterator[str]:
    """What a server still does when it is asked for three times its peak."""
    rows = []
    for case in _told("overload")["cases"]:
        shares = (f"{case[key]:.0%}" for key in ("goodput_of_peak", "rude_goodput_of_peak"))
        rows.append((f"{case['ids']:,}", *shares, f"{case['p99_of_calm']:.1f} ×"))
    columns = ("ids a lookup", "of the peak, clients hold back", "of the peak, nobody does")
    yield from table((*columns, "p99 (holding back) against that at 70 % of the peak"), rows)


def training() -> Iterator[str]:
    """Examples a second of training jobs, beside others."""
    rows = []
    for run in _told("training")["runs"]:
        medians = run["medians"]
        names = ("embershard", "embershard, local engine", "torchrec", "ddp")
        cells = (f"{medians[name]:,.0f}" if name in medians else "" for name in names)
        rows.append((str(run["world_size"]), str(run["bag"]), *cells))
    columns = ("ranks", "ids a bag", "embershard", "embershard, local engine", "TorchRec", "PyTorch, DDP")
    yield from table(columns, rows)
