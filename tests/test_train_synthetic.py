"""Synthetic examples: Zipf's law, scattered ids, and labels that can be learned."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embershard.train import synthetic
from embershard.train.batches import Batch, Stream
from embershard.train.schema import SyntheticSpec
from embershard.train.synthetic import Synthetic
from embershard.zipf import scattered, zipf


def made(rows: int, *, seed: int = 1, evaluate: bool = False, **keys: Any) -> Batch:
    spec = SyntheticSpec(examples=rows, evaluate_examples=rows, **keys)
    (batch,) = Stream(Synthetic(spec, seed=seed, evaluate=evaluate), batch=rows).epoch(0)
    return batch


@settings(max_examples=30, deadline=None)
@given(ranks=st.integers(1, 200), exponent=st.one_of(st.just(1.0), st.floats(0, 4)), seed=st.integers(0, 10**6))
def test_draws_are_as_frequent_as_zipfs_law_says(ranks: int, exponent: float, seed: int) -> None:
    size = 20_000
    counts = np.bincount(zipf(np.random.default_rng(seed), ranks, exponent, size), minlength=ranks + 1)
    weights = np.arange(1, ranks + 1, dtype=np.float64) ** -exponent
    expected = size * weights / weights.sum()
    assert counts[0] == 0
    assert len(counts) == ranks + 1
    # Six standard deviations, and a few for those that hardly ever come.
    assert (np.abs(counts[1:] - expected) <= 6 * np.sqrt(expected) + 6).all()


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0, 1 + 1e-12, 1.05, 10.0])
def test_the_law_holds_for_more_ranks_than_fit_into_memory(exponent: float) -> None:
    ranks, size = 2**40, 100_000
    draws = zipf(np.random.default_rng(3), ranks, exponent, size)
    assert (draws >= 1).all()
    assert (draws <= ranks).all()
    # The sum of 1 / kˢ: the first terms, and the integral from there on.
    head = np.arange(1, 10**6, dtype=np.float64) ** -exponent
    power = 1 - exponent
    first, last = np.log([10**6 - 0.5, ranks + 0.5])
    tail = last - first if power == 0 else (np.expm1(power * last) - np.expm1(power * first)) / power
    for until in (1, 10, 1000):
        share = head[:until].sum() / (head.sum() + tail)
        assert np.mean(draws <= until) == pytest.approx(share, abs=6 * np.sqrt(share / size) + 1e-5)


@settings(max_examples=60, deadline=None)
@given(count=st.integers(1, 3000), seed=st.integers(0, 10**6))
def test_scattering_is_a_permutation(count: int, seed: int) -> None:
    places = scattered(np.arange(count), count, np.random.default_rng(seed))
    assert sorted(places.tolist()) == list(range(count))


def test_frequent_ids_are_no_neighbours() -> None:
    places = scattered(np.arange(1000), 2**40, np.random.default_rng(0))
    assert len(np.unique(places)) == 1000
    assert np.diff(np.sort(places)).min() > 1
    assert np.mean(places < 2**39) == pytest.approx(0.5, abs=0.1)


def test_chunks_are_a_function_of_seed_and_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(synthetic, "CHUNK_ROWS", 100)
    keys: dict[str, Any] = {"ids": {"user": 50, "item": 10**12}, "lengths": {"item": 3}, "dense": 2}

    def chunk(number: int, examples: int, seed: int = 1, evaluate: bool = False) -> pa.Table:
        source = Synthetic(SyntheticSpec(examples=examples, **keys), seed=seed, evaluate=evaluate)
        (piece,) = source.pieces(number)
        table = piece.read()
        assert table.num_rows == piece.rows
        return table

    assert chunk(3, 400) == chunk(3, 10**12)
    assert chunk(3, 350).num_rows == 50
    assert chunk(3, 400) != chunk(2, 400)
    assert chunk(3, 400) != chunk(3, 400, seed=2)
    assert chunk(3, 400) != chunk(3, 400, evaluate=True)


def test_chunks_of_long_bags_are_smaller() -> None:
    source = Synthetic(SyntheticSpec(examples=10**9, ids={"item": 10**6}, lengths={"item": 2**20}), seed=1)
    (piece,) = source.pieces(10**8)
    assert piece.rows == 4
    assert source.chunks == 10**9 // 4


def test_every_example_has_what_the_schema_says() -> None:
    batch = made(20_000, ids={"user": 50, "item": 1000, "tag": 7}, lengths={"item": 20, "tag": 1}, dense=13, exponent=0)
    user, item, tag = batch.features.values()
    assert set(user.ids) == set(range(50))
    assert set(item.ids) == set(range(1000))
    assert user.lengths is None
    assert item.lengths is not None
    assert (item.lengths.min(), item.lengths.max()) == (1, 39)
    assert item.lengths.mean() == pytest.approx(20, rel=0.02)
    assert tag.lengths is not None
    assert set(tag.lengths) == {1}
    assert batch.dense_BF is not None
    assert batch.dense_BF.shape == (20_000, 13)
    assert batch.labels_B is not None
    assert set(batch.labels_B) == {0, 1}
    assert 0.3 < batch.labels_B.mean() < 0.7


def test_what_was_learned_of_labels_holds_for_other_examples() -> None:
    keys: dict[str, Any] = {"ids": {"user": 100, "item": 300}, "lengths": {"item": 2}, "dense": 2}
    train, test = made(20_000, **keys), made(5_000, evaluate=True, **keys)

    def inputs(batch: Batch) -> np.ndarray[Any, np.dtype[np.float64]]:
        """[B, 402]: which user, which items, dense numbers."""
        user, item = batch.features.values()
        assert item.lengths is not None
        assert batch.dense_BF is not None
        hot = np.zeros((batch.examples, 400))
        hot[np.arange(batch.examples), np.asarray(user.ids)] = 1
        rows = np.repeat(np.arange(batch.examples), item.lengths)
        np.add.at(hot, (rows, 100 + np.asarray(item.ids)), 1 / np.sqrt(item.lengths[rows]))
        return np.concatenate([hot, batch.dense_BF], axis=1)

    assert train.labels_B is not None
    assert test.labels_B is not None
    seen = inputs(train)
    weights = np.linalg.solve(seen.T @ seen + np.eye(402), seen.T @ (train.labels_B - 0.5))
    scores = inputs(test) @ weights
    ranks = np.empty(len(scores))
    ranks[np.argsort(scores)] = np.arange(1, len(scores) + 1)
    liked = test.labels_B > 0
    auc = (ranks[liked].mean() - (liked.sum() + 1) / 2) / (~liked).sum()
    assert auc > 0.75
