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
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from embershard.errors import InvalidInput, SnapshotError
from embershard.store.files import sync_folder

MANIFEST = "manifest.json"
FORMAT = 4

RESTORE = "restore it from a copy, or move the folder away to start from the snapshot before it"
"""What to do about a damaged snapshot."""

_TABLE = {"rows": int, "dim": int, "features": [str], "ids": {"kind": str}, "pooling": str, "dtype": str}
_LAYOUT = {"seed": int, "tables": {...: _TABLE}}
_SHAPE = {
    "collection": str,
    "fingerprint": str,
    "layout": _LAYOUT,
    "optimizers": {...: str},
    "version": int,
    "world_size": int,
    "activations": [{"version": int, "activated": int, "before": int}],
    "publications": [{"version": int, "publisher": str, "number": int, "files": [str]}],
    "published": {"publisher": str, "number": int, "digest": str, "version": int},
    "torch": str,
    "tensors": {...: {"dtype": str, "shape": [int], "checksum": str}},
    "files": {...: {"bytes": int, "sha256": str}},
}
"""What a manifest has at least; `...` stands for any key."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Snapshot:
    """A complete snapshot on disk, its manifest read and found whole."""

    path: Path
    """Its folder."""
    manifest: dict[str, Any]
    """As `_SHAPE` says: layout and optimizers are the configuration's, `tensors` tells of each what its rows add up to
    (see `checksum`), whatever ranks wrote them."""
    alone: bool = True
    """Whether nothing else may be in its folder."""

    @property
    def version(self) -> int:
        """The version whose rows it holds."""
        return int(self.manifest["version"])

    @property
    def identity(self) -> dict[str, Any]:
        """Which it is: its path, collection, version and fingerprint."""
        told = {name: self.manifest[name] for name in ("collection", "version", "fingerprint")}
        return {"path": str(self.path), **told}

    @property
    def bytes(self) -> int:
        """Size of its files, manifest aside."""
        return sum(int(file["bytes"]) for file in self.manifest["files"].values())

    @property
    def world_size(self) -> int:
        """Ranks that wrote it."""
        return int(self.manifest["world_size"])

    @property
    def tensors(self) -> dict[str, dict[str, Any]]:
        """{tensor: its dtype, shape and checksum}."""
        tensors: dict[str, dict[str, Any]] = self.manifest["tensors"]
        return tensors

    @property
    def rows(self) -> dict[str, int]:
        """{table: its rows}, which a table that has grown has more of than its configuration said."""
        return {name: int(table["rows"]) for name, table in self.manifest["layout"]["tables"].items()}

    def check_files(self) -> None:
        """Compares the folder with the manifest, as far as it can be done without reading files.

        Raises:
            SnapshotError: a file is missing, cut, or not of this snapshot.
        """
        files = self.manifest["files"]
        present = {path.name for path in self.path.iterdir()} - {MANIFEST}
        if (strangers := present - files.keys()) and self.alone:
            raise SnapshotError(f"{self.path}: {sorted(strangers)[0]} is not of this snapshot; move it away")
        for name, told in files.items():
            if name not in present:
                raise SnapshotError(f"{self.path}: {name} is missing; {RESTORE}")
            size = (self.path / name).stat().st_size
            if size != told["bytes"]:
                raise SnapshotError(
                    f"{self.path}: {name} has {size:,} bytes, not {told['bytes']:,}: it is truncated or changed; "
                    f"{RESTORE}"
                )

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Compares files (all, or these) with their checksums, too.

        Raises:
            SnapshotError: as `check_files`, or a file is damaged.
        """
        self.check_files()
        files = self.manifest["files"]
        for name in files if names is None else names:
            if _sha256(self.path / name) != files[name]["sha256"]:
                raise SnapshotError(f"{self.path}: the checksum of {name} is wrong: it is damaged; {RESTORE}")


def list_snapshots(folder: Path) -> list[Path]:
    """Folders of complete snapshots, oldest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if re.fullmatch(r"\d{12,}", path.name) and path.is_dir()]
    return sorted(found, key=lambda path: int(path.name))


def open_snapshot(path: Path) -> Snapshot:
    """Reads the manifest of a snapshot whose folder is named by its version.

    Raises:
        SnapshotError: it is missing, damaged, or of a format that this release doesn't know.
    """
    found = read_manifest(path)
    if path.name != f"{found.version:012d}":
        raise SnapshotError(f"{path}: holds version {found.version}; rename the folder back to that number")
    return found


def read_manifest(path: Path, *, alone: bool = True) -> Snapshot:
    """Reads the manifest in any folder; unless the snapshot is `alone` in it, other files may be there, too.

    Raises:
        SnapshotError: as `open_snapshot`.
    """
    try:
        manifest = json.loads((path / MANIFEST).read_bytes())
        checksum, known = manifest.pop("checksum"), manifest["format"]
    except OSError as error:
        raise SnapshotError(f"{path}: can't read {MANIFEST}: {error.strerror}; {RESTORE}") from error
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise SnapshotError(f"{path}: {MANIFEST} is damaged ({error}); {RESTORE}") from error
    if known != FORMAT:
        raise SnapshotError(
            f"{path}: has format {known}, and this release reads {FORMAT}; serve it with the release that wrote it, or "
            "move the folder away to start anew"
        )
    if checksum != _checksum(manifest):
        raise SnapshotError(f"{path}: the checksum of {MANIFEST} is wrong: it is damaged; {RESTORE}")
    wrong = _misfit(manifest, _SHAPE, "")
    if not wrong and manifest["optimizers"].keys() != manifest["layout"]["tables"].keys():
        wrong = "optimizers are of other tables than layout.tables"
    if not wrong and not all(told["shape"] for told in manifest["tensors"].values()):
        wrong = "a tensor has no rows"
    if wrong:
        raise SnapshotError(f"{path}: {MANIFEST} is no manifest, as {wrong}; {RESTORE}")
    return Snapshot(path=path, manifest=manifest, alone=alone)


def layout_of(text: str) -> dict[str, Any]:
    """A layout as JSON has it.

    Raises:
        InvalidInput: it is none.
    """
    try:
        layout: dict[str, Any] = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"the layout is no JSON: {error}") from error
    if wrong := _misfit(layout, _LAYOUT, "layout"):
        raise InvalidInput(f"the layout is none of a collection, as {wrong[:200]}")
    return layout


def _misfit(found: Any, wanted: Any, where: str) -> str | None:
    """Where something that was read isn't as it should be."""
    if isinstance(wanted, type):
        return None if isinstance(found, wanted) else f"{where} is {found!r}"
    if not isinstance(found, type(wanted)):
        return f"{where} is {found!r}"
    if isinstance(wanted, list):
        return next((told for item in found if (told := _misfit(item, wanted[0], where))), None)
    for key, inner in wanted.items():
        if key is not ... and key not in found:
            return f"{where}.{key} is missing".lstrip(".")
        for name in found if key is ... else [key]:
            if told := _misfit(found[name], inner, f"{where}.{name}".lstrip(".")):
                return told
    return None


def find_snapshot(path: Path) -> Snapshot:
    """The snapshot whose folder this is, or the newest of a data directory or of its folder `snapshots`.

    Raises:
        SnapshotError: there is none, or its manifest is damaged.
    """
    here = path.resolve()
    if (here / MANIFEST).exists():
        return open_snapshot(here)
    return open_snapshot(snapshots_in(path)[-1])


def snapshots_in(path: Path) -> list[Path]:
    """Folders of the snapshots of a data directory, or of its folder `snapshots`, oldest first.

    Raises:
        SnapshotError: there is none.
    """
    here = path.resolve()
    found = list_snapshots(here) or list_snapshots(here / "snapshots")
    if not found:
        raise SnapshotError(f"{path}: there is no snapshot; give the folder of one, or the --data-dir of a server")
    return found


def complete(partial: Path, final: Path, manifest: dict[str, Any]) -> None:
    """Writes the manifest and makes the snapshot appear, at once and durably."""
    with (partial / MANIFEST).open("w") as file:
        json.dump({**manifest, "checksum": _checksum(manifest)}, file, indent=2)
        file.flush()
        os.fsync(file.fileno())
    sync_folder(partial)
    partial.rename(final)
    sync_folder(final.parent)


def describe_file(path: Path) -> dict[str, Any]:
    """What a manifest says of a file that was just written, once the disk has it."""
    return {"bytes": path.stat().st_size, "sha256": _sha256(path, sync=True)}


def _checksum(manifest: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _sha256(path: Path, *, sync: bool = False) -> str:
    with path.open("rb") as file:
        if sync:
            os.fsync(file.fileno())
        return hashlib.file_digest(file, "sha256").hexdigest()
