"""Raw ids → row numbers and signs: the same on every machine for ever; numpy only.

Hashing is a fixed, seeded 64-bit mix: SplitMix64's finaliser (Steele, Lea and Flood 2014), applied twice. Strings are
hashed to 64 bits by xxh64 and then mixed like any int64. `tests/test_ids.py` pins the values.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from embershard.config import DirectIds, HashedIds, TableSpec, VocabularyIds
from embershard.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.types import FeatureBatch

_GOLDEN = 0x9E3779B97F4A7C15
_SIGN_SALT = 0xD1B54A32D192ED03
_MASK = 2**64 - 1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Keys:
    """Ids as a vocabulary knows them."""

    keys_n: NDArray[np.int64]
    """int64 [n]: an integer id is its own key; a string's is its hash."""
    names: Sequence[str] | None
    """The strings themselves, as two of them may share a hash; None for integers."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class IdRows:
    """The rows of a batch's ids, padding ids left out; n ids are left, with M rows."""

    rows_M: NDArray[np.int64]
    """The rows of every id, ids in order, those of one id together; 0 ≤ row < the table's rows."""
    signs_M: NDArray[np.float32] | None
    """1 or -1 for each row; None: all 1."""
    rows_per_id: int | NDArray[np.int64]
    """How many rows an id has, or int64 [n]."""
    own: bool | NDArray[np.bool_]
    """Whether no other id has these rows, or bool [n]."""
    kept_N: NDArray[np.bool_] | None
    """False where the batch has the padding id; None: nowhere."""
    keys: Keys | None = None
    """Where a vocabulary may still give ids a row of their own."""

    @property
    def one_row_each(self) -> bool:
        """Whether every id has one row."""
        return isinstance(self.rows_per_id, int) and self.rows_per_id == 1

    def settled(self, slots_n: NDArray[np.int64], first_row: int) -> IdRows:
        """The same where ids with a slot (0 or more) have the row `first_row` + slot in place of their k rows."""
        own_n = slots_n >= 0
        if own_n.all():
            return replace(self, rows_M=slots_n + first_row, signs_M=None, rows_per_id=1, own=True, keys=None)
        if not own_n.any():
            return replace(self, keys=None)
        shape = len(slots_n), -1
        rows_nK = self.rows_M.reshape(shape).copy()
        rows_nK[own_n, 0] = slots_n[own_n] + first_row
        used_nK = ~own_n[:, None] | (np.arange(rows_nK.shape[1]) == 0)
        signs_M = None
        if self.signs_M is not None:
            signs_nK = self.signs_M.reshape(shape).copy()
            signs_nK[own_n, 0] = 1
            signs_M = signs_nK[used_nK]
        rows_n = 1 if rows_nK.shape[1] == 1 else used_nK.sum(axis=1)
        return replace(self, rows_M=rows_nK[used_nK], signs_M=signs_M, rows_per_id=rows_n, own=own_n, keys=None)


def rows_of(table: TableSpec, seed: int, batch: FeatureBatch) -> IdRows:
    """Maps the ids of a batch to rows of its table; `seed` is the collection's.

    Of a vocabulary these are the rows that an id has as long as it owns none.

    Raises:
        InvalidInput: an id out of range, or strings where the table takes only integers.
    """
    if isinstance(table.ids, DirectIds):
        rows_N = batch.ids if isinstance(batch.ids, np.ndarray) else _named(table, table.ids, batch.feature, batch.ids)
        kept_N = _kept(table.ids.padding, rows_N)
        _check_range(table, batch.feature, rows_N, kept_N)
        return IdRows(
            rows_M=rows_N if kept_N is None else rows_N[kept_N], signs_M=None, rows_per_id=1, own=True, kept_N=kept_N
        )
    kept_N = _kept(table.ids.padding, batch.ids)
    hashed_n = uint64_of(table, seed, batch.ids)
    names = None if isinstance(batch.ids, np.ndarray) else batch.ids
    if kept_N is not None:
        hashed_n = hashed_n[kept_N]
        names = None if names is None else tuple(itertools.compress(names, kept_N))
    return hashed_rows(table, seed, Keys(keys_n=hashed_n.view(np.int64), names=names), kept_N)


def hashed_rows(table: TableSpec, seed: int, keys: Keys, kept_N: NDArray[np.bool_] | None = None) -> IdRows:
    """The k rows of ids that own none, of a table of hashed or vocabulary ids."""
    assert not isinstance(table.ids, DirectIds)
    vocabulary = isinstance(table.ids, VocabularyIds)
    buckets = table.ids.fallback_rows if isinstance(table.ids, VocabularyIds) else table.rows
    rows_nK, signs_nK = _hash(table.ids, buckets, table_seed(table.name, seed), keys.keys_n.view(np.uint64))
    return IdRows(
        rows_M=rows_nK.reshape(-1),
        signs_M=None if signs_nK is None else signs_nK.reshape(-1),
        rows_per_id=table.ids.hashes,
        own=False,
        kept_N=kept_N,
        keys=keys if vocabulary else None,
    )


def table_seed(table: str, seed: int) -> int:
    """A 64-bit seed for one table of a collection."""
    return xxhash.xxh64_intdigest(table.encode(), seed)


def mix64(numbers: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """SplitMix64's finaliser: a bijection of 64-bit numbers that looks random."""
    mixed = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def _kept(padding: int | str | None, ids: NDArray[np.int64] | Sequence[str]) -> NDArray[np.bool_] | None:
    if isinstance(ids, np.ndarray) == isinstance(padding, str) or padding is None:
        return None
    kept = ids != padding if isinstance(ids, np.ndarray) else np.array([key != padding for key in ids], bool)
    return None if kept.all() else kept


def _check_range(table: TableSpec, feature: str, ids_N: NDArray[np.int64], kept_N: NDArray[np.bool_] | None) -> None:
    # As unsigned numbers, negative ids are the largest, so that one comparison finds both kinds of bad id.
    bad_N = ids_N.view(np.uint64) >= np.uint64(table.rows)
    if kept_N is not None:
        bad_N &= kept_N
    if np.count_nonzero(bad_N):  # a third of what `any` costs for few ids
        at = int(np.argmax(bad_N))
        raise InvalidInput(
            f"feature {feature!r}: ids[{at}] = {ids_N[at]} is out of range; "
            f"table {table.name!r} has rows 0 to {table.rows - 1}"
        )


def _named(table: TableSpec, kind: DirectIds, feature: str, names: Sequence[str]) -> NDArray[np.int64]:
    if kind.names is None:
        raise InvalidInput(
            f"feature {feature!r}: table {table.name!r} takes integer ids (its ids are direct), not strings; "
            "a table of hashed or vocabulary ids takes both, and one of direct ids does with a list of names"
        )
    rows = kind.name_list.rows
    try:
        return np.array([rows[name] for name in names], np.int64)
    except KeyError as error:
        at = names.index(error.args[0])
        raise InvalidInput(
            f"feature {feature!r}: ids[{at}] = {names[at]!r} isn't in the list of names of table {table.name!r}"
        ) from error


def uint64_of(table: TableSpec, seed: int, ids: NDArray[np.int64] | Sequence[str]) -> NDArray[np.uint64]:
    """64 bits that stand for each id: an integer for itself, a string by its hash; `seed` is the collection's."""
    if isinstance(ids, np.ndarray):
        return ids.view(np.uint64)
    of_string = xxhash.xxh64_intdigest
    salt = table_seed(table.name, seed)
    return np.fromiter((of_string(key.encode(), salt) for key in ids), np.uint64, len(ids))


def _hash(
    kind: HashedIds | VocabularyIds, rows: int, salt: int, ids_N: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
    """The k buckets of every id, and their signs if the table has signs."""
    seeds_K = mix64(np.array([(salt + _GOLDEN * (k + 1)) & _MASK for k in range(kind.hashes)], np.uint64))
    mixed_NK = mix64(mix64(ids_N)[:, None] ^ seeds_K)
    rows_NK = (mixed_NK % np.uint64(rows)).view(np.int64)
    if not kind.signed:
        return rows_NK, None
    negative_NK = mix64(mixed_NK ^ np.uint64(_SIGN_SALT)) >> np.uint64(63)
    return rows_NK, 1 - 2 * negative_NK.astype(np.float32)
