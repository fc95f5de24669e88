"""What a replica answers to lookups: those of a tick, and, where a process is alone, those between two ticks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from embershard.collection import IdCounts
from embershard.engine.jobs import Answer
from embershard.engine.steps import look_up
from embershard.engine.work import Work, work_of_reads
from embershard.errors import InvalidInput

if TYPE_CHECKING:
    from embershard.collection import Read
    from embershard.engine.base import Engine
    from embershard.engine.jobs import LookupJob
    from embershard.engine.replica import Replica


class Lookups:
    """Looks up what is served, and what is pinned."""

    def __init__(self, replica: Replica) -> None:
        self._replica, self._world = replica, replica.engine.world

    def fitted(self, read: Read) -> Read:
        """A lookup for the tables as they are: they may have changed since it was prepared.

        Raises:
            InvalidInput: an id that they don't have.
        """
        collection = self._replica.collection
        return read if read.generation == collection.generation else collection.again(read)

    def fits(self, job: LookupJob) -> bool:
        """Whether a lookup can be done; if not, it is told why."""
        if not job.pinned:
            try:
                job.read = self.fitted(job.read)
            except InvalidInput as refusal:
                job.refuse(refusal)
                return False
        return True

    def answer(self, read: Read, *, with_counts: bool) -> Answer:
        """A lookup alone, where no other rank takes part."""
        if (answer := self._at_hand(read, with_counts=with_counts)) is not None:
            return answer
        reads, curious = [read], [read] if with_counts else []
        (found,) = look_up(self._replica.engine, reads, curious, work_of_reads(reads, curious))
        return found.at(self._replica.version)

    def _at_hand(self, read: Read, *, with_counts: bool) -> Answer | None:
        """What is answered of rows that are asked for as they are; None if anything is to be done with any."""
        vectors, counts = [], []
        for part in read.parts:
            if not part.as_is or (vectors_ND := self._replica.engine.at_hand(part)) is None:
                return None
            vectors.append(vectors_ND)
            if with_counts:
                if (books_N3 := self._replica.engine.books_at_hand(part)) is None:
                    return None
                counts.append(IdCounts.of(part, [books_N3]))
        return Answer(vectors=vectors, counts=counts, version=self._replica.version)

    def serve(self, jobs: Sequence[LookupJob], work: Work) -> None:
        """Joint: one gather for all lookups of all ranks."""
        self._answer(self._replica.engine, jobs, work, self._replica.version)

    def serve_pinned(self, jobs: Sequence[LookupJob]) -> None:
        """Joint: one gather for each loaded snapshot that any rank's lookups name."""
        mine: dict[int, list[LookupJob]] = {}
        for job in jobs:
            mine.setdefault(job.pinned, []).append(job)
        brought = self._world.gather({version: work_of(of_it) for version, of_it in mine.items()})
        for version in sorted({version for of_rank in brought for version in of_rank}):
            of_it = mine.get(version, [])
            if (engine := self._replica.loaded.get(version)) is None:
                for job in of_it:
                    job.refuse(InvalidInput(f"version {version:,} was just taken out of memory; load it again"))
                continue
            work = Work()
            for of_rank in brought:
                work |= of_rank.get(version, Work())
            self._answer(engine, of_it, work, version)

    def _answer(self, engine: Engine, jobs: Sequence[LookupJob], work: Work, version: int) -> None:
        reads, curious = _reads(jobs)
        for job, found in zip(jobs, look_up(engine, reads, curious, work), strict=True):
            job.done.set_result(found.at(version))


def work_of(jobs: Sequence[LookupJob]) -> Work:
    """What lookups take."""
    return work_of_reads(*_reads(jobs))


def _reads(jobs: Sequence[LookupJob]) -> tuple[list[Read], list[Read]]:
    """What they read, and those of it of which more is to be told."""
    return [job.read for job in jobs], [job.read for job in jobs if job.with_counts]
