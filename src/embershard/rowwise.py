"""int8 rows: numbers from 0 to 255, and what turns them into floats; D + 8 bytes a row, on the wire and in tables.

    D bytes        numbers
    float32        scale, (largest − smallest of the row) / 255
    float32        bias, the smallest

The format is FBGEMM's (Fused8BitRowwiseQuantized), little-endian. A value is number × scale + bias, and differs from
what it was made of by at most `error_bound`.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from embershard.codec import INT8_TAIL

WIDER = {torch.uint8: (torch.float32, torch.float16), torch.float16: (torch.float32,)}
"""{dtype of a table: those whose rows it can store rounded}."""
_LARGEST = torch.finfo(torch.float32).max / 2
"""What larger numbers of a row are taken for, if the row would be too wide for a float32 scale."""
_ADDED = 1e-8
"""What FBGEMM adds to the width of a row before it divides by it."""
_ROUNDING = 1e-6
"""Of the largest number of a row, what rounding may add to an error."""


def quantised(rows_ND: Tensor) -> Tensor:
    """float32 [N, D], none of them NaN → uint8 [N, D + 8], where they are."""
    made_NT = _quantised(rows_ND)
    # By numpy, whose calls cost a third: most requests have few rows.
    scale_N1 = made_NT.numpy()[:, -INT8_TAIL : -INT8_TAIL // 2].copy().view(np.float32)
    if not np.isfinite(scale_N1.max(initial=0)):
        wide_N1 = torch.from_numpy(~np.isfinite(scale_N1)).to(rows_ND.device)
        made_NT = _quantised(rows_ND.clamp(-_LARGEST, _LARGEST).where(wide_N1, rows_ND))
    return made_NT.to(rows_ND.device)


def floats(rows_NT: Tensor) -> Tensor:
    """uint8 [N, D + 8] → float32 [N, D]; of rows that aren't int8, the same as float32."""
    if rows_NT.dtype != torch.uint8:
        return rows_NT.float()
    tails_N2 = rows_NT[:, -INT8_TAIL:].clone(memory_format=torch.contiguous_format).view(torch.float32)
    # FBGEMM's own rounds once instead of twice, on some machines: this is the same everywhere, and as clients do it.
    return rows_NT[:, :-INT8_TAIL].float().mul_(tails_N2[:, :1]).add_(tails_N2[:, 1:])


def stored_as(dtype: torch.dtype, rows_ND: Tensor) -> Tensor:
    """Rows of floats as a table of this dtype stores them: numbers that it doesn't hold end at its largest."""
    if dtype == torch.uint8:
        return quantised(rows_ND.float())
    largest = torch.finfo(dtype).max
    return rows_ND.clamp(-largest, largest).to(dtype)


def error_bound(rows_ND: Tensor) -> Tensor:
    """float64 [N]: how far a value of each row may be from what it was made of, if that is below 1.7·10³⁸.

    Half a step; and, as FBGEMM divides by a little more than the width of a row, for rows that are hardly wider than
    that a little more; and what is lost to rounding.
    """
    rows_ND = rows_ND.double()
    width_N = rows_ND.amax(dim=1) - rows_ND.amin(dim=1)
    return width_N / 510 + width_N.clamp(max=_ADDED) + _ROUNDING * rows_ND.abs().amax(dim=1)


def _quantised(rows_ND: Tensor) -> Tensor:
    # Whoever only reads rows needs no FBGEMM, whose import takes a second.
    import fbgemm_gpu  # noqa: F401  # which registers its operators

    # On CPUs, as on GPUs FBGEMM pads rows to a multiple of four numbers.
    made_NT: Tensor = torch.ops.fbgemm.FloatToFused8BitRowwiseQuantized(rows_ND.cpu().contiguous())
    return made_NT
