"""The versions that one rank can serve: snapshots that are written while calls are answered."""

from __future__ import annotations

import logging
import time
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

from embershard.engine.jobs import ActionJob
from embershard.errors import SnapshotError
from embershard.meters import SnapshotMeters
from embershard.store import snapshot
from embershard.store.manifest import list_snapshots, open_snapshot
from embershard.v1 import embershard_pb2 as pb
from embershard_server.joint import Joint, shielded

if TYPE_CHECKING:
    from collections.abc import Callable

    from embershard.config import Config
    from embershard.engine.clients import Clients
    from embershard.engine.tick import Action, Ticker
    from embershard.store.folder import DataDir
    from embershard.store.manifest import Snapshot
    from embershard.store.snapshot import Keeping, Saving
    from embershard_server.loads import Loads
    from embershard_server.start import Started

logger = logging.getLogger(__name__)

PUBLISHED = 4
"""A snapshot is begun once publications since the last one are so many times as large as the tables."""
RETRY_S = 10.0
"""How long after a snapshot that failed another one is begun by itself."""


class Versions:
    """What the engine's thread does about snapshots (`actions` jointly, `chore` alone), and what callers ask."""

    def __init__(
        self, started: Started, data: DataDir, config: Config, loads: Loads, trimmed: Callable[[int], None]
    ) -> None:
        """`trimmed` is told from which snapshot on the log goes back no further."""
        self._loads, self._trimmed = loads, trimmed
        self._replica, self._log, self._data, self._config = started.replica, started.log, data, config
        self._world = started.replica.engine.world
        self._saving: Saving | None = None
        self.meters = _known(data)
        self._last_done: Future[Snapshot] = Future()
        # Seconds that applying entries had taken when the last snapshot was begun, and bytes that were published.
        self._begun_s = -started.replay_s
        self._begun_bytes = 0
        self._asked, self._not_before = False, 0.0

    def serve(self, ticker: Ticker) -> None:
        """Before it ticks."""
        self._ticker, self.joint = ticker, Joint(ticker)

    @property
    def actions(self) -> dict[str, Action]:
        """What all ranks do together."""
        return {"snapshot": self._begin}

    def chore(self) -> bool:
        """A slice of a snapshot, or whatever is to be done about it; whether there was anything."""
        if self._saving is not None:
            if self._overdue:
                self._saving.hurry()
            if self._saving.step():
                return True
            if self._saving.done.done():
                self._end(self._saving)
                return True
        if self._world.rank == 0 and not self._asked and self._is_due():
            self._asked = True
            self._ticker.ask(ActionJob(action="snapshot"))
            return True
        return False

    def farewell(self) -> Snapshot:
        """Joint: the last snapshot, after the last tick.

        Raises:
            SnapshotError: on every rank, if any can't write.
        """
        if self._saving is not None:
            self._saving.drain()  # whatever has become of it, this one is tried
        replica = self._replica
        for version, clients in replica.unsaved.items():
            snapshot.save(replica.loaded[version], clients, version, self._data.snapshots, keeping=self._keeping)
        return snapshot.save(
            replica.engine, replica.clients, replica.version, self._data.snapshots, keeping=self._keeping
        )

    def versions(self) -> list[pb.Version]:
        """What is served, in memory, and on the disk."""
        served, before = self._replica.version, self._replica.before
        found = {int(path.name): _bytes(path) for path in list_snapshots(self._data.snapshots)}
        loaded = {*self._replica.loaded}
        return [
            pb.Version(
                version=version,
                state=pb.VERSION_STATE_SERVED
                if version == served
                else pb.VERSION_STATE_LOADED
                if version in loaded
                else pb.VERSION_STATE_ON_DISK,
                bytes=found.get(version, 0),
                rollback=0 < version == before,
            )
            for version in sorted({served, *loaded, *found})
        ]

    async def snapshot(self) -> Snapshot:
        """A snapshot that has all that is there now.

        Raises:
            SnapshotError: it can't be written.
        """
        least = self._ticker.version
        while True:
            made: Snapshot = await shielded(await self.joint.act("snapshot"))
            if made.version >= least:
                return made

    @property
    def replay_s(self) -> float:
        """About how long it would take to apply the log, in seconds, if the rank started now; from any thread."""
        return self._ticker.applied_s - self._begun_s

    @property
    def _keeping(self) -> Keeping:
        """Which snapshots stay."""
        kept = self._config.limits.snapshots_kept
        return snapshot.Keeping(
            kept=kept,
            activations=[*self._replica.activations],
            publications=[*self._replica.publications],
            needed=self._needed,
        )

    def _needed(self, oldest: int) -> set[int]:
        """Snapshots older than the oldest that stays, without which the log couldn't be applied, or a rollback done;
        from any thread."""
        activations = [*self._replica.activations]
        activated = {told.activated for told in activations if told.version > oldest}
        before = {told.before for told in activations[-1:]}
        return activated | before | self._loads.versions

    def _is_due(self) -> bool:
        return bool(self._replica.unsaved or self._overdue) and time.monotonic() >= self._not_before

    @property
    def _overdue(self) -> bool:
        """Whether applying the log again would take too long since the last snapshot was begun, or the files that it
        needs are several times as large as the tables."""
        replica = self._replica
        late = self.replay_s >= self._config.durability.replay_s
        published = replica.published_bytes - self._begun_bytes
        return late or (published > 0 and published > PUBLISHED * sum(replica.engine.table_bytes().values()))

    def _begin(self, _: Any) -> Future[Snapshot]:
        """Joint: begins a snapshot, or tells of the one that is under way, which ranks end at different times."""
        replica = self._replica
        told = self._world.gather((self._saving is not None, next(iter(replica.unsaved), 0)))
        if any(busy for busy, _ in told):
            return self._saving.done if self._saving else self._last_done
        version, engine = replica.version, replica.engine
        clients: Clients | None = replica.clients
        if told[0][1]:  # as rank 0 has it: what was served before comes first
            version = told[0][1]
            engine, clients = replica.loaded[version], replica.unsaved.get(version)
        else:
            self._begun_s, self._begun_bytes = self._ticker.applied_s, replica.published_bytes
            if self._log is not None:
                self._log.rotate()
        self._saving_since_s = time.monotonic()
        self._saving = snapshot.begin(
            engine,
            clients,
            version,
            self._data.snapshots,
            keeping=self._keeping,
            wake=self._ticker.nudge,
        )
        self._last_done = self._saving.done
        return self._last_done

    def _end(self, saving: Saving) -> None:
        self._saving, self._asked = None, False
        if problem := saving.done.exception():
            self._not_before = time.monotonic() + RETRY_S
            self._begun_s = min(self._begun_s, self._ticker.applied_s - self._config.durability.replay_s)
            self.meters.failures += 1
            logger.error("a snapshot failed, and the next is begun in %.0f s: %s", RETRY_S, problem)
            return
        made = saving.done.result()
        self.meters.seconds.observe(time.monotonic() - self._saving_since_s)
        self.meters.version, self.meters.bytes, self.meters.last_s = made.version, made.bytes, time.time()
        logger.info("wrote %s, %.1f MiB", made.path, made.bytes / 2**20)
        self._replica.unsaved.pop(made.version, None)
        there = list_snapshots(self._data.snapshots)[-self._config.limits.snapshots_kept :]
        oldest = int(there[0].name) if there else made.version
        activations = self._replica.activations
        self._replica.activations = [told for told in activations if told.version > oldest] or activations[-1:]
        if self._log is not None:
            self._log.trim(oldest)
        self._trimmed(oldest)


def _known(data: DataDir) -> SnapshotMeters:
    """Of the newest snapshot that is there already."""
    if not (there := list_snapshots(data.snapshots)):
        return SnapshotMeters()
    newest = there[-1]
    return SnapshotMeters(version=int(newest.name), bytes=_bytes(newest), last_s=newest.stat().st_mtime)


def _bytes(path: Any) -> int:
    try:
        return open_snapshot(path).bytes
    except SnapshotError:  # it says what is wrong when it is loaded
        return 0
