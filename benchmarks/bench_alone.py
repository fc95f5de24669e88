"""Runs one section of `make bench` by itself, and prints what it has found."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence

from outcome import Outcome, Table, told

from embershard.quiet import quieten


def alone(measure: Callable[..., Outcome], about: str | None) -> None:
    """The command line of a section: `--quick`, and tables for people."""
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="few sizes and rounds: whether it works, not how fast")
    quick = parser.parse_args().quick
    quieten()
    outcome = measure(quick=quick)
    for table in outcome.tables:
        print(shown(table), end="\n\n")
    for target in outcome.targets:
        verdict = "holds" if target.holds else "MISSED"
        print(f"{verdict}: {target.name}: {target.measured}, {target.sense} {told(target.target)}. {target.note}")


def shown(table: Table) -> str:
    """A table in columns."""
    cells = [list(table.columns), *([told(cell) for cell in row] for row in table.rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(table.columns))]
    lines = [
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    note: Sequence[str] = [table.note] if table.note else []
    return "\n".join([table.title, *lines, *note])
