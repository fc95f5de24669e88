"""Fills an engine with what a snapshot holds, a chunk at a time, whatever ranks wrote it.

Each rank reads the rows that are its own. Each file is read whole by one rank, which is the one that wrote it if there
are as many ranks as then: it finds the file's checksum right or wrong while it takes its rows out of it. What has
arrived in memory is compared with the checksums of rows, last of all, so that nothing wrong is ever served.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from embershard.engine.beside import Rest
from embershard.engine.books import updates_as
from embershard.engine.publication import Published
from embershard.errors import SnapshotError
from embershard.rowwise import WIDER, stored_as
from embershard.store.agreement import alone, everywhere, meeting
from embershard.store.belonging import check_belongs
from embershard.store.checksum import checksum_of, total
from embershard.store.id_files import read_clients, read_id_file
from embershard.store.manifest import RESTORE
from embershard.store.row_files import CHUNK_BYTES, Piece, is_row_file, pieces_of, read

if TYPE_CHECKING:
    from pathlib import Path

    from embershard.engine.base import Engine
    from embershard.engine.clients import Clients
    from embershard.engine.world import World
    from embershard.store.manifest import Snapshot

_OPTIONAL = ("sightings", "frozen")
"""What a snapshot has only where it is counted, and where a row was frozen."""

Paced = Callable[[Iterable[Any]], Iterator[Any]]
"""How one goes through much: at once (`iter`), or with rests between."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Target:
    """Rows of one tensor that are to be filled."""

    first: int
    """The number of the first."""
    rows: Tensor
    """[n] or [n, D], on any device."""

    @property
    def numbers(self) -> range:
        """Of all of them."""
        return range(self.first, self.first + len(self.rows))


def load(
    engine: Engine,
    snapshot: Snapshot,
    clients: Clients | None = None,
    *,
    beside: str | None = None,
    narrower: bool = False,
) -> int:
    """Joint: fills the engine with all that a snapshot holds, bit by bit; returns its version.

    The engine's tables must have as many rows as those of the snapshot, its vocabularies be empty. What it is filled
    with is of no use until this has returned. With `beside`, a key that all ranks give, it is for a thread beside the
    one that ticks, and leaves the collectives to that. `narrower` is as `check_belongs` has it.

    Raises:
        FingerprintMismatch: it belongs to another collection.
        SnapshotError: it is damaged, or has the state of other optimizers.
    """
    check_belongs(engine.config, snapshot, narrower=narrower)
    fill(engine, snapshot, clients, beside=beside)
    return snapshot.version


def fill(engine: Engine, snapshot: Snapshot, clients: Clients | None = None, *, beside: str | None = None) -> None:
    """Joint: as `load`, of a snapshot that is known to fit the engine's tables.

    Rows that are stored in fewer bits here than there are rounded as they come. What they become has no checksum, so
    that those of files must do. Counts that one side doesn't keep are left out, or begin with what is known.
    """
    world = engine.world
    agree = world.gather if beside is None else meeting(world, beside)
    paced: Paced = iter if beside is None else Rest().between
    with everywhere(agree, "a snapshot can't be read"):
        targets = _targets(engine, snapshot)
        _check_shapes(engine, snapshot, targets)
        _read_rows(snapshot, targets, world, paced)
        for name, vocabulary in engine.vocabularies.items():
            vocabulary.restore(read_id_file(snapshot.path, name))
        if clients is not None:
            clients.restore(read_clients(snapshot.path))
        shared = {matrix.table.name: f"{name}.weight" for name, matrix in engine.matrices.items() if matrix.shared}
        copies = read_tensors(snapshot, shared.values())
        engine.projections |= {table: copies[name].float().to(world.device) for table, name in shared.items()}
        told = snapshot.tensors
        exact = {
            name: target
            for name, target in targets.items()
            if not _rounds(target, told[name]) and not _recounts(name, target, told[name])
        }
        mine = {name: _checksum(target, paced) for name, target in exact.items()}
    engine.published = Published(**snapshot.manifest["published"])
    parts = agree((mine, [name for name, shard in engine.shards.items() if shard.books.any_frozen]))
    for name, shard in engine.shards.items():
        if not any(name in frozen for _, frozen in parts):
            shard.books.frozen = None  # a byte a row that tells nothing
    for name in exact:
        if total(checksums[name] for checksums, _ in parts) != snapshot.tensors[name]["checksum"]:
            raise SnapshotError(
                f"{snapshot.path}: the rows of {name} that were read add up to another checksum than those that were "
                f"written: they are damaged, or this machine's memory is; {RESTORE}"
            )


def read_tensors(snapshot: Snapshot, names: Iterable[str]) -> dict[str, Tensor]:
    """Whole tensors, whatever ranks wrote them; the caller verifies the snapshot.

    Raises:
        SnapshotError: they can't be read.
    """
    with everywhere(alone, "a snapshot can't be read"):
        dtypes = {name: getattr(torch, snapshot.tensors[name]["dtype"]) for name in names}
        tensors = {name: torch.empty(snapshot.tensors[name]["shape"], dtype=dtype) for name, dtype in dtypes.items()}
        targets = {name: Target(first=0, rows=tensor) for name, tensor in tensors.items()}
        for path, pieces in pieces_by_file(snapshot).items():
            _fill(path, pieces, targets)
    return tensors


def check_rows(snapshot: Snapshot) -> None:
    """Reads all files once, and compares them and their rows with their checksums, without memory for whole tensors.

    Raises:
        SnapshotError: something is damaged.
    """
    sums = dict.fromkeys(snapshot.tensors, 0)
    wanted = {name: range(told["shape"][0]) for name, told in snapshot.tensors.items()}
    with everywhere(alone, "a snapshot can't be read"):
        snapshot.verify(name for name in snapshot.manifest["files"] if not is_row_file(name))
        for path, pieces in pieces_by_file(snapshot).items():
            for name, first, rows in read(path, pieces, wanted, snapshot.manifest["files"][path.name]["sha256"]):
                sums[name] += checksum_of(rows, first)
    for name, told in snapshot.tensors.items():
        if total([sums[name]]) != told["checksum"]:
            raise SnapshotError(
                f"{snapshot.path}: the checksum of the rows of {name} is wrong: they are damaged; {RESTORE}"
            )


def pieces_by_file(snapshot: Snapshot) -> dict[Path, list[Piece]]:
    """What each file of rows holds; together, every row of every tensor once.

    Raises:
        SnapshotError: they don't, or can't be read.
    """
    found = {}
    for name in filter(is_row_file, sorted(snapshot.manifest["files"])):
        try:
            found[snapshot.path / name] = pieces_of(snapshot.path / name)
        except SnapshotError:
            snapshot.verify([name])  # which tells better what has happened to it
            raise
    for name, told in snapshot.tensors.items():
        mine = sorted((piece for pieces in found.values() for piece in pieces if piece.name == name), key=_order)
        borders = [0, *(piece.first + piece.rows for piece in mine)]
        fits = all(str(piece.dtype) == told["dtype"] and [*piece.shape] == told["shape"][1:] for piece in mine)
        if not fits or [piece.first for piece in mine] != borders[:-1] or borders[-1] != told["shape"][0]:
            snapshot.verify(path.name for path in found)
            raise SnapshotError(f"{snapshot.path}: its files don't hold {name} as its manifest says; {RESTORE}")
    return found


def _order(piece: Piece) -> tuple[int, int]:
    return piece.first, piece.rows


def _targets(engine: Engine, snapshot: Snapshot) -> dict[str, Target]:
    """This rank's rows."""
    targets = {}
    for group in engine.groups:
        shard = engine.shards[group.name]
        if any(f"{matrix}.frozen" in snapshot.tensors for matrix in group.slots):
            shard.books.expect_frozen()
        for matrix, slot in group.slots.items():
            for kind, view in shard.tensors(matrix).items():
                if kind in _OPTIONAL and f"{matrix}.{kind}" not in snapshot.tensors:
                    view.zero_()
                else:
                    targets[f"{matrix}.{kind}"] = Target(first=slot.held(engine.world.rank)[0], rows=view)
    return targets


def _check_shapes(engine: Engine, snapshot: Snapshot, targets: Mapping[str, Target]) -> None:
    """Says so if there is anything else in a snapshot than the engine has room for."""
    matrices, shapes = engine.matrices, {}
    for name, target in targets.items():
        matrix, told = matrices[name.rpartition(".")[0]], snapshot.tensors.get(name)
        rounds = told is not None and _rounds(target, told)
        shapes[name] = [matrix.rows, *([matrix.dim] if rounds else target.rows.shape[1:])]
    lost = {f"{name}.sum" for name, matrix in matrices.items() if matrix.dtype == "int8"}
    lost |= {f"{name}.sightings" for name, matrix in matrices.items() if not matrix.table.counts}
    for name in sorted(shapes.keys() | (snapshot.tensors.keys() - lost)):
        there = snapshot.tensors.get(name, {}).get("shape")
        if there != shapes.get(name):
            raise SnapshotError(
                f"{snapshot.path}: {name} is {there or 'not there'}, and the configuration wants "
                f"{shapes.get(name) or 'none'}; serve it with its own configuration"
            )


def _read_rows(snapshot: Snapshot, targets: Mapping[str, Target], world: World, paced: Paced) -> None:
    """Fills this rank's rows, and finds out whether this rank's share of the files is whole."""
    snapshot.check_files()
    files = snapshot.manifest["files"]
    found = pieces_by_file(snapshot)
    for number, (path, pieces) in enumerate(found.items()):
        mine = number * world.size // len(found) == world.rank
        _fill(path, pieces, targets, files[path.name]["sha256"] if mine else None, paced)
    snapshot.verify(sorted(name for name in files if not is_row_file(name))[world.rank :: world.size])


def _fill(
    path: Path,
    pieces: list[Piece],
    targets: Mapping[str, Target],
    sha256: str | None = None,
    paced: Paced = iter,
) -> None:
    wanted = {name: target.numbers for name, target in targets.items()}
    for name, first, rows in paced(read(path, pieces, wanted, sha256)):
        start = first - targets[name].first
        into, arrived = targets[name].rows[start : start + len(rows)], torch.from_numpy(rows)
        if arrived.dtype != into.dtype:
            arrived = (stored_as if into.ndim > 1 else updates_as)(into.dtype, arrived)
        into.copy_(arrived)


def _rounds(target: Target, told: Mapping[str, Any]) -> bool:
    """Whether rows of a tensor, as a manifest tells of it, are rounded to what they are to fill."""
    return getattr(torch, told["dtype"], None) in WIDER.get(target.rows.dtype, ())


def _recounts(name: str, target: Target, told: Mapping[str, Any]) -> bool:
    """Whether updates are counted on one side only."""
    return name.endswith(".updates") and getattr(torch, told["dtype"], None) != target.rows.dtype


def _checksum(target: Target, paced: Paced) -> int:
    """Of what is in memory."""
    row_bytes = max(1, target.rows[:1].numel() * target.rows.itemsize)
    step = max(1, CHUNK_BYTES // row_bytes)
    borders = [*range(0, len(target.rows), step), len(target.rows)]
    return sum(
        checksum_of(target.rows[start:stop].cpu().contiguous().numpy(), target.first + start)
        for start, stop in paced(pairwise(borders))
    )
