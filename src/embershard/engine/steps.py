"""What all ranks do together in a tick: look up, and update.

`serve` gets both from the ticker; whoever has no ticker (a test, a benchmark, a training job) calls them itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from embershard.change import ByMatrix, Change, rows_of_parts, shares
from embershard.collection import Read
from embershard.engine import admission
from embershard.errors import EmbershardError, InvalidInput

if TYPE_CHECKING:
    from torch import Tensor

    from embershard.collection import IdCounts
    from embershard.engine.base import Engine
    from embershard.engine.work import Work


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What a lookup is answered with."""

    vectors: list[Tensor]
    """float32 [outputs, D] for each feature of the request."""
    counts: list[IdCounts] = field(default_factory=list)
    """What is known of the ids of each feature; empty unless asked for."""


def look_up(engine: Engine, reads: Sequence[Read], curious: Sequence[Read], work: Work, now_s: int) -> list[Found]:
    """Joint: one gather for the lookups of all ranks; those that are `curious` also get counts."""
    admission.sight(engine, admission.sightings_of_reads(engine, reads), work.sight, now_s)
    settled = {read: read.settled(engine.settle) for read in reads}
    asking = [settled[read] for read in curious]
    gathered = _shared_out(engine.gather(_merged([*settled.values()]), work.gather), [*settled.values()])
    books = dict(zip(curious, _shared_out(engine.books(_merged(asking), work.books), asking), strict=True))
    _count_served(engine, settled.values())
    return [
        Found(vectors=read.answer(rows, engine.projections), counts=read.counts(books[asked]) if asked in books else [])
        for (asked, read), rows in zip(settled.items(), gathered, strict=True)
    ]


def update(engine: Engine, change: Change, work: Work, now_s: int) -> EmbershardError | None:
    """Joint: admits ids, then one step of the optimizers for the gradients of all ranks, then their values and starts.

    Returns why this rank's update can't be done: then nothing of it is, but that its ids may have been sighted.
    """
    refusal = _refusal(engine, change, work)
    change = Change.nothing() if refusal else change
    if full := admission.admit(engine, admission.sightings_of_change(change), work.admit, now_s):
        refusal, change = full, Change.nothing()
    change = change.settled(engine.settle)
    stored = shares(change.readers, engine.gather(rows_of_parts(change.readers), work.read))
    try:
        rows, gradients = change.gradients(stored, engine.projections)
    except InvalidInput as error:
        refusal, change, rows, gradients = error, Change.nothing(), {}, {}
    engine.apply(rows, gradients, work.apply)
    engine.write(*change.values(stored, anew=False), work.write)
    engine.write(*change.values(stored, anew=True), work.start, anew=True)
    return refusal


def _refusal(engine: Engine, change: Change, work: Work) -> EmbershardError | None:
    """Joint: whether the update wants what can't be, as far as can be told before anything is counted."""
    replaced = rows_of_parts([engine.settle(write.part) for write in change.writes])
    books = engine.books(replaced, work.write | work.start)
    try:
        admission.check_known(engine, change)
        _check_not_frozen(books)
    except InvalidInput as error:
        return error
    return None


def _check_not_frozen(books: ByMatrix) -> None:
    for matrix, of_rows in books.items():
        if count := int(of_rows[:, 2].count_nonzero()):
            raise InvalidInput(
                f"{count:,} of the rows that this update replaces in table {matrix!r} are frozen; thaw them first"
            )


def _count_served(engine: Engine, reads: Iterable[Read]) -> None:
    """How many ids of a vocabulary were answered from a row of their own, and how many from the fallback."""
    for read in reads:
        for part in read.parts:
            if part.table.name in engine.vocabularies:
                counts = engine.vocabularies[part.table.name].counts
                ids = int(part.counts_B.sum())
                own = int(part.ids.own.sum()) if not isinstance(part.ids.own, bool) else ids * part.ids.own
                counts.own, counts.fallback = counts.own + own, counts.fallback + ids - own


def _merged(reads: Sequence[Read]) -> ByMatrix:
    """The rows of several lookups as one, matrix by matrix."""
    if len(reads) == 1:
        return reads[0].rows
    matrices = {matrix for read in reads for matrix in read.rows}
    return {matrix: torch.cat([read.rows[matrix] for read in reads if matrix in read.rows]) for matrix in matrices}


def _shared_out(merged: ByMatrix, reads: Sequence[Read]) -> list[ByMatrix]:
    """What was found for merged lookups, as it belongs to each of them."""
    if len(reads) == 1:
        return [merged]
    pieces = {
        matrix: iter(found.split([len(read.rows[matrix]) for read in reads if matrix in read.rows]))
        for matrix, found in merged.items()
    }
    return [{matrix: next(pieces[matrix]) for matrix in read.rows} for read in reads]
