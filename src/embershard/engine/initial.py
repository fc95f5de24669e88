"""How rows start: a pure function of collection seed, matrix and row, so that every world size starts alike."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from embershard.config import Matrix
from embershard.ids import table_seed
from embershard.rowwise import stored_as

CHUNK_ROWS = 4096
"""Rows that share one stream of random bits; a part of the format, since it decides what each row starts as."""


def initial_rows(matrix: Matrix, seed: int, chunk: int) -> Tensor:
    """float32 [≤ CHUNK_ROWS, D]: the rows of one chunk of a matrix, before any update; `seed` is the collection's.

    The bits are Philox's (Salmon et al. 2011), whose stream numpy keeps for ever; they are made uniform and normal
    here, because numpy's own distributions may change.
    """
    rows = min(CHUNK_ROWS, matrix.rows - chunk * CHUNK_ROWS)
    count = rows * matrix.dim
    if matrix.init.kind == "zeros":
        return torch.full((rows, matrix.dim), matrix.mean)
    bits = (
        np.random.Philox(key=[table_seed(matrix.name, seed), chunk]).random_raw(-(-count // 2)).view(np.uint32)[:count]
    )
    # 23 bits and a half are a float32 exactly, so that -1 and 1, where erfinv is infinite, never come out.
    centred = torch.from_numpy(((bits >> 9).astype(np.float32) + np.float32(0.5)) * np.float32(2**-22) - np.float32(1))
    shaped = centred if matrix.init.kind == "uniform" else torch.erfinv(centred) * math.sqrt(2)
    return (shaped * matrix.init.scale + matrix.mean).view(rows, matrix.dim)


def fill_initial(
    view_ND: Tensor, matrix: Matrix, seed: int, first_row: int, progress: Callable[[int], object] = lambda _: None
) -> None:
    """Writes the start of the rows `first_row`, `first_row` + 1, … of a matrix into a shard's view, as its dtype stores
    them."""
    done = 0
    while done < len(view_ND):
        chunk, skip = divmod(first_row + done, CHUNK_ROWS)
        rows_CD = initial_rows(matrix, seed, chunk)[skip : skip + len(view_ND) - done]
        view_ND[done : done + len(rows_CD)].copy_(stored_as(view_ND.dtype, rows_CD))
        done += len(rows_CD)
        progress(len(rows_CD))
