"""The few shapes of data that cross module borders; numpy only.

Shape suffixes of array names, here and everywhere:

    N  ids of one feature in a batch        B  examples (bags) in a batch
    M  rows to gather                       D  dim of a table
    K  hashes per id
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from embershard.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

MAX_IDS: Final = 2**31 - 1
"""Ids of one feature in one batch: lengths are int32, so that is what they may sum to."""


class Provenance(IntEnum):
    """Where the vector of an id came from; the values of the wire's `Provenance`."""

    OWN_ROW = 1
    FALLBACK = 2
    PADDING = 3
    UNTRAINED = 4


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FeatureBatch:
    """The ids of one feature for a batch of examples, checked on construction.

    Raises:
        InvalidInput: lengths that are negative or don't add up, weights that are not finite or not one per id.
    """

    feature: str
    """The feature's name."""
    ids: NDArray[np.int64] | Sequence[str]
    """int64 [N], or N strings."""
    lengths: NDArray[np.int32] | None = None
    """int32 [B], ids per example; None: one id per example."""
    weights: NDArray[np.float32] | None = None
    """float32 [N]; None: all 1."""

    def __post_init__(self) -> None:
        if len(self.ids) > MAX_IDS:
            raise InvalidInput(f"feature {self.feature!r}: {len(self.ids):,} ids are more than {MAX_IDS:,}")
        if self.lengths is not None:
            self._check_lengths(self.lengths)
        if self.weights is not None:
            self._check_weights(self.weights)

    def _check_lengths(self, lengths_B: NDArray[np.int32]) -> None:
        if lengths_B.size and lengths_B.min() < 0:
            at = int(np.argmax(lengths_B < 0))
            raise InvalidInput(f"feature {self.feature!r}: lengths[{at}] = {lengths_B[at]} is negative")
        total = int(lengths_B.sum(dtype=np.int64))
        if total != len(self.ids):
            raise InvalidInput(
                f"feature {self.feature!r}: lengths add up to {total:,}, but there are {len(self.ids):,} ids"
            )

    def _check_weights(self, weights_N: NDArray[np.float32]) -> None:
        if len(weights_N) != len(self.ids):
            raise InvalidInput(f"feature {self.feature!r}: {len(weights_N):,} weights for {len(self.ids):,} ids")
        check_finite(weights_N, f"feature {self.feature!r}: weights")

    @classmethod
    def of(cls, feature: str, value: object) -> FeatureBatch:
        """Takes what a user has at hand: `ids`, `(ids, lengths)` or `(ids, lengths, weights)`.

        Ids are any array-like of int64 or uint64 (by two's complement), or a sequence of strings.
        `lengths` may be None: one id per example.
        """
        ids, lengths, weights = value, None, None
        if isinstance(value, tuple):
            if not 2 <= len(value) <= 3 or isinstance(value[0], (int, str)):
                raise InvalidInput(
                    f"feature {feature!r}: a tuple is (ids, lengths) or (ids, lengths, weights); give ids alone as a "
                    "list or an array"
                )
            ids, lengths, weights = (*value, None)[:3]
        return cls(
            feature=feature,
            ids=_ids(feature, ids),
            lengths=None if lengths is None else _integers(feature, "lengths", lengths, np.int32),
            weights=None if weights is None else _floats(f"feature {feature!r}: weights", weights, 1),
        )

    def shown(self, at: int) -> str:
        """An id for a message."""
        return repr(self.ids[at]) if isinstance(self.ids[at], str) else str(self.ids[at])

    @property
    def examples(self) -> int:
        """B: the number of examples."""
        return len(self.ids) if self.lengths is None else len(self.lengths)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class FeatureUpdate:
    """One feature's share of an update: gradients, values or parents, one of them.

    Raises:
        InvalidInput: none or several given, numbers that are not finite, or parents that aren't one bag an id.
    """

    batch: FeatureBatch
    """The ids that are changed."""
    gradients: NDArray[np.float32] | None = None
    """float32 [N or B, D], the shape that a lookup of the same batch answers."""
    values: NDArray[np.float32] | None = None
    """float32 [N, D]: overwrite the rows of these ids."""
    parents: FeatureBatch | None = None
    """N bags of ids: start the row of each id anew, as the mean of its parents' rows."""

    def __post_init__(self) -> None:
        where = f"feature {self.batch.feature!r}"
        if sum(change is not None for change in (self.gradients, self.values, self.parents)) != 1:
            raise InvalidInput(f"{where}: give gradients, values or parents, one of the three")
        for name in ("gradients", "values"):
            if (given := getattr(self, name)) is not None:
                check_finite(given, f"{where}: {name}")
        if self.parents is not None:
            self._check_parents(where, self.parents)

    def _check_parents(self, where: str, parents: FeatureBatch) -> None:
        if parents.feature != self.batch.feature:
            raise InvalidInput(f"{where}: parents are ids of the same feature, not of {parents.feature!r}")
        if parents.weights is not None:
            raise InvalidInput(f"{where}: parents count alike; leave their weights out")
        if parents.examples != len(self.batch.ids):
            raise InvalidInput(f"{where}: {parents.examples:,} bags of parents for {len(self.batch.ids):,} ids")
        if parents.lengths is not None and parents.lengths.size and parents.lengths.min() == 0:
            raise InvalidInput(f"{where}: ids[{int(np.argmin(parents.lengths))}] has no parents; give it one at least")


class Rows(dict[str, "NDArray[np.floating[Any]]"]):
    """What a lookup answers: {feature: [N or B, D]}, with the version that was read.

    The arrays are views of the received bytes, so they are read-only: `.copy()` one to change it. Those that have
    travelled as int8 are arrays of their own.
    """

    version: int
    """The updates up to and including this one were seen, and no other."""
    provenance: dict[str, NDArray[np.uint8]]
    """{feature: uint8 [N]}, see `Provenance`; empty unless asked for."""
    updates: dict[str, NDArray[np.int32]]
    """{feature: int32 [N]}: updates that have moved the rows of an id, the one that was moved least; likewise."""
    sightings: dict[str, NDArray[np.int32]]
    """{feature: int32 [N]}: how often updates have named ids with its rows, the one that was named least; likewise."""

    def __init__(
        self,
        vectors: Mapping[str, NDArray[np.floating[Any]]],
        *,
        version: int,
        provenance: Mapping[str, NDArray[np.uint8]] | None = None,
        updates: Mapping[str, NDArray[np.int32]] | None = None,
        sightings: Mapping[str, NDArray[np.int32]] | None = None,
    ) -> None:
        super().__init__(vectors)
        self.version = version
        self.provenance = dict(provenance or {})
        self.updates, self.sightings = dict(updates or {}), dict(sightings or {})

    def __repr__(self) -> str:
        return f"Rows({super().__repr__()}, version={self.version})"


def updates_of(
    ids: Mapping[str, object],
    *,
    gradients: Mapping[str, object] | None = None,
    values: Mapping[str, object] | None = None,
    parents: Mapping[str, object] | None = None,
) -> list[FeatureUpdate]:
    """Pairs `{feature: ids}` with {feature: gradients}, {feature: values} or {feature: parents}, every feature once."""
    changes = {"gradients": gradients, "values": values, "parents": parents}
    for what, mapping in (("ids", ids), *changes.items()):
        check_mapping(mapping if mapping is not None else {}, what)
    given = {feature for change in changes.values() for feature in change or ()}
    if unpaired := given.symmetric_difference(ids):
        raise InvalidInput(f"ids and changes must name the same features; only one side has {sorted(unpaired)}")

    def floats(name: str, feature: str) -> NDArray[np.float32] | None:
        given = (changes[name] or {}).get(feature)
        return None if given is None else _floats(f"feature {feature!r}: {name}", given, 2)

    return [
        FeatureUpdate(
            batch=FeatureBatch.of(feature, of_feature),
            gradients=floats("gradients", feature),
            values=floats("values", feature),
            parents=FeatureBatch.of(feature, parents[feature]) if parents and feature in parents else None,
        )
        for feature, of_feature in ids.items()
    ]


def check_mapping(given: object, what: str) -> None:
    """Raises InvalidInput unless it is {feature: …}."""
    if not isinstance(given, Mapping):
        raise InvalidInput(f"{what} must be a mapping {{feature: …}}, not {type(given).__name__}")


def check_finite(numbers: NDArray[np.floating[Any]], what: str) -> None:
    """Raises InvalidInput, naming the first place where a number is NaN or infinite."""
    # One pass and no temporary: a sum is finite unless a number isn't, or the sum itself overflows.
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(numbers.sum(dtype=np.float32)):
            return
    bad = ~np.isfinite(numbers)
    if bad.any():
        at = tuple(int(index) for index in np.argwhere(bad)[0])
        raise InvalidInput(f"{what}[{', '.join(map(str, at))}] is {numbers[at]}; numbers must be finite")


def _ids(feature: str, ids: object) -> NDArray[np.int64] | Sequence[str]:
    if isinstance(ids, (str, bytes)):
        raise InvalidInput(f"feature {feature!r}: give a sequence of ids, not one {type(ids).__name__}")
    if isinstance(ids, np.ndarray) and ids.dtype.kind in "USO" and ids.ndim == 1:
        ids = ids.tolist()
    if isinstance(ids, (list, tuple)) and any(isinstance(key, str) for key in ids):
        return _keys(feature, ids)
    return _integers(feature, "ids", ids, np.int64)


def _keys(feature: str, keys: Iterable[object]) -> Sequence[str]:
    strings = tuple(keys)
    for at, key in enumerate(strings):
        if not isinstance(key, str):
            raise InvalidInput(f"feature {feature!r}: ids[{at}] is {key!r}; ids are all strings or all integers")
    return strings  # type: ignore[return-value]  # the loop above has proved it


def _integers(feature: str, what: str, numbers: object, dtype: type[np.int32] | type[np.int64]) -> NDArray[Any]:
    try:
        array = np.asarray(numbers)
    except (TypeError, ValueError) as error:  # ragged lists, for one
        raise InvalidInput(f"feature {feature!r}: {what} are no array: {error}") from error
    if dtype is np.int64 and array.dtype.kind in "fO" and isinstance(numbers, (list, tuple)):
        array = _wide_integers(numbers, array)
    if array.size == 0:
        return np.empty(0, dtype)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidInput(
            f"feature {feature!r}: {what} must be a one-dimensional array of integers"
            f"{' or a list of strings' if what == 'ids' else ''}, not {array.dtype} of shape {array.shape}"
        )
    if array.dtype == np.uint64 and dtype is np.int64:
        return np.ascontiguousarray(array).view(np.int64)
    bounds = np.iinfo(dtype)
    if array.min() < bounds.min or array.max() > bounds.max:
        raise InvalidInput(f"feature {feature!r}: {what} do not fit into {bounds.dtype}")
    return np.ascontiguousarray(array, dtype)


def _wide_integers(numbers: Sequence[object], array: NDArray[Any]) -> NDArray[Any]:
    """Python integers that no one dtype of numpy holds, as of int64 and uint64 together; else what it was."""
    if not all(type(number) is int and -(2**63) <= number < 2**64 for number in numbers):
        return array
    return np.array([number & (2**64 - 1) for number in numbers], np.uint64)  # type: ignore[operator]  # all are int


def _floats(what: str, numbers: object, dimensions: int) -> NDArray[np.float32]:
    try:
        with np.errstate(over="ignore"):  # an overflow becomes infinite, which the finite check then names
            array = np.ascontiguousarray(numbers, np.float32)
    except (TypeError, ValueError, RuntimeError) as error:  # the last: a torch tensor that needs gradients
        raise InvalidInput(f"{what} must be numbers: {error}") from error
    if array.ndim != dimensions:
        raise InvalidInput(f"{what} must have {dimensions} dimension(s), not the shape {array.shape}")
    return array
