"""What a load test sends, and when: fixed beforehand by its seed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.fake_service import DESCRIPTION

from embershard import codec
from embershard.errors import InternalError, InvalidInput
from embershard.loadtest.arrivals import arrivals, updates_among
from embershard.loadtest.plan import LOOKUP, UPDATE, Demand, Feature, Plan, check_limits, dealt, features_of
from embershard.loadtest.pool import check_answer, drawn_ids, pools, replayed
from embershard.v1 import embershard_pb2 as pb

ITEM = Feature(name="item", dim=4, pooled=False, direct=True, space=1_000, numbers_per_id=4)
GENRE = Feature(name="genre", dim=8, pooled=True, direct=False, space=50, numbers_per_id=8)


def plan(**keys: Any) -> Plan:
    return Plan(**{"target": "127.0.0.1:1", "features": (ITEM, GENRE), "ids": 25, **keys})


# When requests are due.


def test_arrivals_are_a_poisson_process() -> None:
    rate, seconds = 500.0, 200.0
    times_N = arrivals(rate, 0, seconds, seed=1)
    gaps_N = np.diff(times_N)
    assert (gaps_N >= 0).all()
    assert 0 <= times_N[0] < times_N[-1] < seconds
    # Five standard errors, and the seed is fixed.
    assert abs(gaps_N.mean() * rate - 1) < 5 / np.sqrt(len(gaps_N))
    assert abs(gaps_N.std() * rate - 1) < 5 / np.sqrt(len(gaps_N))
    assert abs(np.mean(gaps_N > 1 / rate) - np.exp(-1)) < 5 * 0.5 / np.sqrt(len(gaps_N))
    counts = np.bincount((times_N * 10).astype(int))  # of tenths of seconds: variance as mean
    assert abs(counts.var() / counts.mean() - 1) < 5 * np.sqrt(2 / len(counts))
    assert abs(np.corrcoef(gaps_N[:-1], gaps_N[1:])[0, 1]) < 5 / np.sqrt(len(gaps_N))


@settings(deadline=None)
@given(rate=st.floats(0.1, 2_000), warmup_s=st.floats(0, 3), seconds=st.floats(0.1, 3), seed=st.integers(0, 2**32))
def test_as_many_are_due_as_the_rate_says_however_short_it_is(
    rate: float, warmup_s: float, seconds: float, seed: int
) -> None:
    times_N = arrivals(rate, warmup_s, seconds, seed)
    assert (times_N >= warmup_s).sum() == round(rate * seconds)
    assert len(times_N) == round(rate * seconds) + round(rate * warmup_s)


@settings(deadline=None)
@given(rate=st.floats(0.1, 2_000), seconds=st.floats(0.1, 3), seed=st.integers(0, 2**32), parts=st.integers(1, 5))
def test_all_processes_together_send_one_stream_whatever_their_number(
    rate: float, seconds: float, seed: int, parts: int
) -> None:
    whole_N = arrivals(rate, 1, seconds, seed)
    parts_N = [arrivals(rate, 1, seconds, seed)[number::parts] for number in range(parts)]
    assert np.array_equal(np.sort(np.concatenate(parts_N)), whole_N)
    updates_N = updates_among(len(whole_N), 0.25, seed)
    assert sum(len(updates_N[number::parts]) for number in range(parts)) == len(whole_N)


def test_updates_are_their_share() -> None:
    assert not updates_among(1_000, 0.0, 1).any()
    assert updates_among(1_000, 1.0, 1).all()
    assert abs(updates_among(100_000, 0.05, 1).mean() - 0.05) < 5 * np.sqrt(0.05 / 100_000)


# What is sent.


def requests(made: list[Any], kind: Any) -> list[Any]:
    return [kind.FromString(ready.data) for ready in made]


def test_a_request_has_its_ids_spread_over_the_features_and_says_how_many_vectors_come_of_it() -> None:
    made = pools(plan(updates=0.5, bag=5, dtype="float16"), 0)
    for ready, request in zip(made[LOOKUP], requests(made[LOOKUP], pb.LookupRequest), strict=True):
        item, genre = map(codec.decode_batch, request.features)
        assert (len(item.ids), item.lengths, item.feature) == (13, None, "item")
        assert genre.lengths is not None
        assert (len(genre.ids), genre.lengths.tolist(), genre.feature) == (12, [5, 5, 2], "genre")
        assert (ready.rows, request.dtype) == (13 + 3, pb.D_TYPE_FLOAT16)
        assert 0 <= min(item.ids) <= max(item.ids) < ITEM.space
    for ready, request in zip(made[UPDATE], requests(made[UPDATE], pb.UpdateRequest), strict=True):
        shapes = [codec.decode_update(part, {"item": 4, "genre": 8}).gradients for part in request.updates]
        assert [part.shape for part in shapes if part is not None] == [(13, 4), (3, 8)]
        assert all(0 < np.abs(part).max() < 1e-4 for part in shapes if part is not None)
        assert (ready.rows, request.client_id) == (16, "")


def test_a_seed_fixes_the_requests_and_processes_have_their_own() -> None:
    assert pools(plan(seed=3), 1) == pools(plan(seed=3), 1)
    assert pools(plan(seed=3), 1) != pools(plan(seed=3), 0)
    assert pools(plan(seed=3), 1) != pools(plan(seed=4), 1)


def test_large_requests_are_fewer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embershard.loadtest.pool.BYTES", 100_000)
    assert len(pools(plan(ids=2), 0)[LOOKUP]) == 256
    assert 8 < len(pools(plan(ids=1_000), 0)[LOOKUP]) <= 100_000 / 8_000
    assert len(pools(plan(ids=10_000), 0)[LOOKUP]) == 8


def test_ids_follow_zipfs_law_and_the_frequent_ones_are_the_same_in_every_process() -> None:
    draws = [drawn_ids(ITEM, 50_000, plan(zipf=1.2), np.random.default_rng(process)) for process in (0, 1)]
    counts = [np.bincount(ids_N, minlength=ITEM.space) for ids_N in draws]
    assert counts[0].argmax() == counts[1].argmax()
    law = np.arange(1, ITEM.space + 1) ** -1.2
    law /= law.sum()
    for of_process in counts:
        top = np.sort(of_process)[::-1][:10] / 50_000
        assert np.allclose(top, law[:10], atol=5 * np.sqrt(law[0] / 50_000))


def test_without_skew_all_ids_are_as_frequent() -> None:
    counts = np.bincount(drawn_ids(ITEM, 100_000, plan(zipf=0), np.random.default_rng(1)), minlength=ITEM.space)
    assert abs(counts.var() / counts.mean() - 1) < 5 * np.sqrt(2 / ITEM.space)


@settings(deadline=None)
@given(space=st.integers(1, 2**62), exponent=st.floats(0, 4))
def test_ids_stay_within_their_space(space: int, exponent: float) -> None:
    feature = Feature(name="a", dim=1, pooled=False, direct=False, space=space, numbers_per_id=1)
    ids_N = drawn_ids(feature, 20, plan(zipf=exponent), np.random.default_rng(1))
    assert ((ids_N >= 0) & (ids_N < space)).all()


def test_replayed_lookups_are_sent_as_they_are_and_each_process_begins_elsewhere() -> None:
    asked = [{"item": [1, 2]}, {"item": [3], "genre": (["jazz", "folk"], [2])}, {"genre": [7, 8, 9]}]
    ready = replayed(asked, (ITEM, GENRE), "float32", "r.jsonl")
    assert [one.rows for one in ready] == [2, 2, 3]
    assert list(requests(list(ready), pb.LookupRequest)[1].features[1].keys) == ["jazz", "folk"]
    assert [pools(plan(replay=ready, processes=3), number)[LOOKUP][0] for number in range(3)] == list(ready)


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ([], "r.jsonl: is empty; give a request a line"),
        ([{"item": [1]}, {"shoe": [1]}], "line 2: unknown feature 'shoe'; the collection has item, genre"),
        ([{"item": [1, 1_000]}], r"line 1: feature 'item': ids\[1\] = 1000 is not a row of the table, which has 1,000"),
        ([{"item": [-1]}], r"ids\[0\] = -1 is not a row"),
        ([{"genre": ([1, 2], [1])}], "lengths add up to 1, but there are 2 ids"),
    ],
)
def test_what_cannot_be_replayed_is_told_by_its_line(asked: list[Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        replayed(asked, (ITEM, GENRE), "float32", "r.jsonl")


def test_a_replay_has_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embershard.loadtest.pool.MOST_REPLAYED", 2)
    with pytest.raises(InvalidInput, match="has more than 2 requests"):
        replayed([{"item": [1]}] * 3, (ITEM,), "float32", "r.jsonl")


def test_an_answer_that_is_none_is_found() -> None:
    (ready,) = replayed([{"item": [1, 2]}], (ITEM,), "float32", "r")
    good = codec.encode_answer(["item"], [np.zeros((2, 4), np.float32)], [], 1)
    check_answer(LOOKUP, ready.data, good, [ITEM])
    check_answer(UPDATE, b"", pb.UpdateResponse(version=3).SerializeToString(), [ITEM])
    for kind, wrong in (
        (LOOKUP, codec.encode_answer(["item"], [np.zeros((1, 4), np.float32)], [], 1)),
        (LOOKUP, codec.encode_answer(["user"], [np.zeros((2, 4), np.float32)], [], 1)),
        (LOOKUP, pb.LookupResponse(features=[pb.FeatureRows(feature="item", rows=2, dim=4)]).SerializeToString()),
        (LOOKUP, b"no message"),
        (UPDATE, b""),
    ):
        with pytest.raises(InternalError):
            check_answer(kind, ready.data, wrong, [ITEM])


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"ids": 1}, "ids a request: 1, which is too few for 2 features"),
        ({"updates": 1.5}, "give a share from 0 to 1"),
        ({"updates": float("nan")}, "give a share from 0 to 1"),
        ({"zipf": -1}, "the exponent of Zipf's law is -1"),
        ({"processes": 257}, "processes: 257, and connections of each: 4; give up to 256"),
        ({"processes": 2, "in_flight": 1}, "too few for 2 processes"),
    ],
)
def test_a_plan_that_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        plan(**keys)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({}, "one of the two"),
        ({"rate": 1, "callers": 1}, "one of the two"),
        ({"rate": 1, "seconds": 0}, "0 seconds after 0 of warm-up"),
        ({"rate": 1, "seconds": float("nan")}, "nan seconds"),
        ({"rate": 1, "warmup_s": -1}, "after -1 of warm-up"),
        ({"rate": 0}, "a rate of 0 requests"),
        ({"rate": float("inf")}, "a rate of inf requests a second; give a finite number"),
        ({"rate": 1e9}, "more than 20,000,000 requests"),
        ({"callers": 0}, "give one at least"),
    ],
)
def test_a_load_that_cannot_be_is_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Demand(**{"seconds": 1, "warmup_s": 0, **keys})


def test_features_are_those_that_are_served() -> None:
    (item,) = features_of(DESCRIPTION, None, None)
    assert (item.name, item.space, item.direct) == ("item", 100, True)
    with pytest.raises(InvalidInput, match="unknown feature 'shoe'; the collection has item"):
        features_of(DESCRIPTION, ["shoe"], None)
    with pytest.raises(InvalidInput, match="a request would have 2,000 ids; the service takes 1,000"):
        check_limits(plan(features=(item,), ids=2_000), DESCRIPTION.limits)


@pytest.mark.parametrize(("rows", "kind"), [(0, "direct"), (2**62 + 1, "direct"), (2**61, "hashed")])
def test_a_feature_whose_ids_cannot_be_drawn_is_named(rows: int, kind: str) -> None:
    description = pb.DescribeResponse(tables=[pb.Table(name="t", features=["odd"], rows=rows, dim=4, id_kind=kind)])
    with pytest.raises(InvalidInput, match="feature 'odd' would have"):
        features_of(description, None, None)


@settings(deadline=None)
@given(total=st.integers(0, 1000), parts=st.integers(1, 20))
def test_what_is_dealt_is_as_equal_as_can_be(total: int, parts: int) -> None:
    made = dealt(total, parts)
    assert (sum(made), len(made)) == (total, parts)
    assert max(made) - min(made) <= 1
