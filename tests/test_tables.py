"""What tables do beyond lookups and gradients, on every engine: admit ids, start rows, freeze, grow, count."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.implementation import Array, Implementation
from support.scenario import collection

from embershard.errors import InvalidInput, Overloaded
from embershard.types import FeatureBatch, Provenance, updates_of

pytestmark = pytest.mark.parametrize("implementation", ["local", "torchrec-2", "torchrec-3"], indirect=True)

VOCABULARY = {"kind": "vocabulary", "fallback_rows": 5, "admit_after": 2, "padding": -9}


def build(implementation: Implementation, ids: dict[str, Any] | None = None, **table: Any) -> None:
    """One table `t` of 9 rows of 3 numbers."""
    given = {"name": "t", "rows": 9, "dim": 3, "ids": ids or {}} | table
    implementation.build(collection([given], kind="adagrad", learning_rate=0.1))


def look_up(implementation: Implementation, ids: object) -> Array:
    return implementation.lookup(implementation.on_first([FeatureBatch.of("t", ids)]))[0][0]


def update(implementation: Implementation, ids: object, now_s: int = 0, rank: int = 0, **changes: object) -> None:
    """Gradients of ones unless told otherwise, from one rank."""
    count = len(ids[1]) if isinstance(ids, tuple) else len(ids)  # type: ignore[arg-type]  # both have a length
    changes = changes or {"gradients": np.ones((count, 3))}
    mine = updates_of({"t": ids}, **{kind: {"t": change} for kind, change in changes.items()})  # type: ignore[arg-type]
    implementation.update([mine if r == rank % implementation.size else [] for r in range(implementation.size)], now_s)


def provenance(implementation: Implementation, ids: object) -> list[int]:
    found: list[int] = implementation.provenance(implementation.on_first([FeatureBatch.of("t", ids)]))[0][0].tolist()
    return found


def totals(implementation: Implementation) -> dict[str, int]:
    """Counts of the vocabulary, the same on every rank."""
    found = {tuple(of_rank["t"]["totals"].tolist()) for of_rank in implementation.vocabularies()}
    (one,) = found
    return dict(zip(("admitted", "evicted", "expired", "rejected"), one[-4:], strict=True))


def test_an_admitted_id_starts_from_the_vector_it_was_served_before(implementation: Implementation) -> None:
    build(implementation, VOCABULARY | {"admit_after": 3})
    update(implementation, [7], rank=1)
    update(implementation, [7], rank=2)
    served = look_up(implementation, [7])
    assert provenance(implementation, [7]) == [Provenance.FALLBACK]
    update(implementation, [7], gradients=np.zeros((1, 3)))
    assert provenance(implementation, [7]) == [Provenance.OWN_ROW]
    np.testing.assert_array_equal(look_up(implementation, [7]), served)


def test_lookups_never_admit_and_count_only_if_they_are_told_to(implementation: Implementation) -> None:
    for counted in (False, True):
        build(implementation, VOCABULARY | {"count_lookups": counted})
        for _ in range(3):
            look_up(implementation, [7, 7])
        assert totals(implementation)["admitted"] == 0
        update(implementation, [7])
        assert totals(implementation)["admitted"] == counted


def test_a_row_that_changes_hands_inherits_nothing(implementation: Implementation) -> None:
    build(implementation, VOCABULARY | {"fallback_rows": 8, "admit_after": 1}, counts=True)
    update(implementation, [1])
    update(implementation, [1], gradients=np.full((1, 3), 5.0))
    before = implementation.state()
    assert before["t.sum"][8].all()
    update(implementation, [2, 2, 2], gradients=np.zeros((3, 3)))
    after = implementation.state()
    assert totals(implementation) == {"admitted": 2, "evicted": 1, "expired": 0, "rejected": 0}
    assert not after["t.sum"][8].any()
    assert after["t.updates"][8] == 1
    assert after["t.sightings"][8] == 3
    assert provenance(implementation, [1, 2]) == [Provenance.UNTRAINED, Provenance.OWN_ROW]


def test_an_id_whose_time_is_over_leaves_an_empty_row(implementation: Implementation) -> None:
    build(implementation, VOCABULARY | {"admit_after": 1, "evict": "ttl", "ttl_s": 10}, counts=True)
    update(implementation, [1, 2], now_s=100)
    update(implementation, [2], now_s=109)
    update(implementation, [2], now_s=110)
    assert totals(implementation) == {"admitted": 2, "evicted": 0, "expired": 1, "rejected": 0}
    state = implementation.state()
    for name in ("t.weight", "t.sum", "t.updates", "t.sightings"):
        assert not state[name][5].any()
        assert state[name][6].any()


def test_values_give_an_id_its_row_at_once_or_are_refused_whole(implementation: Implementation) -> None:
    build(implementation, VOCABULARY)
    update(implementation, ["a", "b", "c", "d"], values=np.arange(12).reshape(4, 3))
    np.testing.assert_array_equal(look_up(implementation, ["c"]), [[6, 7, 8]])
    before, counted = implementation.state(), totals(implementation)
    with pytest.raises(Overloaded, match=r"no room for all ids whose rows this update replaces: 4 of 4 rows"):
        update(implementation, ["e", "a", "b", "c", "d"], values=np.zeros((5, 3)))
    for name, array in implementation.state().items():
        np.testing.assert_array_equal(array, before[name])
    assert totals(implementation) == counted
    update(implementation, ["e"], values=np.ones((1, 3)))
    np.testing.assert_array_equal(look_up(implementation, ["e"]), [[1, 1, 1]])


@pytest.mark.parametrize("factor", [None, {"kind": "low_rank", "rank": 2}])
@pytest.mark.parametrize("ids", [{}, VOCABULARY | {"admit_after": 1}], ids=["direct", "vocabulary"])
def test_a_row_may_start_as_the_mean_of_others(
    implementation: Implementation, ids: dict[str, Any], factor: dict[str, Any] | None
) -> None:
    build(implementation, ids, rows=10, **({"factor": factor} if factor else {}))
    update(implementation, [1, 2, 3])
    expected = look_up(implementation, [1, 2, 3])
    parents = ([1, 2, 3], np.array([2, 1], np.int32))
    update(implementation, [4, 5], parents=parents)
    found = look_up(implementation, [4, 5])
    np.testing.assert_allclose(found, [expected[:2].mean(axis=0), expected[2]], rtol=1e-5, atol=1e-7)
    assert provenance(implementation, [4]) == [Provenance.OWN_ROW]


def test_a_parent_keeps_its_row_while_its_child_is_given_one(implementation: Implementation) -> None:
    build(implementation, VOCABULARY | {"admit_after": 1})
    update(implementation, [1, 2, 3, 4])
    update(implementation, [2, 3, 4])
    served = look_up(implementation, [1])
    update(implementation, [5], parents=[1])
    np.testing.assert_array_equal(look_up(implementation, [5, 1]), [served[0], served[0]])
    with pytest.raises(Overloaded):
        update(implementation, [6], parents=([1, 3, 4, 5], [4]))


def test_a_parent_without_a_row_of_its_own_is_refused(implementation: Implementation) -> None:
    build(implementation, VOCABULARY)
    with pytest.raises(InvalidInput, match=r"parents\[0\] = 8 owns no row"):
        update(implementation, [1], parents=[8])
    assert totals(implementation)["admitted"] == 0


@pytest.mark.parametrize("ids", [{}, VOCABULARY | {"admit_after": 1}], ids=["direct", "vocabulary"])
def test_frozen_ids_stay_bit_for_bit(implementation: Implementation, ids: dict[str, Any]) -> None:
    build(implementation, ids)
    update(implementation, [1, 2])
    implementation.freeze(FeatureBatch.of("t", [2]))
    before, served = implementation.state(), look_up(implementation, [1, 2])
    update(implementation, [2, 1, 2], rank=1)
    after = implementation.state()
    assert (look_up(implementation, [2]) == served[1]).all()
    assert (look_up(implementation, [1]) != served[0]).all()
    moved = (after["t.sum"] != before["t.sum"]).any(axis=1)
    assert moved.sum() == 1
    with pytest.raises(InvalidInput, match="ids\\[1\\] = 2 is frozen, as 1 of its ids are; thaw them first"):
        update(implementation, [1, 2], values=np.ones((2, 3)))
    assert (look_up(implementation, [1]) != 1).all()
    implementation.freeze(FeatureBatch.of("t", [2]), frozen=False)
    update(implementation, [2])
    assert (look_up(implementation, [2]) != served[1]).all()


def test_a_frozen_id_is_not_evicted_and_an_unknown_one_can_not_be_frozen(implementation: Implementation) -> None:
    build(implementation, VOCABULARY | {"fallback_rows": 8, "admit_after": 1})
    update(implementation, [1])
    implementation.freeze(FeatureBatch.of("t", [1]))
    update(implementation, [2, 2, 2])
    assert provenance(implementation, [1, 2]) == [Provenance.OWN_ROW, Provenance.FALLBACK]
    assert totals(implementation)["rejected"] == 1
    with pytest.raises(InvalidInput, match=r"ids\[1\] = 2 owns no row"):
        implementation.freeze(FeatureBatch.of("t", [1, 2]))


@pytest.mark.parametrize("factor", [None, {"kind": "low_rank", "rank": 2}, {"kind": "quotient_remainder"}])
def test_a_frozen_table_takes_no_gradient(implementation: Implementation, factor: dict[str, Any] | None) -> None:
    build(implementation, frozen=True, **({"factor": factor} if factor else {}))
    before = implementation.state()
    update(implementation, [1, 2])
    for name, array in implementation.state().items():
        np.testing.assert_array_equal(array, before[name])
    with pytest.raises(InvalidInput, match="table 't' is frozen; its rows can't be replaced"):
        implementation.update([updates_of({"t": [1]}, values={"t": np.ones((1, 3))})] * implementation.size)


@pytest.mark.parametrize(
    ("ids", "table"),
    [
        ({}, {}),
        ({"padding": 0}, {"factor": {"kind": "low_rank", "rank": 2}, "normalise": "l2"}),
        ({}, {"factor": {"kind": "quotient_remainder", "remainders": 3}}),
        (VOCABULARY | {"admit_after": 1}, {"dtype": "float16"}),
    ],
    ids=["direct", "low_rank", "quotient_remainder", "vocabulary"],
)
def test_old_rows_of_a_table_that_grows_stay_bit_for_bit(
    implementation: Implementation, ids: dict[str, Any], table: dict[str, Any]
) -> None:
    build(implementation, ids, **table)
    update(implementation, list(range(9)))
    before, served = implementation.state(), look_up(implementation, list(range(9)))
    config = collection([{"name": "t", "rows": 31, "dim": 3, "ids": ids, **table}], kind="adagrad", learning_rate=0.1)
    implementation.grow("t", 31)
    np.testing.assert_array_equal(look_up(implementation, list(range(9))), served)
    after = implementation.state()
    implementation.build(config.grown({}))
    fresh = implementation.state()
    for name, array in before.items():
        np.testing.assert_array_equal(after[name][: len(array)], array)
        np.testing.assert_array_equal(after[name][len(array) :], fresh[name][len(array) :])


def test_new_rows_may_start_as_a_mean_and_move_like_any(implementation: Implementation) -> None:
    build(implementation)
    update(implementation, [1, 2])
    old = implementation.state()["t.weight"]
    implementation.grow("t", 10, mean=True)  # fewer new rows than ranks
    implementation.grow("t", 12, mean=True)
    np.testing.assert_allclose(look_up(implementation, [9, 11]), [old.mean(axis=0)] * 2, rtol=1e-4)
    implementation.grow("t", 14, mean_of=FeatureBatch.of("t", [1, 2]))
    np.testing.assert_allclose(look_up(implementation, [13]), [old[1:3].mean(axis=0)], rtol=1e-5)
    update(implementation, [13])
    assert provenance(implementation, [12, 13]) == [Provenance.UNTRAINED, Provenance.OWN_ROW]


def test_what_can_not_grow_says_why_and_stays(implementation: Implementation) -> None:
    build(implementation)
    for rows, start, message in (
        (3, {}, "can't shrink to 3"),
        (2**41, {}, "can grow to at most"),
        (20, {"mean_of": FeatureBatch.of("t", [9])}, r"ids\[0\] = 9 is out of range"),
    ):
        with pytest.raises(InvalidInput, match=message):
            implementation.grow("t", rows, **start)
    build(implementation, {"kind": "hashed"})
    with pytest.raises(InvalidInput, match="its ids are hashed by the number of rows"):
        implementation.grow("t", 20)
    build(implementation, VOCABULARY)
    with pytest.raises(InvalidInput, match="starts from what it was served before"):
        implementation.grow("t", 20, mean=True)
    assert len(look_up(implementation, [1, 2])) == 2


def test_updates_are_counted_once_a_step_and_sightings_each_time(implementation: Implementation) -> None:
    build(implementation, {"padding": 0}, pooling="sum", counts=True)
    update(implementation, ([1, 1, 2, 0], np.array([3, 1], np.int32)), gradients=np.ones((2, 3)))
    update(implementation, ([2], np.array([1], np.int32)), gradients=np.ones((1, 3)))
    asked = FeatureBatch.of("t", ([1, 2, 3, 0], np.array([4], np.int32)))
    ((updates_N, sightings_N),) = implementation.counts(implementation.on_first([asked]))[0]
    assert updates_N.tolist() == [1, 2, 0, 0]
    assert sightings_N.tolist() == [2, 2, 0, 0]
