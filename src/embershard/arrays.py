"""Arrays as tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from numpy.typing import NDArray


def tensor_of(array: NDArray[Any]) -> Tensor:
    """The same numbers as a tensor; without a copy, unless the array is a view of bytes that can't be written."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
