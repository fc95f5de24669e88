"""Writes the generated parts of the documentation, or with --check proves that they are up to date.

Such a part stands between `<!-- generated: WHAT -->` and `<!-- end -->`; `WRITERS` says what there is. All else in a
page is written by hand.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PAGES: Final = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
_PART: Final = re.compile(r"(<!-- generated: (?P<what>.+?) -->\n).*?(<!-- end -->)", re.DOTALL)

for _name in [name for name in os.environ if name.startswith("EMBERSHARD_")]:
    del os.environ[_name]  # a flag's default is what it is without them

from documenting import commands, measured, metrics, rpcs, specs  # noqa: E402  # after the environment is clean

WRITERS: Final[dict[str, Callable[[str], Iterable[str]]]] = {
    "collection file": lambda _: specs.collection_file(),
    "job file": lambda _: specs.job_file(),
    "flags of serve": lambda _: commands.serve_flags(),
    "commands": lambda _: commands.all_commands(),
    "services": lambda _: rpcs.services(),
    "messages": lambda _: rpcs.messages(),
    "enums": lambda _: rpcs.enums(),
    "errors": lambda _: rpcs.errors(),
    "metrics": lambda _: metrics.metrics(),
    "speed": lambda _: measured.speed(),
    "durability": lambda _: measured.durability(),
    "calm": lambda _: measured.calm(),
    "recovery": lambda _: measured.recovery(),
    "publishing": lambda _: measured.publishing(),
    "overload": lambda _: measured.overload(),
    "training": lambda _: measured.training(),
    "copy": measured.copied,
}
"""{first words of a part's name: what writes it, given the rest}."""


def written(text: str) -> str:
    """A page with its parts as they are to be."""
    return _PART.sub(_part, text)


def _part(found: re.Match[str]) -> str:
    what = found["what"]
    for name, writer in WRITERS.items():
        if what == name or what.startswith(f"{name} "):
            lines = list(writer(what.removeprefix(name).strip()))
            return "\n".join([found[1], *lines, "", found[3]])
    raise SystemExit(f"`<!-- generated: {what} -->`: there is no such part; there are {', '.join(WRITERS)}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; exit 1 if anything is out of date")
    check = parser.parse_args().check
    pages = {page: written(page.read_text()) for page in PAGES}
    stale = [page for page, text in pages.items() if page.read_text() != text]
    if check and stale:
        names = ", ".join(str(page.relative_to(ROOT)) for page in stale)
        sys.exit(f"generated documentation is out of date: {names}; run `make generate`")
    for page in stale:
        page.write_text(pages[page])


if __name__ == "__main__":
    main()
