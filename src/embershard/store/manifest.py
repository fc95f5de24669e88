"""A snapshot's folder and its manifest: what it is, whether it is whole, and how it comes to be. No torch.

snapshots/000000000042/                     one folder a version, complete or not there at all
    manifest.json                           what it is, and a SHA-256 of every file and of itself
    shard-00001-model-00001-of-00001.safetensors …
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embershard.errors import SnapshotError

MANIFEST = "manifest.json"
FORMAT = 2

_RESTORE = "restore it from a copy, or move the folder away to start from the snapshot before it"


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

    @property
    def rows(self) -> dict[str, int]:
        """{table: its rows}, which a table that has grown has more of than its configuration said."""
        return {name: int(table["rows"]) for name, table in self.manifest["layout"]["tables"].items()}

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


def list_snapshots(folder: Path) -> list[Path]:
    """Folders of complete snapshots, oldest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if re.fullmatch(r"\d{12,}", path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))


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
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotError(f"{path}: {MANIFEST} is damaged ({error}); {_RESTORE}") from error
    if known != FORMAT:
        raise SnapshotError(
            f"{path}: has format {known}, and this release reads {FORMAT}; serve it with the release that wrote it, or "
            "move the folder away to start anew"
        )
    if checksum != _checksum(manifest):
        raise SnapshotError(f"{path}: the checksum of {MANIFEST} is wrong: it is damaged; {_RESTORE}")
    if path.name != f"{manifest.get('version'):012d}":
        raise SnapshotError(f"{path}: holds version {manifest.get('version')}; rename the folder back to that number")
    return Snapshot(path=path, manifest=manifest)


def complete(partial: Path, final: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest and makes the snapshot appear, at once and durably."""
    with (partial / MANIFEST).open("w") as file:
        json.dump({**manifest, "checksum": _checksum(manifest)}, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(partial)
    partial.rename(final)
    _sync_folder(final.parent)


def describe_file(path: Path) -> dict[str, Any]:
    """What a manifest says of a file that was just written, once the disk has it."""
    return {"bytes": path.stat().st_size, "sha256": _sha256(path, sync=True)}


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
