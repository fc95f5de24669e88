"""A list of ids in a file, one a line: the id on line n (from 0) has row n."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from embershard.errors import InvalidInput


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class IdList:
    """Distinct ids in the order of their rows.

    Raises:
        InvalidInput: an id stands there twice.
    """

    names: Sequence[str]
    """The ids."""
    rows: Mapping[str, int]
    """{id: its row}."""

    @classmethod
    def of(cls, names: Sequence[str], source: str) -> IdList:
        """Numbers the ids; `source` names them in errors."""
        rows = {name: row for row, name in reversed(list(enumerate(names)))}
        if len(rows) < len(names):
            again = next(row for row, name in enumerate(names) if rows[name] != row)
            raise InvalidInput(
                f"{source}: line {again + 1} is {names[again]!r}, and so is line {rows[names[again]] + 1}; "
                "an id has one row"
            )
        return cls(names=names, rows=rows)

    @property
    def sha256(self) -> str:
        """Identifies the list."""
        return hashlib.sha256("\n".join(self.names).encode()).hexdigest()


@lru_cache(maxsize=64)
def read_id_list(path: Path) -> IdList:
    """Reads a list of ids, once in the life of the process.

    Raises:
        InvalidInput: it can't be read, is no UTF-8 text, has an empty line or an id twice: with the line.
    """
    try:
        names = tuple(path.read_text(encoding="utf-8").removesuffix("\n").split("\n"))
    except OSError as error:
        raise InvalidInput(f"{path}: can't read the list of ids: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidInput(f"{path}: is not UTF-8 text: {error}") from error
    if "" in names:
        raise InvalidInput(f"{path}: line {names.index('') + 1} is empty; give one id a line")
    return IdList.of(names, str(path))
