"""Raw ids → row numbers and signs: the same on every machine for ever; numpy only.

Hashing is a fixed, seeded 64-bit mix: SplitMix64's finaliser (Steele, Lea and Flood 2014), applied twice. Strings are
hashed to 64 bits by xxh64 and then mixed like any int64. `tests/test_ids.py` pins the values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import xxhash

from embershard.config import HashedIds, TableSpec
from embershard.errors import InvalidInput

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.types import FeatureBatch

_GOLDEN = 0x9E3779B97F4A7C15
_SIGN_SALT = 0xD1B54A32D192ED03
_MASK = 2**64 - 1


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class IdRows:
    """The rows of a batch's ids, padding ids left out; n ids are left."""

    rows_nK: NDArray[np.int64]
    """The K rows of every id, 0 ≤ row < the table's rows."""
    signs_nK: NDArray[np.float32] | None
    """1 or -1 for each row; None: all 1."""
    kept_N: NDArray[np.bool_] | None
    """False where the batch has the padding id; None: nowhere."""
    own: bool
    """Whether no other id has these rows."""


def rows_of(table: TableSpec, seed: int, batch: FeatureBatch) -> IdRows:
    """Maps the ids of a batch to rows of its table; `seed` is the collection's.

    Raises:
        InvalidInput: an id out of range, or strings where the table takes only integers.
    """
    kept_N = _kept(table.ids.padding, batch.ids)
    if isinstance(table.ids, HashedIds):
        hashed_N = _as_uint64(table, seed, batch.ids)
        rows_NK, signs_NK = _hash(table.ids, table.rows, table_seed(table.name, seed), hashed_N)
    else:
        rows_NK, signs_NK = _direct(table, batch, kept_N)[:, None], None
    if kept_N is not None:
        rows_NK = rows_NK[kept_N]
        signs_NK = None if signs_NK is None else signs_NK[kept_N]
    return IdRows(rows_nK=rows_NK, signs_nK=signs_NK, kept_N=kept_N, own=not isinstance(table.ids, HashedIds))


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


def _direct(table: TableSpec, batch: FeatureBatch, kept_N: NDArray[np.bool_] | None) -> NDArray[np.int64]:
    ids_N = batch.ids
    if not isinstance(ids_N, np.ndarray):
        raise InvalidInput(
            f"feature {batch.feature!r}: table {table.name!r} takes integer ids (its ids are direct), not strings; "
            "a table of hashed ids takes both"
        )
    # As unsigned numbers, negative ids are the largest, so that one comparison finds both kinds of bad id.
    bad_N = ids_N.view(np.uint64) >= np.uint64(table.rows)
    if kept_N is not None:
        bad_N &= kept_N
    if bad_N.any():
        at = int(np.argmax(bad_N))
        raise InvalidInput(
            f"feature {batch.feature!r}: ids[{at}] = {ids_N[at]} is out of range; "
            f"table {table.name!r} has rows 0 to {table.rows - 1}"
        )
    return ids_N


def _as_uint64(table: TableSpec, seed: int, ids: NDArray[np.int64] | Sequence[str]) -> NDArray[np.uint64]:
    if isinstance(ids, np.ndarray):
        return ids.view(np.uint64)
    of_string = xxhash.xxh64_intdigest
    salt = table_seed(table.name, seed)
    return np.fromiter((of_string(key.encode(), salt) for key in ids), np.uint64, len(ids))


def _hash(
    kind: HashedIds, rows: int, salt: int, ids_N: NDArray[np.uint64]
) -> tuple[NDArray[np.int64], NDArray[np.float32] | None]:
    """The k buckets of every id, and their signs if the table has signs."""
    seeds_K = mix64(np.array([(salt + _GOLDEN * (k + 1)) & _MASK for k in range(kind.hashes)], np.uint64))
    mixed_NK = mix64(mix64(ids_N)[:, None] ^ seeds_K)
    rows_NK = (mixed_NK % np.uint64(rows)).view(np.int64)
    if not kind.signed:
        return rows_NK, None
    negative_NK = mix64(mixed_NK ^ np.uint64(_SIGN_SALT)) >> np.uint64(63)
    return rows_NK, 1 - 2 * negative_NK.astype(np.float32)
