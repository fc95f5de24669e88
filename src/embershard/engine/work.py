"""What a tick has to do, which all ranks must agree on before any of them does it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from embershard.change import Change, rows_of_parts

if TYPE_CHECKING:
    from embershard.collection import Read
    from embershard.config import Config

NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Work:
    """Names of matrices, or of tables, that each joint step is about."""

    gather: frozenset[str] = NONE
    """Matrices: lookups read rows;"""
    books: frozenset[str] = NONE
    """and want to know more of them."""
    sight: frozenset[str] = NONE
    """Tables: lookups count as sightings."""
    admit: frozenset[str] = NONE
    """Tables: an update may let ids in."""
    read: frozenset[str] = NONE
    """Matrices: an update must know rows before it moves any."""
    apply: frozenset[str] = NONE
    """Matrices: gradients move rows;"""
    write: frozenset[str] = NONE
    """rows get values;"""
    start: frozenset[str] = NONE
    """rows start anew."""
    action: frozenset[str] = NONE
    """Actions."""

    @property
    def changes(self) -> bool:
        """Whether rows change."""
        return bool(self.admit or self.apply or self.write or self.start)

    def __or__(self, other: Work) -> Work:
        """What either does."""
        return Work(**{step.name: getattr(self, step.name) | getattr(other, step.name) for step in fields(self)})

    def flags(self, columns: Sequence[tuple[str, str]]) -> list[bool]:
        """Which of all that may be done is done."""
        return [name in getattr(self, step) for step, name in columns]


def work_of_reads(reads: Sequence[Read], curious: Sequence[Read], counted: frozenset[str]) -> Work:
    """What lookups take, of which some want provenance; `counted` are the tables whose lookups are sightings."""
    tables = {part.table.name for read in reads for part in read.parts}
    return Work(
        gather=frozenset(matrix for read in reads for matrix in read.rows),
        books=frozenset(matrix for read in curious for matrix in read.rows),
        sight=counted & tables,
    )


def work_of_change(change: Change) -> Work:
    """What an update takes."""
    return Work(
        admit=frozenset(part.table.name for part in change.parts if part.ids.keys is not None),
        read=frozenset(rows_of_parts(change.readers)),
        apply=frozenset(change.applies),
        write=frozenset(change.overwrites(anew=False)),
        start=frozenset(change.overwrites(anew=True)),
    )


def columns_of(config: Config, matrices: Mapping[str, object], actions: Sequence[str] = ()) -> list[tuple[str, str]]:
    """All that a tick may have to do, as (step, name), in one order on every rank."""
    vocabularies = [table.name for table in config.tables if table.ids.kind == "vocabulary"]
    names = {"sight": vocabularies, "admit": vocabularies, "action": actions}
    return [(step.name, name) for step in fields(Work) for name in names.get(step.name, matrices)]


def work_of_sums(columns: Sequence[tuple[str, str]], sums: Sequence[int]) -> Work:
    """The work of all ranks together, from the sums of their flags."""
    brought: dict[str, set[str]] = {}
    for (step, name), count in zip(columns, sums, strict=True):
        if count:
            brought.setdefault(step, set()).add(name)
    return Work(**{step: frozenset(names) for step, names in brought.items()})
