"""Sparse linear maps: consecutive rows, each times its coefficient, summed to one output each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from embershard.arrays import tensor_of

if TYPE_CHECKING:
    from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sums:
    """A sparse linear map: output b is the sum of its consecutive inputs, each times its coefficient."""

    offsets: NDArray[np.int64] | None
    """int64 [B + 1]: the inputs of output b are offsets[b] to offsets[b + 1]; None: one each."""
    coefficients_M: NDArray[np.float32] | None
    """None: all 1."""

    @classmethod
    def of(cls, counts_B: NDArray[np.int64] | None, coefficients_M: NDArray[np.float32] | None) -> Sums:
        """The map whose output b has counts_B[b] inputs; None: one each."""
        if counts_B is None or bool((counts_B == 1).all()):
            return cls(offsets=None, coefficients_M=coefficients_M)
        return cls(offsets=np.concatenate([[0], np.cumsum(counts_B)]), coefficients_M=coefficients_M)

    @classmethod
    def joined(cls, maps: Sequence[tuple[Sums, int]], *, weighted: bool = False) -> Sums:
        """Several, each with the number of its inputs, as one: their inputs and outputs one after the other; `weighted`
        if it is to have coefficients, even if all are 1."""
        counts = [np.ones(size, np.int64) if one.offsets is None else np.diff(one.offsets) for one, size in maps]
        coefficients = None
        if weighted or any(one.coefficients_M is not None for one, _ in maps):
            given = ((one.coefficients_M, size) for one, size in maps)
            coefficients = np.concatenate([np.ones(size, np.float32) if own is None else own for own, size in given])
        return cls.of(np.concatenate(counts), coefficients)

    def __call__(self, inputs_MD: Tensor) -> Tensor:
        """Inputs [M, D] → outputs [B, D]."""
        if self.offsets is None and self.coefficients_M is None:
            return inputs_MD
        weights_M = self._weights(inputs_MD.device)
        if self.offsets is None:
            assert weights_M is not None
            return inputs_MD * weights_M[:, None]
        return embedding_bag(
            torch.arange(len(inputs_MD), device=inputs_MD.device),
            inputs_MD,
            tensor_of(self.offsets).to(inputs_MD.device),
            mode="sum",
            per_sample_weights=weights_M,
            include_last_offset=True,
        )

    def pull(self, gradients_BD: Tensor) -> Tensor:
        """Gradients of the outputs → of the inputs: the adjoint. Autograd's own is slower (a test compares them)."""
        weights_M = self._weights(gradients_BD.device)
        if self.offsets is not None:
            counts_B = tensor_of(self.offsets).to(gradients_BD.device).diff()
            gradients_BD = gradients_BD.repeat_interleave(counts_B, dim=0)
        return gradients_BD if weights_M is None else gradients_BD * weights_M[:, None]

    def _weights(self, device: torch.device) -> Tensor | None:
        return None if self.coefficients_M is None else tensor_of(self.coefficients_M).to(device)


ONE_EACH = Sums(offsets=None, coefficients_M=None)
"""The map that changes nothing."""
