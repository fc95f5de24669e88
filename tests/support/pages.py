"""The documentation as a test reads it: fenced blocks, shell commands, headings and links."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), *sorted((ROOT / "deploy").rglob("*.md"))]
_FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


@dataclass(frozen=True, kw_only=True)
class Block:
    """What stands between two fences."""

    page: Path
    line: int
    language: str
    text: str
    saved_as: str
    """The file that the paragraph before it says to save it as; empty: none."""

    @property
    def first(self) -> str:
        """Its first line, by which it can be named."""
        return self.text.partition("\n")[0].rstrip()

    @property
    def where(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"

    @property
    def commands(self) -> list[str]:
        """Its shell commands, without comments; one that goes on after a backslash is one."""
        lines = self.text.replace("\\\n", " ").splitlines()
        return [stripped for line in lines if (stripped := re.sub(r"(^| +)# .*", "", line).strip())]


def blocks(page: Path) -> list[Block]:
    """All fenced blocks of a page, in order."""
    text, found = page.read_text(), []
    for match in _FENCED.finditer(text):
        paragraph = text[: match.start()].rstrip().rpartition("\n\n")[2]
        saved = re.search(r"\b[Ss]ave\b[^`]*`(\w+\.toml)`", paragraph)
        found.append(
            Block(
                page=page,
                line=text.count("\n", 0, match.start()) + 2,
                language=match[1],
                text=match[2],
                saved_as=saved[1] if saved else "",
            )
        )
    return found


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCED.sub("", page.read_text())


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE):
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found.add(f"{name}-{seen[name]}" if seen[name] else name)
        seen[name] += 1
    return found


def links(page: Path) -> Iterator[str]:
    """Targets of all links that stay within the repository."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if not re.match(r"[a-z]+:", target):
            yield target
