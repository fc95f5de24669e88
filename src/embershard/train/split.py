"""Which rows of a file train and which evaluate: a border in the column of times."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, time
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from embershard.errors import InvalidInput
from embershard.train.schema import Moment


@dataclass(frozen=True, kw_only=True, slots=True)
class Split:
    """One side of a border in time."""

    column: str
    """Of numbers, dates or timestamps."""
    border: Moment
    """The first moment of the later side."""
    later: bool
    """Which side."""

    def __str__(self) -> str:
        return f"{self.column} {'≥' if self.later else '<'} {self.border}"

    def check(self, kind: pa.DataType) -> None:
        """Raises InvalidInput unless a column of this type can be compared with the border."""
        dated = isinstance(self.border, date)
        fits = types.is_temporal(kind) and not types.is_time(kind) and not types.is_duration(kind)
        if dated and not fits:
            raise InvalidInput(f"column {self.column!r} is {kind}; it must be dates or timestamps, as evaluate_from is")
        if not dated and not (types.is_integer(kind) or types.is_floating(kind)):
            raise InvalidInput(f"column {self.column!r} is {kind}; it must be numbers, as evaluate_from is")

    def kept(self, times_B: pa.Array, first_row: int) -> Any:
        """A bool array [B]: whose rows are on this side.

        Raises:
            InvalidInput: a time is null or NaN, so that it is on neither.
        """
        unknown_B = pc.is_null(times_B, nan_is_null=True)
        if (row := pc.index(unknown_B, True).as_py()) >= 0:
            raise InvalidInput(
                f"column {self.column!r} row {first_row + row}: the time is null or NaN; rows are split by it"
            )
        if types.is_date(times_B.type):
            times_B = times_B.cast(pa.timestamp("us"))
        compare = pc.greater_equal if self.later else pc.less
        return compare(times_B, self._scalar(times_B.type))

    def _scalar(self, kind: pa.DataType) -> Any:
        if not isinstance(self.border, date):
            return pa.scalar(self.border)
        moment = self.border if isinstance(self.border, datetime) else datetime.combine(self.border, time())
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        zone = kind.tz
        return pa.scalar(moment if zone else moment.replace(tzinfo=None), pa.timestamp("us", zone))
