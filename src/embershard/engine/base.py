"""The narrow interface that both engines answer, and what they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch
from torch import Tensor
from torch.nn.functional import pad
from tqdm import tqdm

from embershard.engine.placement import Group, groups_of
from embershard.engine.shard import Shard
from embershard.errors import ConfigError

if TYPE_CHECKING:
    from embershard.config import Config
    from embershard.engine.world import World


class Engine(ABC):
    """Holds the rows of a collection, cut row-wise over the ranks of a world.

    Every method is *joint*: all ranks call it together, each with the rows that it has a use for, none if it has
    none. `active` names the tables that any rank has rows of, and is the same on every rank. Row numbers are checked
    by the caller (`collection`): an engine trusts them.
    """

    name: str
    """local or torchrec."""

    def __init__(self, config: Config, world: World) -> None:
        self.config = config
        self.world = world
        self.groups: list[Group] = groups_of(config, world.size)
        _check_memory(self.groups, world)
        self.shards: dict[str, Shard] = {group.name: self._make_shard(group) for group in self.groups}
        self.initialise()

    def initialise(self) -> None:
        """Every row as it is before any update."""
        rows = sum(group.block_rows for group in self.groups)
        # Only rank 0 shows its progress, and only where it takes over two seconds.
        with tqdm(total=rows, unit="rows", unit_scale=True, delay=2, disable=self.world.rank != 0 or None) as progress:
            for shard in self.shards.values():
                shard.initialise(self.config.collection.seed, progress.update)

    @abstractmethod
    def _make_shard(self, group: Group) -> Shard:
        """Makes this rank's share of a group, its contents not yet defined."""

    @abstractmethod
    def _gather(self, group: Group, physical_M: Tensor) -> Tensor:
        """float32 [M, kernel_dim]."""

    @abstractmethod
    def _apply(self, group: Group, physical_M: Tensor, gradients_MD: Tensor) -> None:
        """One optimizer step for all ranks' gradients [M, kernel_dim] together."""

    @abstractmethod
    def _write(self, group: Group, physical_M: Tensor, values_MD: Tensor) -> None:
        """Overwrites rows; where ranks disagree, the highest rank's values stay."""

    @abstractmethod
    def _trained(self, group: Group, physical_M: Tensor) -> Tensor:
        """bool [M]."""

    def gather(self, rows: Mapping[str, Tensor], active: Collection[str]) -> dict[str, Tensor]:
        """The rows of each table, {table: float32 [M, D]}."""
        gathered: dict[str, Tensor] = {}
        for group in self._active(active):
            physical_M, names, counts = group.physical(rows)
            pieces = self._gather(group, physical_M.to(self.world.device))[:, : group.dim].split(counts)
            gathered.update(zip(names, pieces, strict=True))
        return gathered

    def apply(self, rows: Mapping[str, Tensor], gradients: Mapping[str, Tensor], active: Collection[str]) -> None:
        """One step of each table's optimizer; the gradients [M, D] of one row are summed first, over all ranks."""
        for group in self._active(active):
            physical_M, names, _ = group.physical(rows)
            gradients_MD = _stacked(gradients, names, group.kernel_dim)
            self._apply(group, physical_M.to(self.world.device), gradients_MD.to(self.world.device))

    def write(self, rows: Mapping[str, Tensor], values: Mapping[str, Tensor], active: Collection[str]) -> None:
        """Overwrites rows with values [M, D]; a row is named once a rank, and the highest rank that names it wins."""
        for group in self._active(active):
            physical_M, names, _ = group.physical(rows)
            values_MD = _stacked(values, names, group.kernel_dim)
            self._write(group, physical_M.to(self.world.device), values_MD.to(self.world.device))

    def trained(self, rows: Mapping[str, Tensor], active: Collection[str]) -> dict[str, Tensor]:
        """Whether an update has reached each row, {table: bool [M]}."""
        flags: dict[str, Tensor] = {}
        for group in self._active(active):
            physical_M, names, counts = group.physical(rows)
            pieces = self._trained(group, physical_M.to(self.world.device)).split(counts)
            flags.update(zip(names, pieces, strict=True))
        return flags

    def tensors(self) -> dict[str, Tensor]:
        """Live views of this rank's rows: {"user.weight": [n, D], "user.sum": …, "user.trained": [n]}."""
        return {
            f"{table}.{name}": view
            for group in self.groups
            for table in group.slots
            for name, view in self.shards[group.name].tensors(table).items()
        }

    def table_bytes(self) -> dict[str, int]:
        """{table: bytes of rows and optimizer state over all ranks}."""
        return {
            table: slot.block * self.world.size * (group.bytes_per_rank // group.block_rows)
            for group in self.groups
            for table, slot in group.slots.items()
        }

    def _active(self, tables: Collection[str]) -> list[Group]:
        return [group for group in self.groups if any(table in tables for table in group.slots)]


def _stacked(vectors: Mapping[str, Tensor], names: list[str], dim: int) -> Tensor:
    """[M, dim]: the vectors of a group's tables one after the other, padded with zeros to `dim`."""
    pieces = [vectors[table] for table in names]
    if not pieces:
        return torch.empty(0, dim)
    stacked = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return stacked if stacked.shape[1] == dim else pad(stacked, (0, dim - stacked.shape[1]))


def _check_memory(groups: list[Group], world: World) -> None:
    """Joint: refuses tables that can't fit, on every rank and before any has begun to fill its memory."""
    if world.device.type == "cpu":
        free, where = _host_memory() // world.local_size, "of memory for each rank of this host"
    else:
        free, where = torch.cuda.mem_get_info(world.device)[0], f"of memory on {world.device}"
    least, needed = min(world.gather(free)), sum(group.bytes_per_rank for group in groups)
    if needed > least:
        raise ConfigError(
            f"the tables need {needed / 2**30:,.1f} GiB a rank, and there are {least / 2**30:,.1f} GiB {where}: "
            "use fewer rows, a smaller dim, dtype float16, rowwise_adagrad or sgd, or more ranks"
        )


def _host_memory() -> int:
    """Bytes that are free on this host, or in this container if that is less."""
    free = int(psutil.virtual_memory().available)
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.is_file() and (most := limit.read_text().strip()).isdecimal():
        free = min(free, int(most) - int(used.read_text()))
    return free
