"""Tables and anchors, as GitHub renders Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """A table of cells that are Markdown themselves."""
    yield f"| {' | '.join(columns)} |"
    yield "|---" * len(columns) + "|"
    for row in rows:
        yield f"| {' | '.join(cell(text) for text in row)} |"


def cell(text: str) -> str:
    """A text that fits into one cell."""
    return " ".join(text.split()).replace("|", "\\|")


def code(text: str) -> str:
    """A text as it is typed."""
    return f"`{text}`" if text else ""


def anchor(heading: str) -> str:
    """The name by which links find a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
