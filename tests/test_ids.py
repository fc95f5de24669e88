"""Raw ids → rows: pinned for ever, legal at every edge, fair, and signed so that collisions cancel."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.scenario import collection

from embershard.config import TableSpec
from embershard.errors import InvalidInput
from embershard.ids import rows_of
from embershard.types import FeatureBatch

Array = np.ndarray[Any, Any]
EDGES = [0, 1, -1, 2**31 - 1, 2**31, 2**31 + 1, -(2**31) - 1, 2**63 - 1, -(2**63)]


def table(rows: int = 1000, **ids: object) -> TableSpec:
    return collection([{"name": "t", "rows": rows, "dim": 4, "ids": ids}]).tables[0]


def mapped_nK(of: TableSpec, ids: object, seed: int = 7) -> tuple[Array, Array]:
    """Rows and signs, k an id."""
    found = rows_of(of, seed, FeatureBatch.of("t", ids))
    signs_M = np.ones(len(found.rows_M)) if found.signs_M is None else found.signs_M
    return found.rows_M.reshape(-1, of.hashes), signs_M.reshape(-1, of.hashes)


def rows(of: TableSpec, ids: object, seed: int = 7) -> list[list[int]]:
    return mapped_nK(of, ids, seed)[0].tolist()


def test_hashes_are_the_same_on_every_machine_for_ever() -> None:
    rows_nK, signs_nK = mapped_nK(table(kind="hashed", hashes=2, signed=True), EDGES)
    assert rows_nK.tolist() == PINNED_ROWS
    assert signs_nK.tolist() == PINNED_SIGNS
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
    rows_nK, _ = mapped_nK(of, np.array(ids, np.int64))
    assert rows_nK.shape == (len(ids), of.hashes)
    assert ((rows_nK >= 0) & (rows_nK < size)).all()


@given(st.lists(st.text()))
def test_every_string_has_rows_and_equal_strings_have_equal_rows(keys: list[str]) -> None:
    of = table(kind="hashed", hashes=2)
    together = rows(of, keys)
    assert together == [rows(of, [key])[0] for key in keys]


def test_batch_equals_one_by_one() -> None:
    of = table(kind="hashed", hashes=2, signed=True)
    assert rows(of, EDGES) == [rows(of, [edge])[0] for edge in EDGES]


def test_buckets_and_signs_are_fair_and_independent() -> None:
    rows_nK, signs_nK = mapped_nK(table(rows=64, kind="hashed", hashes=2, signed=True), np.arange(200_000))
    for k in range(2):
        counts = np.bincount(rows_nK[:, k], minlength=64)
        chi_square = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
        assert chi_square < 130  # 63 degrees of freedom: beyond this once in a million
        assert abs(signs_nK[:, k].mean()) < 0.012
        by_bucket = np.bincount(rows_nK[:, k], signs_nK[:, k], minlength=64) / counts
        assert np.abs(by_bucket).max() < 0.1
    pairs = np.bincount(rows_nK[:, 0] * 64 + rows_nK[:, 1], minlength=64 * 64)
    assert ((pairs - pairs.mean()) ** 2 / pairs.mean()).sum() < 4095 + 6 * np.sqrt(2 * 4095)


@pytest.mark.parametrize("kind", ["hashed", "vocabulary"])
@pytest.mark.parametrize("signed", [True, False])
def test_the_inner_product_of_two_ids_in_one_bucket_is_zero_on_average_only_if_signed(signed: bool, kind: str) -> None:
    """Both vectors are the same row v, each with its sign: E⟨s·v, t·v⟩ = E[s·t]·|v|², Weinberger et al. 2009."""
    vocabulary = {"fallback_rows": 16, "hashes": 1} if kind == "vocabulary" else {}
    of = table(rows=16 if kind == "hashed" else 20, kind=kind, signed=signed, **vocabulary)
    row_of_16D = np.random.default_rng(0).normal(size=(16, 8))
    rows_nK, signs_nK = mapped_nK(of, np.arange(8000))
    products = []
    for bucket in range(16):
        vectors = signs_nK[rows_nK[:, 0] == bucket] * row_of_16D[bucket] / np.linalg.norm(row_of_16D[bucket])
        pairs = len(vectors) // 2
        products += (vectors[:pairs] * vectors[pairs : 2 * pairs]).sum(axis=1).tolist()
    assert len(products) > 3900
    assert abs(np.mean(products)) < 0.06 if signed else np.allclose(products, 1)


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
    assert mapped.rows_M.tolist() == [3]
    assert mapped.kept_N is not None
    assert mapped.kept_N.tolist() == [False, True, False]


def test_a_direct_table_refuses_strings_and_says_which_tables_take_them() -> None:
    with pytest.raises(InvalidInput, match=r"takes integer ids .* not strings; a table of hashed or voc.* takes both"):
        rows(table(), ["7"])


def test_a_direct_table_with_a_list_of_names_takes_both(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("the\nof\nking\n")
    named = table(rows=4, names=tmp_path / "words.txt")
    assert rows(named, ["king", "the"]) == [[2], [0]]
    assert rows(named, [3]) == [[3]]
    with pytest.raises(InvalidInput, match=r"ids\[1\] = 'queen' isn't in the list of names of table 't'"):
        rows(named, ["of", "queen"])


@given(st.lists(st.integers(-5, 5), max_size=30), st.integers(1, 3), st.booleans())
def test_an_id_that_owns_a_row_has_it_alone_and_all_others_keep_theirs(
    ids: list[int], hashes: int, signed: bool
) -> None:
    of = table(rows=20, kind="vocabulary", fallback_rows=10, hashes=hashes, signed=signed, padding=-5)
    before = rows_of(of, 7, FeatureBatch.of("t", np.array(ids, np.int64)))
    assert before.keys is not None
    owners = {1: 4, 2: 0, -3: 9}
    slots_n = np.array([owners.get(key, -1) for key in before.keys.keys_n.tolist()], np.int64)
    after = before.settled(slots_n, 10)
    counts_n = np.broadcast_to(after.rows_per_id, len(slots_n)).tolist()
    signs_M = np.ones(len(after.rows_M)) if after.signs_M is None else after.signs_M
    old_signs_M = np.ones(len(before.rows_M)) if before.signs_M is None else before.signs_M
    start = 0
    for at, (slot, count) in enumerate(zip(slots_n.tolist(), counts_n, strict=True)):
        here, old = slice(start, start + count), slice(at * hashes, (at + 1) * hashes)
        expected = ([10 + slot], [1.0]) if slot >= 0 else (before.rows_M[old].tolist(), old_signs_M[old].tolist())
        assert (after.rows_M[here].tolist(), signs_M[here].tolist()) == expected
        start += count
    assert start == len(after.rows_M)
