"""A list of names in a file, one a line: the name on line n (from 0) stands for row n."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from embershard.errors import InvalidInput


@dataclass(frozen=True, kw_only=True, eq=False)
class NameList:
    """Distinct names in the order of their rows."""

    names: Sequence[str]
    """The names."""
    rows: Mapping[str, int]
    """{name: its row}."""

    @classmethod
    def of(cls, names: Sequence[str], source: str) -> NameList:
        """Numbers names; `source` is what errors call the list.

        Raises:
            InvalidInput: a name stands there twice; with both lines.
        """
        rows = {name: row for row, name in reversed(list(enumerate(names)))}
        if len(rows) < len(names):
            again = next(row for row, name in enumerate(names) if rows[name] != row)
            raise InvalidInput(
                f"{source}: line {again + 1} is {names[again]!r}, and so is line {rows[names[again]] + 1}; "
                "a name has one row"
            )
        return cls(names=names, rows=rows)

    @cached_property
    def sha256(self) -> str:
        """Identifies the list."""
        return hashlib.sha256("\n".join(self.names).encode()).hexdigest()


def read_name_list(path: Path) -> NameList:
    """Reads a list of names.

    Raises:
        InvalidInput: it can't be read, is no UTF-8 text, has an empty line or a name twice: with the line.
    """
    try:
        names = tuple(path.read_text(encoding="utf-8-sig").removesuffix("\n").split("\n"))
    except OSError as error:
        raise InvalidInput(f"{path}: can't read the list of names: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: is not UTF-8 text: {error}") from error
    if "" in names:
        raise InvalidInput(f"{path}: line {names.index('') + 1} is empty; give one name a line")
    return NameList.of(names, str(path))
