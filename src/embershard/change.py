"""An update as row work: which rows to read, how gradients come back to rows, what to overwrite.

It is prepared, and all of it checked, before a tick; what depends on the state of the tick (which ids own a row, what
the rows are) is filled in there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from embershard.compose import RowBatch
from embershard.errors import InvalidInput

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


MAX_GRADIENT = 1e9
"""Largest size of one number of a gradient: the sum over a million ids of one row, squared and summed over any dim, is
still far from the largest float32."""

ByMatrix = dict[str, Tensor]
"""{matrix: int64 [M] row numbers, or [M, D] vectors}."""

ByPart = dict[RowBatch, list[Tensor]]
"""The rows of each matrix that a part asked for."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Move:
    """Gradients of one feature's answers."""

    part: RowBatch
    """How the answers are made of rows."""
    gradients_BD: Tensor
    """float32."""
    pulled: ByMatrix | None
    """float32 [M, D] of the rows of each matrix; None where only the tick knows the way back."""

    @classmethod
    def of(cls, part: RowBatch, gradients_BD: Tensor) -> Move:
        """Pulls the gradients back to the rows at once, if that needs nothing of the tick.

        Raises:
            InvalidInput: they are too large for a row.
        """
        known = part.ids.keys is None and not part.table.needs_rows
        return cls(
            part=part, gradients_BD=gradients_BD, pulled=_pulled(part, gradients_BD, [], None) if known else None
        )

    def pull(self, stored: Sequence[Tensor], projection_RD: Tensor | None, *, clip: bool) -> ByMatrix:
        """Gradients [M, D] of the rows of each matrix, the shared one included."""
        if self.pulled is not None:
            return self.pulled
        return _pulled(self.part, self.gradients_BD, stored, projection_RD, clip=clip)

    @property
    def rows(self) -> list[Tensor]:
        """int64 [M]: the rows of each matrix, all of the shared one."""
        shared = [torch.arange(matrix.rows) for matrix in self.part.table.matrices if matrix.shared]
        return [*self.part.rows, *shared]


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Write:
    """Rows of one feature's ids that are overwritten, or started anew as the mean of their parents."""

    part: RowBatch
    """The ids, each of which owns its row by then."""
    values_ND: Tensor | None
    """float32: the new rows; or None, and"""
    parents: RowBatch | None = None
    """how each is made of its parents' rows."""

    def values(self, stored: ByPart) -> Tensor:
        """float32 [N, D]."""
        if self.parents is None:
            assert self.values_ND is not None
            return self.values_ND
        return self.parents.inner(stored[self.parents][0]).cpu()


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Change:
    """An update, ready for a tick: gradients first, then values."""

    moves: Sequence[Move]
    """Gradients."""
    writes: Sequence[Write]
    """Values and parents."""
    numbers: int
    """What it costs: numbers of all rows that are touched."""

    @classmethod
    def nothing(cls) -> Change:
        """What a rank without an update brings."""
        return cls(moves=(), writes=(), numbers=0)

    @property
    def parts(self) -> list[RowBatch]:
        """Those whose ids are named, parents aside."""
        return [move.part for move in self.moves] + [write.part for write in self.writes]

    @property
    def readers(self) -> list[RowBatch]:
        """Those whose rows must be known."""
        parts = [move.part for move in self.moves if move.part.table.needs_rows]
        return parts + [write.parents for write in self.writes if write.parents is not None]

    @property
    def applies(self) -> set[str]:
        """Matrices that gradients move."""
        return {matrix.name for move in self.moves for matrix in move.part.table.matrices}

    def overwrites(self, *, anew: bool) -> set[str]:
        """Matrices with rows that get values, or are started anew."""
        return {write.part.table.name for write in self.writes if (write.parents is not None) == anew}

    def settled(self, settle: Callable[[RowBatch], RowBatch]) -> Change:
        """The same with the rows that ids have in this tick."""
        moves = [replace(move, part=settle(move.part)) for move in self.moves]
        writes = [
            replace(write, part=settle(write.part), parents=write.parents and settle(write.parents))
            for write in self.writes
        ]
        return replace(self, moves=moves, writes=writes)

    def pulled(self, stored: ByPart, projections: Mapping[str, Tensor], *, clip: bool = False) -> dict[Move, ByMatrix]:
        """The gradients [M, D] of the rows of each matrix that each move reaches, from the readers' rows.

        Raises:
            InvalidInput: pulled back through a normalisation or a factor, one is too large for a row, and not clipped.
        """
        return {
            move: move.pull(stored.get(move.part, []), projections.get(move.part.table.name), clip=clip)
            for move in self.moves
        }

    def gradients(self, pulled: Mapping[Move, ByMatrix]) -> tuple[ByMatrix, ByMatrix]:
        """Rows that move and their gradients, {matrix: [M]} and {matrix: [M, D]}."""
        rows: list[tuple[str, Tensor]] = []
        gradients: list[tuple[str, Tensor]] = []
        for move in self.moves:
            rows += zip(pulled[move], move.rows, strict=True)
            gradients += pulled[move].items()
        return concatenated(rows), concatenated(gradients)

    def values(self, stored: ByPart, *, anew: bool) -> tuple[ByMatrix, ByMatrix]:
        """Rows that are overwritten, or started anew, each once, and their values, from the readers' rows."""
        writes = [write for write in self.writes if (write.parents is not None) == anew]
        rows = rows_of_parts([write.part for write in writes])
        values = concatenated((write.part.table.name, write.values(stored)) for write in writes)
        last = {matrix: last_of_each(rows[matrix], values[matrix]) for matrix in rows}
        return {matrix: pair[0] for matrix, pair in last.items()}, {matrix: pair[1] for matrix, pair in last.items()}


def rows_of_parts(parts: Iterable[RowBatch]) -> ByMatrix:
    """Rows of each matrix, those of the parts one after the other."""
    by_name: dict[str, list[Tensor]] = {}
    for part in parts:
        for name, rows_M in zip(part.table.own_matrices, part.rows, strict=True):
            by_name.setdefault(name, []).append(rows_M)
    return _joined(by_name)


def shares(
    parts: Iterable[RowBatch],
    gathered: Mapping[str, Tensor],
    size: Callable[[RowBatch], int] = lambda part: len(part.ids.rows_M),
) -> ByPart:
    """What was gathered for `rows_of_parts`, as it belongs to each part: its rows of each of its matrices, so many."""
    taken = dict.fromkeys(gathered, 0)
    shared_out: ByPart = {}
    for part in parts:
        pieces, count = [], size(part)
        for matrix in part.table.own_matrices:
            whole, start = gathered[matrix], taken[matrix]
            taken[matrix] += count
            pieces.append(whole if count == whole.shape[0] else whole[start : taken[matrix]])
        shared_out[part] = pieces
    return shared_out


def concatenated(pieces: Iterable[tuple[str, Tensor]]) -> ByMatrix:
    """Joins the pieces of one name."""
    by_name: dict[str, list[Tensor]] = {}
    for name, piece in pieces:
        by_name.setdefault(name, []).append(piece)
    return _joined(by_name)


def _joined(by_name: Mapping[str, list[Tensor]]) -> ByMatrix:
    return {name: same[0] if len(same) == 1 else torch.cat(same) for name, same in by_name.items()}


def last_of_each(rows_M: Tensor, values_MD: Tensor) -> tuple[Tensor, Tensor]:
    """Leaves one value a row, the last: writes become independent of the order in which they are done."""
    unique, position = np.unique(rows_M.cpu().numpy()[::-1], return_index=True)
    last = torch.from_numpy(len(rows_M) - 1 - position).to(values_MD.device)
    return torch.from_numpy(unique).to(rows_M.device), values_MD[last]


def check_size(where: str, what: str, numbers: Tensor, largest: float, hint: str) -> None:
    """Raises InvalidInput, naming the place of the largest number, if that is larger than it may be."""
    if not numbers.numel():
        return
    least, most = torch.aminmax(numbers)  # in one pass
    if not max(float(most), -float(least)) <= largest:  # not: NaN is larger than anything
        array = numbers.numpy()
        at = tuple(int(i) for i in np.unravel_index(np.argmax(np.abs(array)), array.shape))
        raise InvalidInput(f"{where}: {what}{list(at)} = {array[at]:g} is larger than {largest:g}; {hint}")


def _pulled(
    part: RowBatch, gradients_BD: Tensor, stored: Sequence[Tensor], projection_RD: Tensor | None, *, clip: bool = False
) -> ByMatrix:
    gradients_BD = gradients_BD.to(stored[0].device) if stored else gradients_BD
    pulled, of_projection = part.pull(gradients_BD, stored, projection_RD)
    pieces = [piece.cpu() for piece in (*pulled, *([] if of_projection is None else [of_projection]))]
    if clip:
        pieces = [piece.nan_to_num(0).clamp(-MAX_GRADIENT, MAX_GRADIENT) for piece in pieces]
    for piece in pieces:
        if piece is gradients_BD:
            continue  # as it was given, and so it was looked at
        what = "gradients, as they arrive at the rows,"
        check_size(f"feature {part.batch.feature!r}", what, piece, MAX_GRADIENT, "clip them")
    return {matrix.name: piece for matrix, piece in zip(part.table.matrices, pieces, strict=True)}
