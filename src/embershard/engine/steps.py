"""What all ranks do together: look up, and update.

A service does both in ticks, or looks up between two of them; whoever has no ticker (a test, a benchmark, a training
job) has a `Session`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np

from embershard.change import ByMatrix, ByPart, Change, rows_of_parts, shares
from embershard.collection import Read
from embershard.engine import admission
from embershard.engine.jobs import Answer
from embershard.engine.shard import Start
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
    """float32 [outputs, D] for each feature of the request; uint8 [outputs, D + 8] where `Read.as_stored` says so."""
    counts: list[IdCounts] = field(default_factory=list)
    """What is known of the ids of each feature; empty unless asked for."""

    def at(self, version: int) -> Answer:
        """The same as what was read of a version."""
        return Answer(vectors=self.vectors, counts=self.counts, version=version)


def look_up(engine: Engine, reads: Sequence[Read], curious: Sequence[Read], work: Work) -> list[Found]:
    """Joint: one gather for the lookups of all ranks; those that are `curious` also get counts."""
    settled = [read.settled(engine.settle) for read in reads]
    as_stored = any(read.as_stored for read in reads)
    stored = _stored(settled, lambda rows: engine.gather(rows, work.gather, as_stored=as_stored))
    books: ByPart = {}
    if work.books:
        wanted = [read for asked, read in zip(reads, settled, strict=True) if asked in curious]
        books = _stored(wanted, lambda rows: engine.books(rows, work.books))
    if engine.vocabularies:
        _count_served(engine, settled)
    return [
        Found(vectors=read.answer(stored, engine.projections), counts=read.counts(books) if asked in curious else [])
        for asked, read in zip(reads, settled, strict=True)
    ]


def sight(engine: Engine, reads: Sequence[Read], work: Work, now_s: int) -> None:
    """Joint: counts what lookups have named of the tables whose lookups are sightings; that admits nobody."""
    admission.sight(engine, admission.sightings_of_reads(reads), work.sight, now_s)


def _stored(reads: Sequence[Read], get: Callable[[ByMatrix], ByMatrix]) -> ByPart:
    """What is got, at once, for the rows of several lookups, as it belongs to each of their parts."""
    if len(reads) == 1:
        return shares(reads[0].parts, get(reads[0].rows))
    parts = [part for read in reads for part in read.parts]
    return shares(parts, get(rows_of_parts(parts)))


def update(engine: Engine, change: Change, work: Work, now_s: int) -> EmbershardError | None:
    """Joint: admits ids, then one step of the optimizers for the gradients of all ranks, then their values and starts.

    Starts read their parents as they were before. Returns why nothing of this rank's update can be done.
    """
    refusal: EmbershardError | None = None
    settled = change.settled(engine.settle)
    written = [write.part for write in settled.writes]
    books = shares(written, engine.books(rows_of_parts(written), work.write | work.start))
    stored = _read(engine, settled, work)
    try:
        admission.check_known(engine, change)
        _check_not_frozen(settled, books)
        pulled = settled.pulled(stored, engine.projections)
    except InvalidInput as error:
        refusal, change, settled, pulled = error, Change.nothing(), Change.nothing(), {}
    if work.admit:
        if full := admission.admit(engine, admission.sightings_of_change(change), work.admit, now_s):
            refusal, change = full, Change.nothing()
        settled = change.settled(engine.settle)
        stored = _read(engine, settled, work)
        # Ids start as they were, so that what wasn't too large isn't now, but for rounding and pairs that are new.
        pulled = settled.pulled(stored, engine.projections, clip=True)
    engine.apply(*settled.gradients(pulled), work.apply)
    engine.write(*settled.values(stored, anew=False), work.write)
    engine.write(*settled.values(stored, anew=True), work.start, start=Start.ANEW)
    return refusal


def _read(engine: Engine, change: Change, work: Work) -> ByPart:
    return shares(change.readers, engine.gather(rows_of_parts(change.readers), work.read))


def _check_not_frozen(change: Change, books: ByPart) -> None:
    for part in (write.part for write in change.writes):
        frozen_M = books[part][0][:, 2].cpu().numpy() > 0
        if frozen_M.any():
            id_of_row_M = np.repeat(np.arange(len(part.batch.ids)), part.ids.rows_per_id)
            at = int(id_of_row_M[frozen_M][0])
            raise InvalidInput(
                f"feature {part.batch.feature!r}: ids[{at}] = {part.batch.shown(at)} is frozen, as {frozen_M.sum():,} "
                "of its ids are; thaw them first"
            )


def _count_served(engine: Engine, reads: Iterable[Read]) -> None:
    """How many ids of a vocabulary were answered from a row of their own, and how many from the fallback."""
    for read in reads:
        for part in read.parts:
            if part.table.name in engine.vocabularies:
                counts = engine.vocabularies[part.table.name].counts
                ids = part.kept
                own = int(part.ids.own.sum()) if not isinstance(part.ids.own, bool) else ids * part.ids.own
                counts.own, counts.fallback = counts.own + own, counts.fallback + ids - own
