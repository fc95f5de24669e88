"""What examples come from: numbered chunks, each a table of the same few columns.

A chunk's columns, whatever it was read from (B examples, F dense numbers):

    features.NAME   int64 or large_string [B], or large lists of them: bags; unsigned ids are int64 by two's complement
    label           float32 [B], finite; absent if examples have none
    dense           lists of F float32 [B, F], finite; absent if F is 0

Nothing in them is null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Protocol

import pyarrow as pa

FEATURES: Final = "features."
LABEL: Final = "label"
DENSE: Final = "dense"


@dataclass(frozen=True, kw_only=True, slots=True)
class Piece:
    """Examples that follow each other, perhaps not decoded yet."""

    rows: int
    """How many."""
    read: Callable[[], pa.Table]
    """Decodes and checks them.

    Raises:
        InvalidInput: naming file, column, row and what is allowed.
    """

    @classmethod
    def of(cls, table: pa.Table) -> Piece:
        """Decoded already."""
        return cls(rows=table.num_rows, read=lambda: table)


class Source(Protocol):
    """Numbered chunks, which can be read in any order and as often as one likes."""

    @property
    def title(self) -> str:
        """Names it in errors."""

    @property
    def chunks(self) -> int:
        """How many there are."""

    @property
    def max_lengths(self) -> Mapping[str, int]:
        """{feature: longest bag}: longer ones are yet to be cut."""

    @property
    def examples(self) -> int | None:
        """All examples; None: only reading tells."""

    def pieces(self, chunk: int) -> Iterator[Piece]:
        """A chunk's examples in order: one piece, not decoded yet, where their number is known, else as they come."""
