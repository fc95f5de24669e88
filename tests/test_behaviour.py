"""One behaviour on three implementations: the local engine, the sharded engine at world sizes 1, 2 and 3, and a dense
float64 reference. Every optimizer × pooling × kind of ids; duplicates within and across ranks; ranks with nothing."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.implementation import Array, Implementation
from support.reference import Reference
from support.scenario import ID_KINDS, OPTIMIZERS, POOLINGS, collection, everything, random_batches, random_updates

from embershard.config import Config
from embershard.types import FeatureBatch, FeatureUpdate, Provenance, updates_of

STEPS = 3


def assert_close(found: Array, expected: Array, rows: Array) -> None:
    """Equal to a part in 100,000 of the size of the rows: signed ones may cancel to nearly zero."""
    size = np.abs(rows).max() or 1.0
    np.testing.assert_allclose(found / size, expected / size, rtol=1e-5, atol=1e-5)


def live(implementation: Implementation, config: Config, seed: int, steps: int) -> Reference:
    """A random life of lookups and updates, each compared with the reference."""
    random = np.random.default_rng(seed)
    reference = Reference(config)
    implementation.build(config)
    for step in range(steps):
        asked = [random_batches(random, config) for _ in range(implementation.size)]
        answers = implementation.lookup(asked, now_s=step)
        reference.sight([batch for batches in asked for batch in batches], now_s=step)
        for of_rank, batches in zip(answers, asked, strict=True):
            for batch, found, expected in zip(batches, of_rank, reference.lookup(batches), strict=True):
                assert found.shape == expected.shape
                assert_close(found, expected, reference.size(batch.feature))
        given_updates = [random_updates(random, config) for _ in range(implementation.size)]
        implementation.update(given_updates, now_s=step)
        reference.update(given_updates, now_s=step)
    return reference


def assert_same_vocabularies(implementation: Implementation, reference: Reference) -> None:
    for of_rank in implementation.vocabularies():
        for name, found in of_rank.items():
            for key, expected in reference.vocabularies[name].state().items():
                np.testing.assert_array_equal(found[key], expected, err_msg=f"{name}: {key}")


@pytest.mark.parametrize("ids", ID_KINDS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_agree_with_the_reference(implementation: Implementation, optimizer: str, ids: str) -> None:
    """All poolings on one process; on ranks one of them, such that any two of optimizer, ids and pooling still meet."""
    meeting = (OPTIMIZERS.index(optimizer) + list(ID_KINDS).index(ids)) % len(POOLINGS)
    for pooling in POOLINGS if implementation.local else POOLINGS[meeting : meeting + 1]:
        config = everything(optimizer, pooling, ids)
        reference = live(implementation, config, seed=1, steps=STEPS)
        assert_same_vocabularies(implementation, reference)
        assert_same_state(implementation, reference)


def assert_same_state(implementation: Implementation, reference: Reference) -> None:
    state = implementation.state()
    for name, matrix in reference.matrices.items():
        rows = reference.weight[name]
        assert_close(state[f"{name}.weight"], rows, rows)
        sums = reference.state[name].numpy()
        match reference.config.optimizer_of(matrix.table).kind:
            case "adagrad":
                assert_close(state[f"{name}.sum"], sums, sums)
            case "rowwise_adagrad":  # kept over the padded dim: see engine.kernels
                padded = -(-matrix.dim // 4) * 4
                assert_close(state[f"{name}.sum"] * padded / matrix.dim, sums[:, 0], sums)


@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    optimizer=st.sampled_from(OPTIMIZERS),
    pooling=st.sampled_from(POOLINGS),
    ids=st.sampled_from(sorted(ID_KINDS)),
)
def test_any_life_agrees_with_the_reference(
    implementation: Implementation, seed: int, optimizer: str, pooling: str, ids: str
) -> None:
    live(implementation, everything(optimizer, pooling, ids), seed, steps=2)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_table_starts_the_same_on_every_engine_bit_for_bit(implementation: Implementation, dtype: str) -> None:
    config = collection([{"name": "t", "rows": 10_007, "dim": 6, "dtype": dtype, "init": {"scale": 0.3}}])
    implementation.build(config)
    np.testing.assert_array_equal(implementation.state()["t.weight"], Reference(config).weight["t"])


def test_half_precision_rows_move_as_float32_arithmetic_rounds_them(implementation: Implementation) -> None:
    config = collection([{"name": "t", "rows": 50, "dim": 5, "dtype": "float16"}], kind="sgd", learning_rate=0.1)
    implementation.build(config)
    reference = Reference(config)
    gradients = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
    update = implementation.on_first(updates_of({"t": [1, 7, 49]}, gradients={"t": gradients}))
    implementation.update(update)
    reference.update(update)
    half_ulp = 2.0**-11
    np.testing.assert_allclose(implementation.state()["t.weight"], reference.weight["t"], rtol=half_ulp, atol=1e-7)


def test_one_row_asked_for_and_moved_by_every_rank_is_moved_once_by_the_sum(implementation: Implementation) -> None:
    config = collection([{"name": "t", "rows": 5, "dim": 4, "init": {"kind": "zeros"}}], kind="sgd", learning_rate=1.0)
    implementation.build(config)
    twice = updates_of({"t": [4, 4]}, gradients={"t": np.ones((2, 4))})
    implementation.update([twice] * implementation.size)
    answers = implementation.lookup([[FeatureBatch.of("t", [4, 4, 0])]] * implementation.size)
    for (found,) in answers:
        np.testing.assert_array_equal(found[:, 0], [-2 * implementation.size] * 2 + [0])


def test_values_overwrite_rows_and_leave_the_optimizer_alone(implementation: Implementation) -> None:
    config = collection([{"name": "t", "rows": 7, "dim": 3}], kind="adagrad")
    implementation.build(config)
    implementation.update(implementation.on_first(updates_of({"t": [2]}, gradients={"t": np.ones((1, 3))})))
    before = implementation.state()
    values = np.arange(9, dtype=np.float32).reshape(3, 3)
    implementation.update(implementation.on_first(updates_of({"t": [2, 6, 2]}, values={"t": values})))
    after = implementation.state()
    np.testing.assert_array_equal(after["t.weight"][[2, 6]], values[[2, 1]])
    untouched = [0, 1, 3, 4, 5]
    np.testing.assert_array_equal(after["t.weight"][untouched], before["t.weight"][untouched])
    np.testing.assert_array_equal(after["t.sum"], before["t.sum"])


def test_where_ranks_overwrite_one_row_the_highest_rank_wins(implementation: Implementation) -> None:
    config = collection([{"name": "t", "rows": 7, "dim": 3}])
    implementation.build(config)
    implementation.update(
        [updates_of({"t": [5]}, values={"t": np.full((1, 3), rank)}) for rank in range(implementation.size)]
    )
    np.testing.assert_array_equal(implementation.state()["t.weight"][5], np.full(3, implementation.size - 1))


def test_gradients_come_before_values_in_one_update(implementation: Implementation) -> None:
    config = collection([{"name": "t", "rows": 4, "dim": 2, "features": ["a", "b"]}])
    implementation.build(config)
    both = updates_of({"a": [1]}, values={"a": np.full((1, 2), 9)}) + updates_of(
        {"b": [1]}, gradients={"b": np.ones((1, 2))}
    )
    implementation.update(implementation.on_first(both))
    np.testing.assert_array_equal(implementation.state()["t.weight"][1], [9, 9])


def test_provenance_tells_own_shared_padding_and_untrained(implementation: Implementation) -> None:
    config = collection(
        [
            {"name": "own", "rows": 9, "dim": 2, "ids": {"padding": 0}},
            {"name": "shared", "rows": 90, "dim": 2, "ids": {"kind": "hashed", "hashes": 2, "padding": "-"}},
        ]
    )
    implementation.build(config)
    changes = updates_of({"own": [8]}, gradients={"own": np.ones((1, 2))}) + updates_of(
        {"shared": ["seen"]}, gradients={"shared": np.ones((1, 2))}
    )
    implementation.update(implementation.on_first(changes))
    asked = [FeatureBatch.of("own", [0, 8, 1]), FeatureBatch.of("shared", ["-", "seen", "never"])]
    for own, shared in implementation.provenance([asked] * implementation.size):
        np.testing.assert_array_equal(own, [Provenance.PADDING, Provenance.OWN_ROW, Provenance.UNTRAINED])
        np.testing.assert_array_equal(shared, [Provenance.PADDING, Provenance.FALLBACK, Provenance.UNTRAINED])


def test_the_padding_id_answers_zeros_and_its_row_never_moves(implementation: Implementation) -> None:
    config = collection([{"name": "t", "rows": 9, "dim": 3, "pooling": "mean", "ids": {"padding": 2}}])
    implementation.build(config)
    before = implementation.state()
    bag = ([2, 5, 2, 2], np.array([3, 1], np.int32))
    implementation.update(implementation.on_first(updates_of({"t": bag}, gradients={"t": np.ones((2, 3))})))
    after = implementation.state()
    np.testing.assert_array_equal(after["t.weight"][2], before["t.weight"][2])
    np.testing.assert_array_equal(after["t.sum"][2], 0)
    asked = implementation.on_first([FeatureBatch.of("t", bag)])
    (found,) = implementation.lookup(asked)[0]
    np.testing.assert_allclose(found, [after["t.weight"][5], np.zeros(3)], rtol=1e-6)


def test_a_zero_learning_rate_keeps_rows_bit_for_bit(implementation: Implementation) -> None:
    config = collection([{"name": "t", "rows": 9, "dim": 3}], kind="adagrad", learning_rate=0)
    implementation.build(config)
    before = implementation.state()
    implementation.update(implementation.on_first(updates_of({"t": [1]}, gradients={"t": np.ones((1, 3))})))
    np.testing.assert_array_equal(implementation.state()["t.weight"], before["t.weight"])


def test_a_tick_in_which_no_rank_brings_anything_is_no_tick_at_all(implementation: Implementation) -> None:
    config = collection([{"name": "t", "rows": 9, "dim": 3}])
    implementation.build(config)
    before = implementation.state()
    nothing: list[list[FeatureUpdate]] = [[]] * implementation.size
    implementation.update(nothing)
    assert implementation.lookup([[]] * implementation.size) == [[]] * implementation.size
    np.testing.assert_array_equal(implementation.state()["t.weight"], before["t.weight"])
