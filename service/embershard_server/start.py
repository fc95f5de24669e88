"""How a rank comes to have its tables: the group, its data directory, an engine, and the newest snapshot in it."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from embershard.engine.growth import resize
from embershard.engine.local import LocalEngine
from embershard.engine.world import SoloWorld, TorchWorld
from embershard.errors import InstallError
from embershard.store import snapshot
from embershard.store.manifest import Snapshot, list_snapshots, open_snapshot

if TYPE_CHECKING:
    from embershard.config import Config
    from embershard.engine.base import Engine
    from embershard.engine.world import World
    from embershard.store.folder import DataDir

logger = logging.getLogger(__name__)


def start(config: Config, data: DataDir) -> tuple[Engine, int]:
    """Joint: takes the data directory, and returns an engine with what is in it, and the version.

    A table that may grow never shrinks: one that has grown keeps its rows whatever the file says, and one that the file
    makes larger grows now.

    Raises:
        InstallError: the sharded engine needs TorchRec, and it isn't installed.
        ConfigError: the data directory can't be had, or the tables don't fit into memory.
        SnapshotError, FingerprintMismatch: the newest snapshot can't be used.
        Overloaded: there is no memory for the rows that a table is to grow by.
    """
    alone = "WORLD_SIZE" not in os.environ
    world = SoloWorld() if alone else TorchWorld(timeout_s=config.limits.group_timeout_s)
    data.hold(world)
    newest = _newest(data, world)
    if newest is None:
        return _make_engine(config, world), 0
    engine = _make_engine(config.fitted(newest.manifest["layout"]), world)
    logger.info("loading %s, %.1f MiB", newest.path, newest.bytes / 2**20)
    version = snapshot.load(engine, newest)
    grown = {table.name: newest.rows[table.name] for table in config.tables if newest.rows[table.name] > table.rows}
    if grown and world.rank == 0:
        told = ", ".join(f"{name} rows = {rows:_}" for name, rows in grown.items())
        logger.info("tables have more rows than the configuration says; write it down: %s", told)
    if more := {table.name: table.rows for table in config.tables if table.rows > newest.rows[table.name]}:
        logger.info("growing to the rows of the configuration: %s", more)
        resize(engine, more)
    logger.info("loaded version %d", version)
    return engine, version


def _newest(data: DataDir, world: World) -> Snapshot | None:
    """Joint: the one that rank 0 sees, as a folder may be slow to show another host its newest."""
    found = list_snapshots(data.snapshots)
    chosen = world.gather(found[-1] if found else None)[0]
    return None if chosen is None else open_snapshot(chosen)


def _make_engine(config: Config, world: World) -> Engine:
    """The sharded engine under torchrun, else the local one."""
    if isinstance(world, SoloWorld):
        return LocalEngine(config, world)
    try:
        from embershard.engine.torchrec import TorchRecEngine
    except ImportError as error:
        raise InstallError(
            f"torchrun asks for the sharded engine, which needs TorchRec: {error}; `embershard doctor` says what to run"
        ) from error
    return TorchRecEngine(config, world)
