"""What training jobs publish: their files are staged, read beside the tick, and served by one entry."""

from __future__ import annotations

import asyncio
import logging
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from embershard.config import fingerprint_of, layout_difference, narrowed, spelled_out
from embershard.engine.base import Engine
from embershard.engine.beside import Rest, beside, let_go, without_frames
from embershard.engine.delta import Delta
from embershard.engine.entries import publication_entry
from embershard.engine.making import make_engine
from embershard.engine.memory import check_host_memory
from embershard.engine.replica import Staged
from embershard.errors import ConfigError, FingerprintMismatch, Overloaded, SnapshotError
from embershard.meters import Work
from embershard.store import snapshot
from embershard.store.agreement import meeting
from embershard.store.delta_reading import read_delta
from embershard.store.manifest import layout_of, list_snapshots
from embershard.store.staging import Staging, folder_of
from embershard.v1 import embershard_pb2 as pb
from embershard_server.joint import Joint, shielded
from embershard_server.start import fitted_publication

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    from embershard.config import Config
    from embershard.engine.entries import Entry
    from embershard.engine.publication import Publication
    from embershard.engine.replica import Outcome, Served
    from embershard.engine.tick import Action, Ticker
    from embershard.store.folder import DataDir
    from embershard_server.start import Started

logger = logging.getLogger(__name__)

Made = Engine | Delta
"""What the files of a publication hold."""
BUSY_S = 0.5
"""When to try again while another publication is on its way."""


class Publications:
    """What the engine's thread does about it (`actions`, all joint), and what callers ask for."""

    def __init__(self, started: Started, data: DataDir, config: Config) -> None:
        self._replica, self._data, self._config = started.replica, data, config
        self._world = started.replica.engine.world
        self._staging = Staging(data.publications, self._needed)
        self._current: Staged | None = None
        self._begun = 0
        self.meters = Work()

    def serve(self, ticker: Ticker) -> None:
        """Before it ticks."""
        self.joint = Joint(ticker)
        there = list_snapshots(self._data.snapshots)[-self._config.limits.snapshots_kept :]
        self.trim(int(there[0].name) if there else 0)

    @property
    def actions(self) -> dict[str, Action]:
        """What all ranks do together."""
        return {"publish": self._begin, "publish_end": self._end}

    async def stage(self, request: pb.StageRequest) -> int:
        """A piece of a file; returns how much of it is on the disk.

        Raises:
            InvalidInput, Overloaded: as `Staging.take`.
        """
        told = (request.publisher, request.number, request.file, request.offset, request.data)
        return await asyncio.to_thread(self._staging.take, *told)

    async def publish(
        self, request: pb.PublishRequest, apply: Callable[[Entry], Awaitable[Outcome]]
    ) -> pb.PublishResponse:
        """Reads what was staged, and has its entry applied, which serves it.

        Raises:
            InvalidInput: a name or number that can't be, or rows that the tables have no room for.
            FingerprintMismatch: it is of another collection.
            SequenceGap: it builds on another publication than the tables have.
            SnapshotError: a file is missing or damaged.
            Overloaded: there is no memory for it, or another one is on its way.
        """
        entry = publication_entry(request)
        self._check_layout(request.layout, request.fingerprint)
        publication: Publication = entry.body
        last = self._replica.engine.published
        if not publication.follows(last):
            return pb.PublishResponse(version=last.version, duplicate=True)
        with self.meters.timed():
            outcome = await self.joint.to_its_end(self._publish(entry, apply))
        served: Served = outcome.value
        logger.info("serving %s as version %d", publication, outcome.version)
        return pb.PublishResponse(
            version=outcome.version,
            duplicate=outcome.duplicate,
            rows=served.rows,
            frozen=served.frozen,
            before=served.before,
        )

    def trim(self, oldest: int) -> None:
        """Deletes what no snapshot from this version on needs."""
        replica = self._replica
        dropped = [told for told in replica.publications if told.version <= oldest]
        replica.publications = [told for told in replica.publications if told.version > oldest]

        def delete() -> None:
            for told in dropped:
                self._staging.forget(told.publisher, told.number)
            self._staging.tidy()

        if self._world.rank == 0:
            beside("publications", delete)

    async def _publish(self, entry: Entry, apply: Callable[[Entry], Awaitable[Outcome]]) -> Outcome:
        ready: Future[None] = await self.joint.act("publish", entry.body)
        try:
            await shielded(ready)
            return await apply(entry)
        finally:
            await self.joint.act("publish_end")

    def _check_layout(self, layout: str, fingerprint: str) -> None:
        """Whether it answers as ours does, the rows of growing tables aside, and rows that have fewer bits here."""
        config, there = self._replica.engine.config, layout_of(layout)
        lines = layout_difference(config.layout(), narrowed(there, config.dtypes))
        if fingerprint not in ("", told := fingerprint_of(there)):
            lines = lines or [f"fingerprint: {told} of what it tells, and {fingerprint[:32]} as it says"]
        if lines:
            raise FingerprintMismatch(
                "what is published is of another collection, or of other settings than this, "
                f"{config.collection.name!r}: {spelled_out(lines)}; train and serve with the same configuration"
            )

    def _logged(self) -> dict[tuple[str, int], set[str]]:
        """Files that the log may need again."""
        logged: dict[tuple[str, int], set[str]] = {}
        for told in [*self._replica.publications]:
            logged.setdefault((told.publisher, told.number), set()).update(told.files)
        return logged

    def _needed(self) -> dict[tuple[str, int], set[str]]:
        """Files that must stay as they are; from any thread."""
        needed = self._logged()
        if current := self._current:
            of_it = current.publication
            needed.setdefault((of_it.publisher, of_it.number), set()).update(file.name for file in of_it.files)
        return needed

    def _begin(self, publication: Publication) -> Future[None]:
        """Joint: begins to read what was staged."""
        if self._current:
            busy = Overloaded(f"{self._current.publication} is on its way; try again once it is served")
            busy.retry_after_s, busy.reason = BUSY_S, "busy"
            raise busy
        publication.follows(self._replica.engine.published)
        read = (self._delta if publication.delta else self._full)(publication)
        self._begun += 1
        key, ready = f"publication/{self._begun}", Future[None]()
        staged = self._current = self._replica.staged = Staged(publication=publication)
        beside("publication", lambda: self._read(staged, lambda: read(key), key, ready))
        return ready

    def _delta(self, publication: Publication) -> Callable[[str], Made]:
        """Joint: how a delta is read, if it can be."""
        engine = self._replica.engine
        publication.check_rows(engine.config)
        try:
            check_host_memory(publication.bytes, self._world, str(publication), "publish fewer rows at once")
        except ConfigError as error:
            raise Overloaded(f"{publication} can't be read: {error}") from error
        folder = self._folder(publication)
        return lambda key: read_delta(folder, publication, engine, meeting(self._world, key), rest=Rest())

    def _full(self, publication: Publication) -> Callable[[str], Made]:
        """Joint: likewise, of all tables."""
        config, found = fitted_publication(self._config, self._folder(publication), publication, self._world)

        def make() -> Engine:
            try:
                return make_engine(config, self._world, seeded=False)
            except ConfigError as error:
                raise Overloaded(f"{publication} can't be loaded: {error}") from error

        made = None if self._replica.engine.made_beside else make()

        def read(key: str) -> Engine:
            engine = made or make()
            snapshot.load(engine, found, beside=key, narrower=True)
            return engine

        return read

    def _read(self, staged: Staged, read: Callable[[], Made], key: str, ready: Future[None]) -> None:
        """Beside the tick; what fails, fails on every rank."""
        try:
            staged.made = read()
            meeting(self._world, key)(None)  # nobody is told before every rank has it
        except Exception as error:
            if isinstance(error, SnapshotError):  # which every rank has: whoever is told sends it again at once
                self._drop_damaged(staged.publication)
                meeting(self._world, f"{key}/failed")(None)
            ready.set_exception(without_frames(error))
        else:
            ready.set_result(None)

    def _drop_damaged(self, publication: Publication) -> None:
        if self._world.rank == 0:
            logged = self._logged().get((publication.publisher, publication.number), set())
            self._staging.drop_damaged(publication, logged)

    def _end(self, _: Any) -> None:
        """Joint: whatever has become of it."""
        ended, self._current, self._replica.staged = [self._current], None, None
        let_go(ended)

    def _folder(self, publication: Publication) -> Path:
        return folder_of(self._data.publications, publication.publisher, publication.number)
