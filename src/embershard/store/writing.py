"""What the writing thread of each rank does with the slices that the engine's thread copies."""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable, Collection, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from embershard.errors import SnapshotError
from embershard.store.agreement import Agree, everywhere
from embershard.store.checksum import total
from embershard.store.id_files import write_id_files
from embershard.store.manifest import FORMAT, Snapshot, complete, describe_file, list_snapshots, open_snapshot
from embershard.store.row_files import RowFile, file_of_rank

if TYPE_CHECKING:
    from embershard.config import Config, Matrix
    from embershard.engine.capture import Part, Slice
    from embershard.engine.publication import Logged, Published
    from embershard.engine.replica import Activation
    from embershard.store.id_files import State

logger = logging.getLogger(__name__)

_PARTIAL = ".partial-"
_FAILS = "a snapshot can't be written"
_Written = tuple[dict[str, Any], dict[str, int]]
"""What a manifest says of files, and the checksums of the rows in them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Keeping:
    """What stays of older snapshots once one is complete, and why."""

    kept: int
    """The newest, so many."""
    activations: Sequence[Activation] = ()
    """When other tables were served; also after the version that is written."""
    publications: Sequence[Logged] = ()
    """Those that the log may still have; likewise."""
    needed: Callable[[int], Collection[int]] = lambda _: ()
    """Given the version of the oldest of those, versions of older ones that must stay as well: as it is when asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """All that there is to know of a snapshot before its rows come."""

    rank: int
    """This rank."""
    world_size: int
    """Ranks."""
    version: int
    """The version whose rows they are."""
    folder: Path
    """Where snapshots are."""
    keeping: Keeping
    """Which snapshots stay."""
    config: Config
    """Of the tables."""
    published: Published
    """The last publication that the tables have."""
    matrices: Mapping[str, Matrix]
    """{name: matrix}."""
    parts: Sequence[Part]
    """This rank's shares of all tensors, in the order in which slices come."""
    vocabularies: Mapping[str, State]
    """{table: what its vocabulary knew}."""
    clients: State | None
    """What clients had sent."""

    @property
    def final(self) -> Path:
        """The folder of the snapshot."""
        return self.folder / f"{self.version:012d}"

    def write(self, slices: Generator[Slice], agree: Agree) -> Snapshot:
        """Joint: writes it all, and makes the snapshot appear; closes the slices as soon as they aren't needed.

        Raises:
            SnapshotError: on every rank, if any can't write; nothing is left behind unless the snapshot is complete.
        """
        first, partial = self.rank == 0, self.folder / f"{_PARTIAL}{self.version:012d}"
        try:
            with everywhere(agree, _FAILS):
                if first:
                    for left_behind in self.folder.glob(f"{_PARTIAL}*"):
                        shutil.rmtree(left_behind)
                    partial.mkdir(parents=True)
            with everywhere(agree, _FAILS), closing(slices):
                written = self._write_files(partial, slices)
            parts = agree(written)
            with everywhere(agree, _FAILS):
                if first:
                    complete(partial, self.final, self._manifest(parts))
        except SnapshotError:
            if first:
                shutil.rmtree(partial, ignore_errors=True)
            agree(None)  # so that nobody tells before nothing is left
            raise
        with everywhere(agree, "a snapshot was written, and can't be read or take the place of older ones"):
            if first:
                _delete_old(self.folder, self.keeping)
            return open_snapshot(self.final)

    def _write_files(self, partial: Path, slices: Generator[Slice]) -> _Written:
        name = file_of_rank(self.rank)
        with closing(RowFile(partial / name, self.parts)) as file:
            for rows in slices:
                file.add(rows)
            files = {name: file.finish()}
        if self.rank == 0:
            for path in write_id_files(partial, self.config, self.vocabularies, self.clients):
                files[path.name] = describe_file(path)
        return files, file.checksums

    def _manifest(self, parts: Sequence[_Written]) -> dict[str, Any]:
        """See `manifest`."""
        config = self.config
        return {
            "format": FORMAT,
            "collection": config.collection.name,
            "fingerprint": config.fingerprint(),
            "layout": config.layout(),
            "optimizers": {table.name: config.optimizer_of(table).kind for table in config.tables},
            "version": self.version,
            "world_size": self.world_size,
            "activations": [asdict(told) for told in self.keeping.activations if told.version <= self.version],
            "publications": [asdict(told) for told in self.keeping.publications if told.version <= self.version],
            "published": asdict(self.published),
            "torch": torch.__version__,
            "tensors": {
                part.name: {
                    "dtype": str(part.dtype).removeprefix("torch."),
                    "shape": [self.matrices[part.name.rpartition(".")[0]].rows, *part.shape],
                    "checksum": total(checksums[part.name] for _, checksums in parts),
                }
                for part in sorted(self.parts, key=lambda part: part.name)
            },
            "files": {name: told for files, _ in parts for name, told in sorted(files.items())},
        }


def _delete_old(folder: Path, keeping: Keeping) -> None:
    """All but the newest, and those that are needed."""
    found = list_snapshots(folder)
    oldest = int(found[-keeping.kept :][0].name)
    for path in found[: -keeping.kept]:
        if int(path.name) in keeping.needed(oldest):  # asked for each, as deleting takes long, and one may be loaded
            continue
        try:  # first its name, so that no part of it is ever taken for a snapshot
            shutil.rmtree(path.rename(path.with_name(f"{_PARTIAL}{path.name}")))
        except OSError as error:  # the new snapshot is complete all the same
            logger.warning("the old snapshot %s can't be deleted: %s", path, error)
