"""One rank's share of one group: rows, optimizer state, and what is known of each row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from embershard.engine.books import Books
from embershard.engine.initial import fill_initial
from embershard.rowwise import stored_as

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from embershard.engine.placement import Group

Kept = list[tuple[Tensor, Tensor, Tensor]]
"""Tensors, rows of them, and what those were."""

Watcher = Callable[[Tensor], None]
"""Is told which rows of a shard are about to change, each perhaps several times."""

_CLEARED = 2**24
"""Bytes that are cleared at a time."""


class Start(Enum):
    """What a row that is overwritten keeps."""

    NONE = 0
    """It goes on: optimizer state and counts stay, and this is one more update."""
    ANEW = 1
    """It starts anew, without optimizer state, and this is its first update."""
    EMPTY = 2
    """It starts anew, and no update has reached it."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Shard:
    """Live tensors; kernels change them in place."""

    group: Group
    """What is stacked here."""
    kernel: Any
    """What gathers and moves the rows: the engine's own; None of int8 rows, which don't move."""
    rank: int
    """Whose share it is."""
    weight: Tensor
    """[block_rows, kernel_dim] of the group's dtype; columns past the group's stored_dim are zeros and stay so."""
    state: Tensor | None
    """float32 sums of squares, [block_rows] or [block_rows, kernel_dim]; None for sgd."""
    books: Books
    """What else is known of them."""
    array: NDArray[np.float32] | None
    """The same memory as `weight`, if that is float32 in this host's memory, and rows have no more than their dim."""
    watchers: list[Watcher] = field(default_factory=list)
    """Who wants to see rows before they change."""

    @classmethod
    def of(cls, group: Group, kernel: Any, rank: int, weight: Tensor, state: Tensor | None) -> Shard:
        """Keeps books of the rows that a kernel moves."""
        books = Books(group.block_rows, weight.device, counts=group.counts)
        whole = weight.is_cpu and weight.dtype == torch.float32 and weight.shape[1] == group.dim
        array = weight.numpy() if whole else None
        return cls(group=group, kernel=kernel, rank=rank, weight=weight, state=state, books=books, array=array)

    @classmethod
    def quantised(cls, group: Group, rank: int, device: torch.device) -> Shard:
        """Of int8 rows."""
        weight = torch.empty(group.block_rows, group.stored_dim, dtype=group.dtype, device=device)
        return cls.of(group, None, rank, weight, None)

    @property
    def kinds(self) -> dict[str, Tensor]:
        """All that there is of each row, one tensor a kind: `weight`, `sum` if any, and the books."""
        learned = {"weight": self.weight} if self.state is None else {"weight": self.weight, "sum": self.state}
        return learned | self.books.kinds

    def clear(self, progress: Callable[[int], object] = lambda _: None) -> None:
        """Every row zeros, as if it had never been told how rows start."""
        for tensor in self.kinds.values():
            for rows in tensor.split(max(1, _CLEARED // max(1, tensor[:1].nbytes))):
                rows.zero_()
                progress(0)

    def initialise(self, seed: int, progress: Callable[[int], object], known: Mapping[str, int] | None = None) -> None:
        """Every row as it is before any update; the first `known` rows of each matrix are left empty, to be copied.

        `seed` is the collection's; `progress` is told of rows done.
        """
        self.clear(progress)
        for slot in self.group.slots.values():
            start, stop = slot.held(self.rank)
            first = min(max(start, (known or {}).get(slot.matrix.name, 0)), stop)
            view = self.weight[slot.local(self.rank), : self.group.stored_dim][first - start :]
            fill_initial(view, slot.matrix, seed, first, progress)

    def write(self, local_M: Tensor, values_MD: Tensor, start: Start) -> None:
        """Overwrites rows of this shard, each at most once, with floats [M, kernel_dim]; int8 rows with [M, D]."""
        self._tell(local_M)
        if start is not Start.NONE:
            self.books.forget(local_M)
            if self.state is not None:
                self.state.index_fill_(0, local_M, 0)
        if start is not Start.EMPTY:
            self.books.count(local_M)
        _put(self.weight, local_M, stored_as(self.weight.dtype, values_MD.to(self.weight.device)))

    def replace(self, local_M: Tensor, kinds: Mapping[str, Tensor]) -> tuple[int, int]:
        """Overwrites all that there is of rows, each named once, {kind: [M] or [M, kernel_dim]}; frozen ones stay.

        Returns how many were overwritten, and how many are frozen.
        """
        self._tell(local_M)
        named = len(local_M)
        if (frozen_M := self.books.are_frozen(local_M)) is not None:
            local_M, kinds = local_M[~frozen_M], {kind: rows[~frozen_M] for kind, rows in kinds.items()}
        for kind, rows in kinds.items():
            _put(self.kinds[kind], local_M, rows)
        return len(local_M), named - len(local_M)

    def move(self, local_M: Tensor, step: Callable[[], object]) -> None:
        """One step of the kernel's optimizer, which moves these rows; frozen ones stay."""
        kept = self._hold(local_M)
        step()
        self._moved(local_M, kept)

    def _hold(self, local_M: Tensor) -> Kept:
        """Precedes every step of the optimizer: remembers those of the rows that are frozen."""
        self._tell(local_M)
        if (frozen_M := self.books.are_frozen(local_M)) is None:
            return []
        rows = local_M[frozen_M]
        stay = (self.weight, self.state, self.books.updates)
        return [(tensor, rows, tensor[rows]) for tensor in stay if tensor is not None]

    def _moved(self, local_M: Tensor, kept: Kept) -> None:
        """Follows every step of the optimizer: these rows have been reached, and stay finite; frozen ones stay."""
        self.books.count(local_M)
        if self.weight.dtype == torch.float16 and len(local_M):
            rows_MD = self.weight.index_select(0, local_M)
            # To see that all is well takes a tenth of the time of clamping what is.
            if not all(edge.isfinite() for edge in rows_MD.aminmax()):
                # A step beyond what half precision holds ends at its largest number, not at infinity and then at NaN.
                largest = torch.finfo(torch.float16).max
                self.weight.index_copy_(0, local_M, rows_MD.clamp_(-largest, largest))
        for tensor, rows, before in kept:
            tensor.index_copy_(0, rows, before)

    def freeze(self, local_M: Tensor, *, frozen: bool) -> None:
        """Joint: has rows stay bit for bit as they are, or no longer."""
        self._tell(local_M)
        self.books.freeze(local_M, frozen=frozen)

    def _tell(self, local_M: Tensor) -> None:
        for watcher in [*self.watchers]:  # some leave when they are told
            watcher(local_M)

    def tensors(self, matrix: str) -> dict[str, Tensor]:
        """Views of one matrix's rows on this rank: `weight` [n, D], `sum` [n] or [n, D] if any, and the books [n]."""
        local = self.group.slots[matrix].local(self.rank)
        return {
            kind: tensor[local] if tensor.ndim == 1 else tensor[local, : self.group.stored_dim]
            for kind, tensor in self.kinds.items()
        }


def _put(into: Tensor, local_M: Tensor, rows: Tensor) -> None:
    """As `index_copy_`, of contiguous tensors; on CPUs a row is one thing to numpy, which is three times as fast."""
    if into.ndim == 1 or into.device.type != "cpu":
        into.index_copy_(0, local_M, rows)
    else:
        whole = np.dtype((np.void, into.shape[1] * into.itemsize))
        np.put(into.numpy().view(whole), local_M.numpy(), rows.numpy().view(whole))
