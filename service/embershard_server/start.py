"""How a rank comes to have its tables: the group, its data directory, the newest snapshot, and the log after it."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embershard.config import narrowed
from embershard.engine.clients import Clients
from embershard.engine.entries import Kind, growth_entry
from embershard.engine.growth import check_room
from embershard.engine.making import make_engine, make_world, use_cores
from embershard.engine.pipeline import Record
from embershard.engine.publication import Logged
from embershard.engine.replica import Activation, Replica
from embershard.errors import EmbershardError, SnapshotError
from embershard.store import snapshot
from embershard.store.agreement import everywhere
from embershard.store.delta_reading import read_delta
from embershard.store.log import UpdateLog
from embershard.store.manifest import MANIFEST, Snapshot, list_snapshots, open_snapshot, read_manifest
from embershard.store.replay import layout_of_log, replay
from embershard.store.staging import check_file, folder_of
from embershard.v1 import embershard_pb2 as pb

if TYPE_CHECKING:
    from pathlib import Path
    from typing import Any

    from embershard.config import Config
    from embershard.engine.base import Engine
    from embershard.engine.delta import Delta
    from embershard.engine.publication import Publication
    from embershard.engine.world import World
    from embershard.store.folder import DataDir

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Started:
    """What a rank serves, and where it keeps it."""

    replica: Replica
    """The tables, as they were when the last process ended."""
    log: UpdateLog | None
    """What comes; rank 0 has it."""
    replay_s: float
    """How long the log took."""


def start(config: Config, data: DataDir) -> Started:
    """Joint: takes the data directory, and brings back what is in it.

    A table that may grow never shrinks: one that has grown keeps its rows whatever the file says, and one that the file
    makes larger grows now.

    Raises:
        InstallError: the sharded engine needs TorchRec, and it isn't installed.
        ConfigError: the data directory can't be had, or the tables don't fit into memory.
        SnapshotError, FingerprintMismatch: the newest snapshot can't be used.
        LogError: the update log can't be used.
        Overloaded, Unavailable: a table is to grow, and there is no memory for it, or no disk for the log.
    """
    world = make_world(timeout_s=config.limits.group_timeout_s)
    use_cores(world, spared=1)  # for the front end
    data.hold(world)
    replica = _brought_back(config, data, world)
    begin = time.perf_counter()
    if count := replay(replica, data.log, config):
        logger.info("applied %d updates of the log: version %d", count, replica.version)
    replay_s = time.perf_counter() - begin
    log = None if world.rank else _open_log(replica, data, config)
    _tell_of_growth(config, replica.engine)
    for table in config.tables:
        if table.rows > replica.engine.config.table(table.name).rows:
            _grow(replica, log, table.name, table.rows)
    replica.serve()
    return Started(replica=replica, log=log, replay_s=replay_s)


def fitted_snapshot(config: Config, data: DataDir, version: int, world: World) -> tuple[Config, Snapshot]:
    """Joint: a snapshot, and the configuration of its tables.

    Raises:
        SnapshotError: on every rank: there is none, or it can't be used.
    """
    path = data.snapshots / f"{version:012d}"
    with everywhere(world.gather, "a snapshot can't be read"):
        if not path.is_dir():
            there = ", ".join(f"{int(found.name):,}" for found in list_snapshots(data.snapshots))
            raise SnapshotError(f"there is no snapshot of version {version:,}; there are {there or 'none'}")
        found = open_snapshot(path)
        fitted = config.fitted(found.manifest["layout"])
        snapshot.check_belongs(fitted, found)
    return fitted, found


def fitted_publication(config: Config, folder: Path, publication: Publication, world: World) -> tuple[Config, Snapshot]:
    """Joint: the same of the files of a publication in full, whose rows may be stored in fewer bits here.

    Raises:
        SnapshotError: on every rank: a file is missing, or isn't what was published.
    """
    with everywhere(world.gather, f"{publication} can't be read"):
        files = {file.name: file for file in publication.files}
        if MANIFEST not in files:
            raise SnapshotError(f"{publication}: is in full, and has no {MANIFEST}: publish the files of a snapshot")
        check_file(folder, files.pop(MANIFEST))
        found = read_manifest(folder, alone=False)
        told = {name: (file["bytes"], file["sha256"]) for name, file in found.manifest["files"].items()}
        if told != {name: (file.size, file.sha256) for name, file in files.items()}:
            raise SnapshotError(f"{publication}: its files aren't those that its {MANIFEST} names")
        found.check_files()
        fitted = config.fitted(narrowed(found.manifest["layout"], config.dtypes))
        snapshot.check_belongs(fitted, found, narrower=True)
    return fitted, found


def _brought_back(config: Config, data: DataDir, world: World) -> Replica:
    """Joint: what the newest snapshot holds; without one, what the log began with."""

    def load(version: int) -> Engine:
        try:
            fitted, found = fitted_snapshot(config, data, version, world)
            engine = make_engine(fitted, world, seeded=False)
            snapshot.load(engine, found)
        except SnapshotError as error:
            raise SnapshotError(
                f"the update log can't be applied, as it activates version {version:,}: {error}. Bring that snapshot "
                f"back from a copy; without it, move {data.log} away: the newest snapshot is served then, without the "
                "updates after it"
            ) from error
        return engine

    def fetch(publication: Publication, engine: Engine) -> Engine | Delta:
        folder = folder_of(data.publications, publication.publisher, publication.number)
        try:
            if publication.delta:
                return read_delta(folder, publication, engine, world.gather)
            fitted, found = fitted_publication(config, folder, publication, world)
            made = make_engine(fitted, world, seeded=False)
            snapshot.load(made, found, narrower=True)
        except SnapshotError as error:
            raise SnapshotError(
                f"the update log can't be applied, as it has {publication}: {error}. Without its files, move "
                f"{data.log} away: the newest snapshot is served then, without what came after it"
            ) from error
        return made

    clients = Clients(config.limits.clients_remembered)
    newest = _newest(data, world)
    if newest is None:
        layout = _first_layout(data, world)
        engine = make_engine(config if layout is None else config.fitted(layout), world)
        return Replica(engine, version=0, clients=clients, load=load, fetch=fetch)
    engine = make_engine(config.fitted(newest.manifest["layout"]), world, seeded=False)
    logger.info("loading %s, %.1f MiB", newest.path, newest.bytes / 2**20)
    version = snapshot.load(engine, newest, clients)
    logger.info("loaded version %d", version)
    activations = [Activation(**told) for told in newest.manifest["activations"]]
    return Replica(
        engine,
        version=version,
        clients=clients,
        activations=activations,
        publications=[Logged(**told) for told in newest.manifest["publications"]],
        load=load,
        fetch=fetch,
    )


def _newest(data: DataDir, world: World) -> Snapshot | None:
    """Joint: the one that rank 0 sees, as a folder may be slow to show another host its newest."""
    found = list_snapshots(data.snapshots)
    chosen = world.gather(found[-1] if found else None)[0]
    return None if chosen is None else open_snapshot(chosen)


def _first_layout(data: DataDir, world: World) -> dict[str, Any] | None:
    """Joint: of the tables with which the log begins, if there is one."""
    layout: dict[str, Any] | None = None
    problem: EmbershardError | None = None
    if world.rank == 0:
        try:
            layout = layout_of_log(data.log)
        except EmbershardError as error:
            problem = error
    layout, problem = world.gather((layout, problem))[0]
    if problem:
        raise problem
    return layout


def _open_log(replica: Replica, data: DataDir, config: Config) -> UpdateLog:
    return UpdateLog(
        data.log,
        mode=config.durability.log,
        about=lambda: {"layout": replica.engine.config.layout(), "settings": config.settings()},
        last=replica.version,
    )


def _tell_of_growth(config: Config, engine: Engine) -> None:
    there = {table.name: table.rows for table in engine.config.tables}
    grown = {table.name: there[table.name] for table in config.tables if there[table.name] > table.rows}
    if grown and engine.world.rank == 0:
        told = ", ".join(f"{name} rows = {rows:_}" for name, rows in grown.items())
        logger.info("tables have more rows than the configuration says; write it down: %s", told)


def _grow(replica: Replica, log: UpdateLog | None, table: str, rows: int) -> None:
    """Joint: a growth by the configuration, logged as any other."""
    logger.info("growing table %s to the %d rows of the configuration", table, rows)
    entry = growth_entry(replica.collection, pb.GrowRequest(table=table, rows=rows))
    check_room(replica.engine, entry.body)
    problem, now_s = None, int(time.time())
    if log is not None:
        record = Record(version=replica.version + 1, kind=Kind.GROW, now_s=now_s, request=entry.request)
        problem = log.append([record]).exception()
    if told := replica.engine.world.gather(problem)[0]:
        raise told
    replica.apply(entry, now_s, mine=log is not None)
