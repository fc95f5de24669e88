"""Snapshots: all rows, optimizer state and vocabularies of one version, as data that can't run code.

Written by torch.distributed.checkpoint in its safetensors storage, beside (`.partial-…`) and renamed. Row shards load
at any world size. Ranks on several hosts need a shared file system.
"""

from __future__ import annotations

import logging
import shutil
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

from embershard.config import layout_difference
from embershard.engine.world import SoloWorld
from embershard.errors import FingerprintMismatch, SnapshotError
from embershard.store.id_files import read_id_file, write_id_files
from embershard.store.manifest import FORMAT, Snapshot, complete, describe_file, list_snapshots, open_snapshot

if TYPE_CHECKING:
    from embershard.config import Config
    from embershard.engine.base import Engine
    from embershard.engine.world import World

logger = logging.getLogger(__name__)

_PARTIAL = ".partial-"
_DIFFERENCES = 6
"""Differences of another collection that are spelled out; more would bury the message."""


def save(engine: Engine, version: int, folder: Path, *, kept: int) -> Snapshot:
    """Joint: writes a snapshot of the engine's rows, and deletes all but the newest `kept`.

    Raises:
        SnapshotError: on every rank, if any can't write; nothing is left behind.
    """
    final = folder / f"{version:012d}"
    partial = folder / f"{_PARTIAL}{version:012d}"
    world, first = engine.world, engine.world.rank == 0
    if any(world.gather(first and final.is_dir())):  # the rows of a version never change
        return open_snapshot(final)
    try:
        with _everywhere(engine.world, "can't be written"):
            if first:
                for left_behind in folder.glob(f"{_PARTIAL}*"):
                    shutil.rmtree(left_behind)
                partial.mkdir(parents=True)
        with _everywhere(engine.world, "can't be written"), _quiet():
            writer = HuggingFaceStorageWriter(path=str(partial), save_distributed=True)
            dcp.save(_checkpoint(engine), storage_writer=writer, no_dist=not dist.is_initialized())
            if first:
                write_id_files(partial, engine.config, engine.vocabularies)
        with _everywhere(engine.world, "can't be written"):
            mine = sorted(partial.iterdir())[world.rank :: world.size]
            described = {path.name: describe_file(path) for path in mine}
        files = {name: entry for part in world.gather(described) for name, entry in part.items()}
        with _everywhere(engine.world, "can't be written"):
            if first:
                complete(partial, final, _manifest(engine.config, version, world.size, files))
    except SnapshotError:
        if first:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    if first:
        _delete_old(folder, kept)
    return open_snapshot(final)


def load(engine: Engine, snapshot: Snapshot) -> int:
    """Joint: fills the engine with all that a snapshot holds, bit by bit; returns its version.

    The engine's tables must have as many rows as those of the snapshot.

    Raises:
        FingerprintMismatch: it belongs to another collection.
        SnapshotError: it is damaged, or has the state of other optimizers.
    """
    check_belongs(engine.config, snapshot)
    fill(engine, snapshot)
    return snapshot.version


def fill(engine: Engine, snapshot: Snapshot) -> None:
    """Joint: as `load`, of a snapshot that is known to fit the engine's tables."""
    with _everywhere(engine.world, "can't be read"):
        snapshot.verify(sorted(snapshot.manifest["files"])[engine.world.rank :: engine.world.size])
    state = _checkpoint(engine)
    with _everywhere(engine.world, "can't be read"), _quiet():
        reader = HuggingFaceStorageReader(path=str(snapshot.path))
        dcp.load(state, storage_reader=reader, no_dist=not dist.is_initialized())
    for name, live in engine.tensors().items():
        loaded = state[name]
        local = loaded.to_local() if isinstance(loaded, DTensor) else loaded
        if local.data_ptr() != live.data_ptr():
            live.copy_(local)
    with _everywhere(engine.world, "can't be read"):
        for name, vocabulary in engine.vocabularies.items():
            vocabulary.restore(read_id_file(snapshot.path, name))
    engine.refresh(engine.matrices)


def read_tensors(snapshot: Snapshot, names: Iterable[str]) -> dict[str, Tensor]:
    """Whole tensors, whatever ranks wrote them, without an engine; the caller verifies the snapshot.

    Raises:
        SnapshotError: they can't be read.
    """
    with _everywhere(SoloWorld(), "can't be read"), _quiet():
        reader = HuggingFaceStorageReader(path=str(snapshot.path))
        known: Mapping[str, Any] = reader.read_metadata().state_dict_metadata
        state = {name: torch.empty(known[name].size, dtype=known[name].properties.dtype) for name in names}
        dcp.load(state, storage_reader=reader, no_dist=True)
    return state


def _checkpoint(engine: Engine) -> dict[str, Tensor]:
    """What a snapshot holds, as torch.distributed.checkpoint wants it; views of live rows where they are contiguous."""
    tensors = {name: view.contiguous() for name, view in engine.tensors().items()}
    if not dist.is_initialized():
        return tensors
    mesh = init_device_mesh(engine.world.device.type, (engine.world.size,))
    rows = {name: matrix.rows for name, matrix in engine.matrices.items()}
    return {name: _row_shard(tensor, rows[name.rpartition(".")[0]], mesh) for name, tensor in tensors.items()}


def _row_shard(local: Tensor, rows: int, mesh: Any) -> Tensor:
    shape = torch.Size((rows, *local.shape[1:]))
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=shape, stride=local.stride())


def check_belongs(config: Config, snapshot: Snapshot, *, names: bool = True) -> None:
    """Refuses a snapshot of another collection; with `names` False, lists of names may be others.

    Raises:
        FingerprintMismatch: with the difference spelled out.
        SnapshotError: it has the state of other optimizers.
    """
    manifest = snapshot.manifest
    here, there = (layout if names else _without_names(layout) for layout in (config.layout(), manifest["layout"]))
    if lines := layout_difference(here, there):
        told = "; ".join(lines[:_DIFFERENCES]) + (
            f"; and {len(lines) - _DIFFERENCES} more" * (len(lines) > _DIFFERENCES)
        )
        moves = "; `embershard remap` moves rows from one list of names to another"
        raise FingerprintMismatch(
            f"{snapshot.path}: is of another collection, {manifest['collection']!r}, and this is "
            f"{config.collection.name!r}: {told}; serve it with its own configuration, or give another --data-dir"
            + moves
            * any(".ids.names: " in line for line in lines)
        )
    for table in config.tables:
        ours, theirs = config.optimizer_of(table).kind, manifest["optimizers"][table.name]
        if ours != theirs:
            raise SnapshotError(
                f"{snapshot.path}: table {table.name!r} has the optimizer state of {theirs}, and the configuration "
                f"says {ours}; set optimizer.kind = {theirs!r}"
            )


def _without_names(layout: dict[str, Any]) -> dict[str, Any]:
    tables = {
        name: {**table, "ids": {key: value for key, value in table["ids"].items() if key != "names"}}
        for name, table in layout["tables"].items()
    }
    return {**layout, "tables": tables}


def _manifest(config: Config, version: int, world_size: int, files: dict[str, Any]) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "collection": config.collection.name,
        "fingerprint": config.fingerprint(),
        "layout": config.layout(),
        "optimizers": {table.name: config.optimizer_of(table).kind for table in config.tables},
        "version": version,
        "world_size": world_size,
        "torch": torch.__version__,
        "files": dict(sorted(files.items())),
    }


def _delete_old(folder: Path, kept: int) -> None:
    for path in list_snapshots(folder)[:-kept]:
        try:
            shutil.rmtree(path)
        except OSError as error:  # the new snapshot is complete all the same
            logger.warning("the old snapshot %s can't be deleted: %s", path, error)


@contextmanager
def _everywhere(world: World, what: str) -> Iterator[None]:
    """Joint: if the body fails on any rank, raises SnapshotError on every rank, so that none goes on alone."""
    failure: BaseException | None = None
    try:
        yield
    except (Exception, CheckpointException) as error:  # the latter is none of the former
        failure = error
    reports = [report for report in world.gather(None if failure is None else _told(failure)) if report]
    if reports:
        prefix = "" if isinstance(failure, SnapshotError) else f"a snapshot {what}: "
        raise SnapshotError(f"{prefix}{reports[0]}") from failure


def _told(failure: BaseException) -> str:
    """What went wrong, without the tracebacks that torch puts around it."""
    if isinstance(failure, CheckpointException):
        return "; ".join(sorted({str(error) for error, _ in failure.failures.values()}))
    return str(failure) if isinstance(failure, (OSError, SnapshotError)) else f"{type(failure).__name__}: {failure}"


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a process group a checkpoint is of one process: that is meant, and needs no warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield
