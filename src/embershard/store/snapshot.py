"""Snapshots: all rows and optimizer state of one version, as data that can't run code.

    snapshots/000000000042/                     one folder a version, complete or not there at all
        manifest.json                           what it is, and a SHA-256 of every file and of itself
        shard-00001-model-00001-of-00001.safetensors …

Written by torch.distributed.checkpoint in its safetensors storage, beside (`.partial-…`) and renamed. Row shards load
at any world size. Ranks on several hosts need a shared file system.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import Tensor
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.tensor import DTensor, Shard, init_device_mesh

from embershard.config import layout_difference
from embershard.errors import FingerprintMismatch, SnapshotError

if TYPE_CHECKING:
    from embershard.config import Config
    from embershard.engine.base import Engine

MANIFEST = "manifest.json"
FORMAT = 1
_PARTIAL = ".partial-"


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A complete snapshot on disk, its manifest read and found whole."""

    path: Path
    """Its folder."""
    manifest: dict[str, Any]
    """See `save`."""

    @property
    def version(self) -> int:
        """The version whose rows it holds."""
        return int(self.manifest["version"])

    @property
    def bytes(self) -> int:
        """Size of its files, manifest aside."""
        return sum(int(file["bytes"]) for file in self.manifest["files"].values())

    def verify(self, names: list[str] | None = None) -> None:
        """Compares files (all, or these) with the manifest.

        Raises:
            SnapshotError: a file is missing, cut, changed, or not of this snapshot.
        """
        files = self.manifest["files"]
        present = {path.name for path in self.path.iterdir()} - {MANIFEST}
        if strangers := present - files.keys():
            raise SnapshotError(f"{self.path}: {sorted(strangers)[0]} is not of this snapshot; move it away")
        for name in files if names is None else names:
            if name not in present:
                raise SnapshotError(f"{self.path}: {name} is missing; {_RESTORE}")
            size = (self.path / name).stat().st_size
            if size != files[name]["bytes"]:
                raise SnapshotError(
                    f"{self.path}: {name} has {size:,} bytes, not {files[name]['bytes']:,}: it is truncated or "
                    f"changed; {_RESTORE}"
                )
            if _sha256(self.path / name) != files[name]["sha256"]:
                raise SnapshotError(f"{self.path}: the checksum of {name} is wrong: it is damaged; {_RESTORE}")


_RESTORE = "restore it from a copy, or move the folder away to start from the snapshot before it"


def list_snapshots(folder: Path) -> list[Path]:
    """Folders of complete snapshots, oldest first."""
    return sorted(path for path in folder.glob("[0-9]*") if path.is_dir()) if folder.is_dir() else []


def open_snapshot(path: Path) -> Snapshot:
    """Reads a snapshot's manifest.

    Raises:
        SnapshotError: it is missing, damaged, or of a format that this release doesn't know.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        checksum, known = manifest.pop("checksum"), manifest["format"]
    except OSError as error:
        raise SnapshotError(f"{path}: can't read {MANIFEST}: {error.strerror}; {_RESTORE}") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise SnapshotError(f"{path}: {MANIFEST} is damaged ({error}); {_RESTORE}") from error
    if known != FORMAT:
        raise SnapshotError(f"{path}: has format {known}; this release reads {FORMAT}")
    if checksum != _checksum(manifest):
        raise SnapshotError(f"{path}: the checksum of {MANIFEST} is wrong: it is damaged; {_RESTORE}")
    return Snapshot(path=path, manifest=manifest)


def save(engine: Engine, version: int, folder: Path, *, kept: int) -> Snapshot:
    """Joint: writes a snapshot of the engine's rows, and deletes all but the newest `kept`.

    Raises:
        SnapshotError: on every rank, if any can't write; nothing is left behind.
    """
    final = folder / f"{version:012d}"
    partial = folder / f"{_PARTIAL}{version:012d}"
    world = engine.world
    if final.is_dir():  # the rows of a version never change
        return open_snapshot(final)
    try:
        with _everywhere(engine, "can't be written"):
            if world.rank == 0:
                shutil.rmtree(partial, ignore_errors=True)
                partial.mkdir(parents=True)
        with _everywhere(engine, "can't be written"), _quiet():
            writer = HuggingFaceStorageWriter(path=str(partial), save_distributed=True)
            dcp.save(_checkpoint(engine), storage_writer=writer, no_dist=not dist.is_initialized())
        with _everywhere(engine, "can't be written"):
            mine = sorted(partial.iterdir())[world.rank :: world.size]
            described = {path.name: {"bytes": path.stat().st_size, "sha256": _sha256(path, sync=True)} for path in mine}
        files = {name: entry for part in world.gather(described) for name, entry in part.items()}
        with _everywhere(engine, "can't be written"):
            if world.rank == 0:
                _complete(partial, final, _manifest(engine.config, version, world.size, files))
                _delete_old(folder, kept)
    except SnapshotError:
        if world.rank == 0:
            shutil.rmtree(partial, ignore_errors=True)
        raise
    return open_snapshot(final)


def load(engine: Engine, snapshot: Snapshot) -> int:
    """Joint: fills the engine with a snapshot's rows and optimizer state, bit by bit; returns its version.

    Raises:
        FingerprintMismatch: it belongs to another collection.
        SnapshotError: it is damaged, or has the state of other optimizers.
    """
    _check_belongs(engine.config, snapshot)
    with _everywhere(engine, "can't be read"):
        snapshot.verify(sorted(snapshot.manifest["files"])[engine.world.rank :: engine.world.size])
    state = _checkpoint(engine)
    with _everywhere(engine, "can't be read"), _quiet():
        reader = HuggingFaceStorageReader(path=str(snapshot.path))
        dcp.load(state, storage_reader=reader, no_dist=not dist.is_initialized())
    for name, live in engine.tensors().items():
        loaded = state[name]
        local = loaded.to_local() if isinstance(loaded, DTensor) else loaded
        if local.data_ptr() != live.data_ptr():
            live.copy_(local)
    return snapshot.version


def _checkpoint(engine: Engine) -> dict[str, Tensor]:
    """What a snapshot holds, as torch.distributed.checkpoint wants it; views of live rows where they are contiguous."""
    tensors = {name: view.contiguous() for name, view in engine.tensors().items()}
    if not dist.is_initialized():
        return tensors
    mesh = init_device_mesh(engine.world.device.type, (engine.world.size,))
    rows = {table.name: table.rows for table in engine.config.tables}
    return {name: _row_shard(tensor, rows[name.rpartition(".")[0]], mesh) for name, tensor in tensors.items()}


def _row_shard(local: Tensor, rows: int, mesh: Any) -> Tensor:
    shape = torch.Size((rows, *local.shape[1:]))
    return DTensor.from_local(local, mesh, [Shard(0)], run_check=False, shape=shape, stride=local.stride())


def _check_belongs(config: Config, snapshot: Snapshot) -> None:
    manifest = snapshot.manifest
    if manifest["fingerprint"] != config.fingerprint():
        differences = "; ".join(layout_difference(config.layout(), manifest["layout"]))
        raise FingerprintMismatch(
            f"{snapshot.path}: is of another collection ({manifest['collection']!r}): {differences}; "
            "serve it with its own configuration, or use another data directory"
        )
    for table in config.tables:
        ours, theirs = config.optimizer_of(table).kind, manifest["optimizers"][table.name]
        if ours != theirs:
            raise SnapshotError(
                f"{snapshot.path}: table {table.name!r} has the optimizer state of {theirs}, and the configuration "
                f"says {ours}; set optimizer.kind = {theirs!r}"
            )


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


def _complete(partial: Path, final: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest and makes the snapshot appear, at once and durably."""
    with (partial / MANIFEST).open("w") as file:
        json.dump({**manifest, "checksum": _checksum(manifest)}, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(partial)
    partial.rename(final)
    _sync_folder(final.parent)


def _delete_old(folder: Path, kept: int) -> None:
    for path in list_snapshots(folder)[:-kept]:
        shutil.rmtree(path)


def _sync_folder(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path, *, sync: bool = False) -> str:
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def _everywhere(engine: Engine, what: str) -> Iterator[None]:
    """Joint: if the body fails on any rank, raises SnapshotError on every rank, so that none goes on alone."""
    failure: Exception | None = None
    try:
        yield
    except (OSError, SnapshotError, RuntimeError, ValueError, KeyError) as error:
        failure = error
    reports = [report for report in engine.world.gather(None if failure is None else str(failure)) if report]
    if reports:
        prefix = "" if isinstance(failure, SnapshotError) else f"a snapshot {what}: "
        raise SnapshotError(f"{prefix}{reports[0]}") from failure


@contextmanager
def _quiet() -> Iterator[None]:
    """Without a process group a checkpoint is of one process: that is meant, and needs no warning."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="torch.distributed is disabled, unavailable or uninitialized")
        yield
