"""What must have come of the log: one engine in this process, that applies one entry after the other.

It shares the arithmetic with the service, and nothing of ticks, queues, logs, replay or snapshots on the way: the order
of versions, and who is owed which update, are plain dictionaries here.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from embershard import codec
from embershard.config import Config
from embershard.engine import steps
from embershard.engine.entries import Kind, freeze_entry, growth_entry
from embershard.engine.freezing import freeze
from embershard.engine.growth import grow
from embershard.engine.local import LocalEngine
from embershard.engine.pipeline import Record
from embershard.engine.session import Session
from embershard.engine.work import Work, work_of_reads
from embershard.engine.world import SoloWorld
from embershard.errors import EmbershardError, InvalidInput
from embershard.store import snapshot
from embershard.store.manifest import Snapshot, open_snapshot
from embershard.v1 import embershard_pb2 as pb

_RECENT = 16
"""Versions of a client's last updates that are known."""


class Model:
    """Tables, clients and the version, as they must be."""

    def __init__(self, config: Config, folder: Path) -> None:
        self._config, self._folder = config, folder
        self._session = Session(LocalEngine(config, SoloWorld()))
        self.version = 0
        self.before = 0
        """What a rollback serves again."""
        self.applied: dict[tuple[str, int], int] = {}
        """The version that has each update."""
        self._clients: dict[str, list[int]] = {}
        """The versions of each client's updates, the first first."""
        self.clients: dict[int, dict[str, tuple[int, list[int]]]] = {}
        """Of each version that was kept: how many updates each client had, and the versions of the last."""

    def apply(self, record: Record) -> None:
        """Makes the next version."""
        assert record.version == self.version + 1
        if record.kind is Kind.ACTIVATE:
            self.keep()
        self.version += 1
        match record.kind:
            case Kind.UPDATE:
                self._update(pb.UpdateRequest.FromString(record.request), record.now_s)
            case Kind.SIGHT:
                self._sight(pb.LookupRequest.FromString(record.request), record.now_s)
            case Kind.GROW | Kind.FREEZE:
                self._care(record)
            case _:
                self.before = self.version - 1 if record.kind is Kind.ACTIVATE else 0
                self._session = self.session_of(pb.ActivateRequest.FromString(record.request).version)

    def keep(self) -> Snapshot:
        """Writes down what there is."""
        self.clients[self.version] = {
            client: (len(versions), versions[-_RECENT:]) for client, versions in self._clients.items()
        }
        return snapshot.save(
            self._session.engine, None, self.version, self._folder, keeping=snapshot.Keeping(kept=10**6)
        )

    def kept(self, version: int) -> Snapshot | None:
        """What was written down of a version."""
        path = self._folder / f"{version:012d}"
        return open_snapshot(path) if path.is_dir() else None

    def session_of(self, version: int) -> Session:
        """The tables of a version that was kept."""
        found = self.kept(version)
        assert found, f"version {version} isn't known to the model"
        engine = LocalEngine(self._config.fitted(found.manifest["layout"]), SoloWorld(), seeded=False)
        snapshot.load(engine, found)
        return Session(engine)

    def lookup(self, request: pb.LookupRequest, session: Session | None = None) -> Any:
        """Vectors and counts, and nobody is sighted."""
        session = session or self._session
        read = session.collection.read([codec.decode_batch(feature) for feature in request.features])
        curious = [read] if request.with_counts or request.with_provenance else []
        return steps.look_up(session.engine, [read], curious, work_of_reads([read], curious))[0]

    def _update(self, request: pb.UpdateRequest, now_s: int) -> None:
        client, sequence = request.client_id, request.sequence
        mine = self._clients.setdefault(client, [])
        if sequence != len(mine) + 1:
            return  # a duplicate, or a gap
        dims = {feature: table.dim for feature, table in self._session.collection.table_of.items()}
        try:
            updates = [codec.decode_update(update, dims) for update in request.updates]
            self._session.update(updates, now_s=now_s)
        except EmbershardError:
            return
        mine.append(self.version)
        self.applied[client, sequence] = self.version

    def _sight(self, request: pb.LookupRequest, now_s: int) -> None:
        collection = self._session.collection
        reads = [collection.read([codec.decode_batch(feature)]) for feature in request.features]
        tables = frozenset(part.table.name for read in reads for part in read.parts)
        steps.sight(self._session.engine, reads, Work(sight=tables), now_s)

    def _care(self, record: Record) -> None:
        engine, collection = self._session.engine, self._session.collection
        try:
            if record.kind is Kind.GROW:
                grow(engine, growth_entry(collection, pb.GrowRequest.FromString(record.request)).body)
            else:
                batch, frozen = freeze_entry(collection, pb.FreezeRequest.FromString(record.request)).body
                freeze(engine, batch, frozen=frozen)
        except InvalidInput:
            return
