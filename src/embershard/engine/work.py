"""What a tick has to do, which all ranks must agree on before any of them does it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

import torch

from embershard.change import Change, rows_of_parts

if TYPE_CHECKING:
    from embershard.collection import Read
    from embershard.engine.base import Engine

NONE: frozenset[str] = frozenset()


@dataclass(frozen=True, kw_only=True)
class Work:
    """Names of matrices, or of tables, that each joint step is about."""

    gather: frozenset[str] = NONE
    """Matrices whose rows lookups read."""
    books: frozenset[str] = NONE
    """Matrices of whose rows lookups want to know how often they were updated and sighted."""
    sight: frozenset[str] = NONE
    """Tables whose lookups are sightings."""
    admit: frozenset[str] = NONE
    """Tables whose vocabularies may let ids in for an update."""
    read: frozenset[str] = NONE
    """Matrices whose rows an update must know before it moves any."""
    apply: frozenset[str] = NONE
    """Matrices whose rows gradients move."""
    write: frozenset[str] = NONE
    """Matrices in which values overwrite rows."""
    start: frozenset[str] = NONE
    """Matrices in which rows start anew."""
    action: frozenset[str] = NONE
    """Names of actions."""

    def __or__(self, other: Work) -> Work:
        """What either does."""
        return Work(**{step.name: getattr(self, step.name) | getattr(other, step.name) for step in fields(self)})


def work_of_reads(reads: Sequence[Read], curious: Sequence[Read]) -> Work:
    """What lookups take, of which the `curious` want to know more of their ids."""
    return Work(
        gather=frozenset(matrix for read in reads for matrix in read.rows),
        books=frozenset(matrix for read in curious for matrix in read.rows),
        sight=frozenset(part.table.name for read in reads for part in read.parts if part.table.counts_lookups),
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


class Agreement:
    """How the ranks of an engine agree on what a tick has to do."""

    def __init__(self, engine: Engine, actions: Sequence[str] = ()) -> None:
        self._world = engine.world
        vocabularies = list(engine.vocabularies)
        names = {"sight": vocabularies, "admit": vocabularies, "action": actions}
        # All that a tick may have to do, in one order on every rank; a table that grows changes nothing in it.
        self._columns = [(step.name, name) for step in fields(Work) for name in names.get(step.name, engine.matrices)]

    def __call__(self, mine: Work, now_s: int, *others: int) -> tuple[Work, int, list[int]]:
        """Joint: the work of all ranks, the time on rank 0's clock, and the sums of whatever else they bring."""
        if self._world.size == 1:
            return mine, now_s, list(others)
        flags = [name in getattr(mine, step) for step, name in self._columns]
        head = [now_s if self._world.rank == 0 else 0, *others]
        now_s, *sums = self._world.sum(torch.tensor([*head, *flags], dtype=torch.int64)).tolist()
        brought: dict[str, set[str]] = {}
        for (step, name), count in zip(self._columns, sums[len(others) :], strict=True):
            if count:
                brought.setdefault(step, set()).add(name)
        return Work(**{step: frozenset(names) for step, names in brought.items()}), now_s, sums[: len(others)]
