"""Lists of what came before each event of a sequence, as columns of a Parquet file.

Shapes: N events, H histories.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

if TYPE_CHECKING:
    from numpy.typing import NDArray


def runs(begins_H: NDArray[np.int64], ends_H: NDArray[np.int64], events_N: NDArray[Any], longest: int) -> pa.ListArray:
    """[H] lists: the events from places `begins_H` up to, not with, `ends_H`; of more than `longest` the last ones."""
    begins_H = np.maximum(begins_H, ends_H - longest)
    lengths_H = ends_H - begins_H
    offsets = np.concatenate(([0], np.cumsum(lengths_H)))
    places = np.arange(offsets[-1]) + np.repeat(begins_H - offsets[:-1], lengths_H)
    return pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(events_N[places]))


def firsts(keys_N: NDArray[Any]) -> NDArray[np.int64]:
    """int64 [N]: where the run of equal keys began that each event is in."""
    changes_N = np.concatenate(([True], keys_N[1:] != keys_N[:-1]))
    return np.maximum.accumulate(np.where(changes_N, np.arange(len(keys_N)), 0))


def lasts(keys_N: NDArray[Any]) -> NDArray[np.int64]:
    """int64 [N]: where that run ends, the place of its last event."""
    return len(keys_N) - 1 - firsts(keys_N[::-1])[::-1]
