"""Raw ids → rows: pinned for ever, legal at every edge, fair, and signed so that collisions cancel."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scenario import collection

from embershard.config import TableSpec
from embershard.errors import InvalidInput
from embershard.ids import rows_of
from embershard.types import FeatureBatch

EDGES = [0, 1, -1, 2**31 - 1, 2**31, 2**31 + 1, -(2**31) - 1, 2**63 - 1, -(2**63)]


def table(rows: int = 1000, **ids: object) -> TableSpec:
    return collection([{"name": "t", "rows": rows, "dim": 4, "ids": ids}]).tables[0]


def rows(of: TableSpec, ids: object, seed: int = 7) -> list[list[int]]:
    return rows_of(of, seed, FeatureBatch.of("t", ids)).rows_M.tolist()


def test_hashes_are_the_same_on_every_machine_for_ever() -> None:
    mapped = rows_of(table(kind="hashed", hashes=2, signed=True), 7, FeatureBatch.of("t", EDGES))
    assert mapped.rows_M.tolist() == PINNED_ROWS
    assert mapped.signs_nK is not None
    assert mapped.signs_nK.tolist() == PINNED_SIGNS
    assert rows(table(kind="hashed", hashes=2), ["", "a", "ü", "90210", "a" * 1000]) == PINNED_STRINGS


PINNED_ROWS = [[526, 383], [690, 273], [196, 710], [811, 689], [134, 86], [697, 72], [795, 869], [168, 580], [167, 814]]
PINNED_SIGNS = [[-1, 1], [-1, -1], [1, -1], [-1, -1], [-1, 1], [-1, -1], [1, 1], [1, -1], [1, -1]]
PINNED_STRINGS = [[116, 227], [485, 375], [196, 237], [713, 16], [544, 601]]


def test_a_uint64_is_the_int64_of_the_same_bits() -> None:
    hashed = table(kind="hashed", hashes=3)
    assert rows(hashed, np.array([2**64 - 1, 2**63], np.uint64)) == rows(hashed, [-1, -(2**63)])


def test_hashes_depend_on_the_seed_and_on_the_table() -> None:
    here, other = table(kind="hashed"), collection([{"name": "u", "rows": 1000, "dim": 4, "ids": {"kind": "hashed"}}])
    ids = list(range(100))
    assert rows(here, ids, seed=7) != rows(here, ids, seed=8)
    assert rows(here, ids) != rows(other.tables[0], ids)


@given(st.lists(st.integers(-(2**63), 2**63 - 1)), st.integers(1, 2**40), st.integers(1, 8))
def test_every_int64_has_rows_of_the_table(ids: list[int], size: int, hashes: int) -> None:
    of = table(rows=size, kind="hashed", hashes=min(hashes, size))
    mapped = rows_of(of, 7, FeatureBatch.of("t", np.array(ids, np.int64)))
    assert mapped.rows_nK.shape == (len(ids), of.ids.hashes)  # type: ignore[union-attr]  # they are hashed
    assert ((mapped.rows_nK >= 0) & (mapped.rows_nK < size)).all()


@given(st.lists(st.text()))
def test_every_string_has_rows_and_equal_strings_have_equal_rows(keys: list[str]) -> None:
    of = table(kind="hashed", hashes=2)
    together = rows(of, keys)
    assert together == [rows(of, [key])[0] for key in keys]


def test_batch_equals_one_by_one() -> None:
    of = table(kind="hashed", hashes=2, signed=True)
    assert rows(of, EDGES) == [rows(of, [edge])[0] for edge in EDGES]


def test_buckets_and_signs_are_fair_and_independent() -> None:
    mapped = rows_of(table(rows=64, kind="hashed", hashes=2, signed=True), 7, FeatureBatch.of("t", np.arange(200_000)))
    assert mapped.signs_nK is not None
    for k in range(2):
        counts = np.bincount(mapped.rows_nK[:, k], minlength=64)
        chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
        assert chi_square < 130  # 63 degrees of freedom: beyond this once in a million
        assert abs(mapped.signs_nK[:, k].mean()) < 0.012
        by_bucket = np.bincount(mapped.rows_nK[:, k], mapped.signs_nK[:, k], minlength=64) / counts
        assert np.abs(by_bucket).max() < 0.1
    pairs = np.bincount(mapped.rows_nK[:, 0] * 64 + mapped.rows_nK[:, 1], minlength=64 * 64)
    assert ((pairs - pairs.mean()) ** 2 / pairs.mean()).sum() < 4095 + 6 * np.sqrt(2 * 4095)


@pytest.mark.parametrize("signed", [True, False])
def test_the_inner_product_of_two_ids_in_one_bucket_is_zero_on_average_only_if_signed(signed: bool) -> None:
    mapped = rows_of(table(rows=1, kind="hashed", signed=signed), 7, FeatureBatch.of("t", np.arange(2000)))
    signs_N = np.ones(2000) if mapped.signs_nK is None else mapped.signs_nK[:, 0]
    mean_product = np.mean(signs_N[::2] * signs_N[1::2])
    assert abs(mean_product) < 0.1 if signed else mean_product == 1


@pytest.mark.parametrize("bad", [10, 2**31 - 1, 2**31, 2**31 + 1, 2**63 - 1, -1, -(2**63)])
def test_a_direct_id_out_of_range_is_named_with_its_place(bad: int) -> None:
    with pytest.raises(InvalidInput, match=rf"feature 't': ids\[2\] = {bad} is out of range.* rows 0 to 9"):
        rows(table(rows=10), [0, 9, bad, 99])


def test_the_last_row_of_a_huge_table_is_legal_and_the_next_is_not() -> None:
    huge = table(rows=2**40)
    assert rows(huge, [2**31 - 1, 2**31, 2**31 + 1, 2**40 - 1]) == [[2**31 - 1], [2**31], [2**31 + 1], [2**40 - 1]]
    with pytest.raises(InvalidInput, match="out of range"):
        rows(huge, [2**40])


def test_the_padding_id_may_lie_outside_the_table() -> None:
    mapped = rows_of(table(rows=10, padding=-1), 7, FeatureBatch.of("t", [-1, 3, -1]))
    assert mapped.rows_M.tolist() == [[3]]
    assert mapped.kept_N is not None
    assert mapped.kept_N.tolist() == [False, True, False]


def test_a_direct_table_refuses_strings_and_says_which_tables_take_them() -> None:
    with pytest.raises(InvalidInput, match=r"takes integer ids .* not strings; a table of hashed ids takes both"):
        rows(table(), ["7"])
