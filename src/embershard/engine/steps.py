"""What all ranks do together in a tick: look up, and update.

`serve` gets both from the ticker; whoever has no ticker (a test, a benchmark, a training job) calls them itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from embershard.change import ByMatrix, ByPart, Change, rows_of_parts, shares
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
    stored = _stored(settled.values(), lambda rows: engine.gather(rows, work.gather))
    books = _stored([settled[read] for read in curious], lambda rows: engine.books(rows, work.books))
    _count_served(engine, settled.values())
    return [
        Found(vectors=read.answer(stored, engine.projections), counts=read.counts(books) if asked in curious else [])
        for asked, read in settled.items()
    ]


def _stored(reads: Iterable[Read], get: Callable[[ByMatrix], ByMatrix]) -> ByPart:
    """What is got, at once, for the rows of several lookups, as it belongs to each of their parts."""
    parts = [part for read in reads for part in read.parts]
    return shares(parts, get(rows_of_parts(parts)))


def update(engine: Engine, change: Change, work: Work, now_s: int) -> EmbershardError | None:
    """Joint: admits ids, then one step of the optimizers for the gradients of all ranks, then their values and starts.

    Starts read their parents as they were before. Returns why this rank's update can't be done: then no row has changed
    for it, but what shows only in the end (gradients that are too large once pulled back through the rows) leaves its
    ids sighted, and maybe admitted.
    """
    refusal = _refusal(engine, change, work)
    change = Change.nothing() if refusal else change
    if full := admission.admit(engine, admission.sightings_of_change(change), work.admit, now_s):
        refusal, change = full, Change.nothing()
    change = change.settled(engine.settle)
    if not all(np.all(write.part.ids.own) for write in change.writes):
        # Two ids with one hash, or a string's hash and an integer: only one of them can own a row.
        refusal = InvalidInput("two of the ids whose rows this update replaces have the same 64-bit key; leave one out")
        change = Change.nothing()
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
