"""The narrow interface that both engines answer, and what they share."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from tqdm import tqdm

from embershard.change import last_of_each
from embershard.config import VocabularyIds
from embershard.engine.kernels import step_by
from embershard.engine.memory import check_memory
from embershard.engine.placement import Group, bytes_of_tables, groups_of
from embershard.engine.publication import Published
from embershard.engine.shard import Shard, Start
from embershard.rowwise import floats
from embershard.sums import Sums
from embershard.vocabulary import Vocabulary, bytes_of_vocabulary

if TYPE_CHECKING:
    from typing import NoReturn

    import numpy as np
    from numpy.typing import NDArray

    from embershard.compose import RowBatch
    from embershard.config import Config, Matrix
    from embershard.engine.world import World


Apply = Callable[[Tensor], None]
"""Joint: moves rows by the gradients [M, kernel_dim] of what was gathered."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Held:
    """What was gathered of rows that gradients may move; once."""

    rows: dict[str, Tensor]
    """{matrix: float32 [M, D]}, or sums of rows [B, D]."""
    apply: Callable[[Mapping[str, Tensor]], None]
    """Joint: as `Engine.apply`, with gradients for all of these."""


class Engine(ABC):
    """Holds the rows of a collection, cut row-wise over the ranks of a world.

    Every method is *joint*: all ranks call it together, each with the rows that it has a use for, none if it has
    none. `active` names the matrices that any rank has rows of, and is the same on every rank. Row numbers are checked
    by the caller (`collection`): an engine trusts them.
    """

    name: str
    """local or torchrec."""
    made_beside: bool
    """Whether one can be made, and its shards, on a thread beside the tick: without collectives."""

    def __init__(self, config: Config, world: World, *, seeded: bool = True) -> None:
        """Joint, or on any thread if `made_beside`; with `seeded` False rows are zeros, for a snapshot to fill."""
        self.config = config
        self.world = world
        self.groups: list[Group] = groups_of(config, world.size)
        check_memory(self.groups, world, sum(bytes_of_vocabulary(table) for table in config.tables))
        self.shards: dict[str, Shard] = {group.name: self.make_shard(group) for group in self.groups}
        self.vocabularies = {
            table.name: Vocabulary(table) for table in config.tables if isinstance(table.ids, VocabularyIds)
        }
        """Which ids own a row: the same on every rank."""
        self.projections: dict[str, Tensor] = {}
        """{table: r × dim}: this rank's copies of what all rows of a table share."""
        self.published = Published()
        """The last publication that the tables have."""
        if seeded:
            self.initialise()
        else:
            for shard in self.shards.values():
                shard.clear()

    def initialise(self) -> None:
        """Joint: every row as it is before any update."""
        rows = sum(group.block_rows for group in self.groups)
        with self.progress(rows) as progress:
            for shard in self.shards.values():
                shard.initialise(self.config.collection.seed, progress.update)
        self.refresh(self.matrices)

    def progress(self, rows: int) -> tqdm[NoReturn]:
        """A progress bar over rows, which only rank 0 shows, and only where it takes over two seconds."""
        return tqdm(total=rows, unit="rows", unit_scale=True, delay=2, disable=self.world.rank != 0 or None)

    @property
    def matrices(self) -> dict[str, Matrix]:
        """The matrices of all tables, {name: matrix}."""
        return {name: slot.matrix for group in self.groups for name, slot in group.slots.items()}

    def make_shard(self, group: Group) -> Shard:
        """Makes this rank's share of a group, its contents not yet defined."""
        if group.quantised:
            return Shard.quantised(group, self.world.rank, self.world.device)
        return self._make_shard(group)

    @abstractmethod
    def _make_shard(self, group: Group) -> Shard:
        """As `make_shard`, of rows that gradients may move."""

    @abstractmethod
    def _gather(self, group: Group, physical_M: Tensor) -> Tensor:
        """Rows as they are stored: [M, kernel_dim], or uint8 [M, D + 8]."""

    @abstractmethod
    def _hold(self, group: Group, physical_M: Tensor) -> tuple[Tensor, Apply]:
        """Rows as float32 [M, kernel_dim], and what makes one optimizer step of their gradients on all ranks."""

    @abstractmethod
    def _hold_sums(self, group: Group, physical_M: Tensor, sums: Sums) -> tuple[Tensor, Apply]:
        """The same for sums [B, kernel_dim] of rows, which whoever holds the rows makes."""

    @abstractmethod
    def _kernel(self, group: Group) -> Any:
        """FBGEMM's table-batched embedding of this rank's rows."""

    def placed(self, part: RowBatch) -> tuple[Shard, NDArray[np.int64]] | None:  # noqa: ARG002  # for engines that can
        """Where this process has all rows [N] of a part that is `as_is`: in a shard, by their numbers there."""
        return None

    def at_hand(self, part: RowBatch) -> NDArray[np.float32] | None:
        """The answers [N, D] of a part that is `as_is`, if this process can read them with next to nothing done."""
        placed = self.placed(part)
        return None if placed is None or placed[0].array is None else placed[0].array.take(placed[1], axis=0)

    def books_at_hand(self, part: RowBatch) -> NDArray[np.int32] | None:
        """The books [N, 3] of its rows, as `books` has them, likewise."""
        placed = self.placed(part)
        return None if placed is None else placed[0].books.at_hand(placed[1])

    @abstractmethod
    def to_owners(self, group: Group, physical_M: Tensor, items: Tensor | None) -> tuple[Tensor, Tensor | None]:
        """Sends each row, and its item if there are any, to the rank that holds it: rows of the shard, and items.

        Those of a lower rank come first.
        """

    @abstractmethod
    def _from_owners(self, group: Group, physical_M: Tensor, read: Callable[[Tensor], Tensor]) -> Tensor:
        """What the rank that holds a row reads of it, for each row."""

    def gather(
        self, rows: Mapping[str, Tensor], active: Collection[str], *, as_stored: bool = False
    ) -> dict[str, Tensor]:
        """The rows of each matrix, {matrix: float32 [M, D]}; int8 rows uint8 [M, D + 8] if wanted as stored."""

        def read(group: Group, physical_M: Tensor) -> Tensor:
            stored = self._gather(group, physical_M)
            if group.quantised:
                return stored if as_stored else floats(stored)
            vectors = stored.float()
            return vectors if group.dim == vectors.shape[1] else vectors[:, : group.dim]

        return self._each(rows, active, read)

    def books(self, rows: Mapping[str, Tensor], active: Collection[str]) -> dict[str, Tensor]:
        """What is known of each row, {matrix: int32 [M, 3]}: updates, sightings, and whether it is frozen (`Books`)."""
        return self._each(
            rows,
            active,
            lambda group, physical_M: self._from_owners(group, physical_M, self.shards[group.name].books.read),
        )

    def apply(self, rows: Mapping[str, Tensor], gradients: Mapping[str, Tensor], active: Collection[str]) -> None:
        """One step of each matrix's optimizer; the gradients [M, D] of one row are summed first, over all ranks."""
        for group in self._active(active):
            physical_M, names, _ = group.physical(rows)
            gradients_MD = _stacked(gradients, names, group.kernel_dim).to(self.world.device)
            local_M, arrived_MD = self.to_owners(group, physical_M.to(self.world.device), gradients_MD)
            assert arrived_MD is not None
            step = partial(step_by, self._kernel(group), group.optimizer.kind, local_M, arrived_MD)
            self.shards[group.name].move(local_M, step)
        self.refresh(active)

    def hold(self, rows: Mapping[str, Tensor], sums: Mapping[str, Sums]) -> Held:
        """As `gather`, for rows that will be moved: then `apply` has less to do.

        Of matrices that are named in `sums`, those are gathered, [B, D], and the gradients are theirs. Both name the
        same matrices on every rank, if only with no rows.
        """
        found: dict[str, Tensor] = {}
        applies: list[tuple[list[str], int, Apply]] = []
        for group in self._active(rows):
            for summed in (False, True):
                chosen = {name: rows[name] for name in group.slots if name in rows and (name in sums) == summed}
                if not chosen:
                    continue
                physical_M, names, counts = group.physical(chosen)
                physical_M = physical_M.to(self.world.device)
                if summed:
                    of_all = [(sums[name], count) for name, count in zip(names, counts, strict=True)]
                    counts = [count if one.offsets is None else len(one.offsets) - 1 for one, count in of_all]
                    vectors, apply = self._hold_sums(group, physical_M, Sums.joined(of_all))
                else:
                    vectors, apply = self._hold(group, physical_M)
                found.update(zip(names, vectors[:, : group.dim].split(counts), strict=True))
                applies.append((names, group.kernel_dim, apply))

        def move(gradients: Mapping[str, Tensor]) -> None:
            for names, dim, apply in applies:
                apply(_stacked(gradients, names, dim).to(self.world.device))
            self.refresh(rows)

        return Held(rows=found, apply=move)

    def write(
        self,
        rows: Mapping[str, Tensor],
        values: Mapping[str, Tensor],
        active: Collection[str],
        *,
        start: Start = Start.NONE,
    ) -> None:
        """Overwrites rows with values [M, D]; a row is named once a rank, and the highest rank that names it wins."""
        for group in self._active(active):
            physical_M, names, _ = group.physical(rows)
            dim = group.dim if group.quantised else group.kernel_dim
            values_MD = _stacked(values, names, dim).to(self.world.device)
            local_M, arrived_MD = self.to_owners(group, physical_M.to(self.world.device), values_MD)
            assert arrived_MD is not None
            if self.world.size > 1:
                local_M, arrived_MD = last_of_each(local_M, arrived_MD)
            self.shards[group.name].write(local_M, arrived_MD, start)

    def freeze(self, rows: Mapping[str, Tensor], active: Collection[str], *, frozen: bool) -> None:
        """Has rows stay bit for bit as they are, optimizer state too, or no longer."""
        for group in self._active(active):
            physical_M, _, _ = group.physical(rows)
            local_M, _ = self.to_owners(group, physical_M.to(self.world.device), None)
            self.shards[group.name].freeze(local_M, frozen=frozen)

    def refresh(self, active: Collection[str]) -> None:
        """Joint: copies what all rows of a table share to every rank, if it may have changed."""
        shared = {name: matrix for name, matrix in self.matrices.items() if matrix.shared and name in active}
        if shared:
            copies = self.gather({name: torch.arange(matrix.rows) for name, matrix in shared.items()}, shared)
            self.projections |= {matrix.table.name: copies[name] for name, matrix in shared.items()}

    def settle(self, part: RowBatch) -> RowBatch:
        """The part with the rows that its ids have now."""
        if part.ids.keys is None:
            return part
        vocabulary = self.vocabularies[part.table.name]
        return part.settled(vocabulary.find(part.ids.keys), vocabulary.first_row)

    def tensors(self) -> dict[str, Tensor]:
        """Live views of this rank's rows: {"user.weight": [n, D], "user.sum": …, "user.updates": [n], …}."""
        return {
            f"{matrix}.{name}": view
            for group in self.groups
            for matrix in group.slots
            for name, view in self.shards[group.name].tensors(matrix).items()
        }

    def table_bytes(self) -> dict[str, int]:
        """{table: bytes of rows and optimizer state over all ranks}."""
        return bytes_of_tables(self.groups)

    def _each(
        self, rows: Mapping[str, Tensor], active: Collection[str], answer: Callable[[Group, Tensor], Tensor]
    ) -> dict[str, Tensor]:
        """What `answer` says of the physical rows of each group, as it belongs to the matrices."""
        answers: dict[str, Tensor] = {}
        for group in self._active(active):
            physical_M, names, counts = group.physical(rows)
            of_group = answer(group, physical_M.to(self.world.device))
            # A view costs as much as a few rows.
            pieces = [of_group] if len(names) == 1 else of_group.split_with_sizes(counts)
            answers.update(zip(names, pieces, strict=True))
        return answers

    def _active(self, matrices: Collection[str]) -> list[Group]:
        return [group for group in self.groups if not group.slots.keys().isdisjoint(matrices)]


def _stacked(vectors: Mapping[str, Tensor], names: list[str], dim: int) -> Tensor:
    """[M, dim]: the vectors of a group's matrices one after the other, padded with zeros to `dim`."""
    pieces = [vectors[matrix] for matrix in names]
    if not pieces:
        return torch.empty(0, dim)
    stacked = pieces[0] if len(pieces) == 1 else torch.cat(pieces)
    return stacked if stacked.shape[1] == dim else pad(stacked, (0, dim - stacked.shape[1]))
