"""What a module is called with, as a batch; and batches compared and joined."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from torch import Tensor

from embershard.errors import InvalidInput
from embershard.types import FeatureBatch

if TYPE_CHECKING:
    from numpy.typing import NDArray

Ids = Tensor | Sequence[str]
"""Integers of any shape, or strings."""
Batches = Mapping[str, FeatureBatch]
"""{feature: its batch}."""


def one_each(feature: str, ids: Ids) -> FeatureBatch:
    """One vector an id, in the order of a flattened tensor.

    Raises:
        InvalidInput: ids that are no integers.
    """
    return FeatureBatch.of(feature, _flat(ids))


def bags(
    feature: str,
    ids: Ids,
    offsets: Tensor | None = None,
    weights: Tensor | None = None,
    *,
    include_last_offset: bool = False,
) -> FeatureBatch:
    """One vector a bag, as `nn.EmbeddingBag` has them: rows of a matrix, or of a vector what is between offsets.

    Raises:
        InvalidInput: offsets that are missing, one too many, or no offsets of these ids; weights of another shape, or
            that require a gradient.
    """
    if weights is not None and weights.requires_grad:
        raise InvalidInput(
            f"feature {feature!r}: per_sample_weights require a gradient, which the service doesn't give; detach() them"
        )
    if weights is not None and weights.shape != _shape(ids):
        raise InvalidInput(
            f"feature {feature!r}: per_sample_weights have the shape {list(weights.shape)}, and the ids "
            f"{list(_shape(ids))}; give a weight an id"
        )
    lengths_B = _lengths(feature, _shape(ids), offsets, include_last_offset)
    return FeatureBatch.of(feature, (_flat(ids), lengths_B, None if weights is None else _flat(weights)))


def _lengths(
    feature: str, shape: Sequence[int], offsets: Tensor | None, include_last_offset: bool
) -> NDArray[np.int64]:
    """int64 [B]: ids of each bag."""
    if len(shape) == 2 and offsets is None:
        return np.full(shape[0], shape[1])
    if len(shape) != 1 or offsets is None or offsets.dim() != 1 or offsets.is_floating_point():
        found = "no offsets" if offsets is None else f"offsets {list(offsets.shape)} of {offsets.dtype}"
        raise InvalidInput(
            f"feature {feature!r}: give ids [B, L] alone, or ids [N] with offsets [B] of integers, not ids "
            f"{list(shape)} with {found}"
        )
    starts_B = offsets.cpu().numpy().astype(np.int64)
    bounds = starts_B if include_last_offset else np.append(starts_B, shape[0])
    if not len(bounds) or bounds[0] != 0 or bounds[-1] != shape[0] or (np.diff(bounds) < 0).any():
        raise InvalidInput(
            f"feature {feature!r}: offsets must begin with 0, not descend, and "
            f"{'end with' if include_last_offset else 'not pass'} the number of ids, {shape[0]:,}"
        )
    return np.diff(bounds)


def _shape(ids: Ids) -> Sequence[int]:
    return ids.shape if isinstance(ids, Tensor) else (len(ids),)


def _flat(numbers: Ids) -> NDArray[Any] | Sequence[str]:
    """A copy: a loader may fill the tensor anew before gradients are sent for what is in it now."""
    return numbers.detach().to("cpu", copy=True).reshape(-1).numpy() if isinstance(numbers, Tensor) else list(numbers)


def parts(batch: FeatureBatch) -> tuple[Any, Any, Any]:
    """As the client takes it: ids, lengths, weights."""
    return batch.ids, batch.lengths, batch.weights


def same(one: FeatureBatch, other: FeatureBatch) -> bool:
    """Whether they ask for the same vectors."""
    return all(np.array_equal(*pair) for pair in zip(parts(one), parts(other), strict=True))


def joined(batches: Sequence[FeatureBatch]) -> FeatureBatch:
    """The batches of one feature as one, their examples one after the other.

    Raises:
        InvalidInput: some have strings for ids, and others integers.
    """
    if len(batches) == 1:
        return batches[0]
    feature, integers = batches[0].feature, [isinstance(batch.ids, np.ndarray) for batch in batches]
    if any(integers) != all(integers):
        raise InvalidInput(f"feature {feature!r}: the ids of one backward pass are all strings or all integers")
    lengths = [batch.lengths for batch in batches if batch.lengths is not None]
    weights = [np.ones(len(batch.ids)) if batch.weights is None else batch.weights for batch in batches]
    return FeatureBatch.of(
        feature,
        (
            np.concatenate([batch.ids for batch in batches]) if any(integers) else _chained(batches),
            np.concatenate(lengths) if lengths else None,
            np.concatenate(weights) if any(batch.weights is not None for batch in batches) else None,
        ),
    )


def _chained(batches: Sequence[FeatureBatch]) -> tuple[str, ...]:
    return tuple(key for batch in batches for key in batch.ids)
