"""The order of examples: each once an epoch, the same at any world size, and to be gone on with anywhere."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.examples import Failing, Numbered, ids, orders

from embershard.errors import InvalidInput
from embershard.train.batches import PREFETCHED, Stream

CHUNKS = st.lists(st.integers(0, 7), min_size=1, max_size=6).filter(any)
OPTIONS = st.fixed_dictionaries(
    {"batch": st.integers(1, 9), "seed": st.integers(0, 2**64), "shuffle_rows": st.integers(0, 20)}
)


def chained(batches: list[list[int]]) -> list[int]:
    return [example for batch in batches for example in batch]


@settings(max_examples=60, deadline=None)
@given(chunks=CHUNKS, options=OPTIONS, known=st.booleans(), number=st.integers(0, 3))
def test_an_epoch_has_every_example_once_in_the_same_batches_at_any_world_size(
    chunks: list[int], options: dict[str, Any], known: bool, number: int
) -> None:
    source = Numbered(chunks, known=known)
    whole = orders(source, number=number, **options)
    assert sorted(chained(whole)) == list(range(sum(chunks)))
    assert all(len(batch) == options["batch"] for batch in whole[:-1])
    assert 0 < len(whole[-1]) <= options["batch"]
    for worlds in (2, 3):
        assert orders(source, number=number, worlds=worlds, **options) == whole
    if known:
        assert Stream(source, **options).batches == len(whole)


@settings(max_examples=60, deadline=None)
@given(chunks=CHUNKS, options=OPTIONS, known=st.booleans(), worlds=st.integers(1, 3), data=st.data())
def test_whoever_begins_in_the_middle_goes_on_exactly(
    chunks: list[int], options: dict[str, Any], known: bool, worlds: int, data: st.DataObject
) -> None:
    source = Numbered(chunks, known=known)
    whole = orders(source, number=1, **options)
    begin = data.draw(st.integers(0, len(whole)))
    assert orders(source, number=1, begin=begin, worlds=worlds, **options) == whole[begin:]


def test_seed_and_epoch_alone_decide_the_order() -> None:
    source = Numbered([40, 30, 30])
    first = orders(source, batch=10, seed=1, shuffle_rows=50)
    assert first == orders(Numbered([40, 30, 30]), batch=10, seed=1, shuffle_rows=50)
    assert first != orders(source, batch=10, seed=1, shuffle_rows=50, number=1)
    assert first != orders(source, batch=10, seed=2, shuffle_rows=50)
    assert chained(first) == chained(orders(source, batch=7, seed=1, shuffle_rows=50))


def test_without_shuffling_the_order_is_that_of_the_source() -> None:
    assert orders(Numbered([3, 4, 2]), batch=4) == [[0, 1, 2, 3], [4, 5, 6, 7], [8]]


def test_examples_are_shuffled_over_chunks_and_within_windows() -> None:
    order = chained(orders(Numbered([10] * 20), batch=10, shuffle_rows=50))
    windows = [order[first : first + 50] for first in range(0, 200, 50)]
    assert all(len({example // 10 for example in window}) == 5 for window in windows)  # five chunks each
    assert all(window != sorted(window) for window in windows)
    assert sorted(windows[0]) != list(range(50))


def test_whoever_begins_late_decodes_nothing_of_what_comes_before() -> None:
    source = Numbered([10] * 20)
    assert orders(source, batch=10, shuffle_rows=20, begin=17, number=3) != []
    assert len(source.decoded) == 4  # windows of two chunks, the ninth of which has begun


def test_no_more_is_decoded_than_a_window_and_what_is_made_ahead() -> None:
    source = Numbered([10] * 20)
    batches = Stream(source, batch=10, shuffle_rows=30).epoch(0)
    next(batches)
    batches.close()
    assert PREFETCHED <= 3
    assert len(source.decoded) <= 6  # a window of three chunks, and perhaps the next


def test_a_part_may_be_empty_and_keeps_its_shapes() -> None:
    (empty,) = Stream(Numbered([2]), batch=4, rank=2, world_size=3).epoch(0)
    assert (ids(empty), empty.global_examples) == ([], 2)
    assert empty.dense_BF is not None
    assert empty.dense_BF.shape == (0, 2)


@pytest.mark.parametrize("known", [True, False])
def test_a_position_that_the_data_does_not_have_is_refused(known: bool) -> None:
    source = Numbered([4, 3], known=known)
    assert orders(source, batch=4, begin=2) == []  # where the epoch ends
    with pytest.raises(
        InvalidInput, match=r"numbered examples: there are 7 examples, and 12 of them are to be skipped"
    ):
        orders(source, batch=4, begin=3)


def test_a_source_without_examples_is_refused() -> None:
    with pytest.raises(InvalidInput, match="numbered examples: there is no row"):
        orders(Numbered([0, 0], known=False), batch=4)


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ahead")]


def test_a_closed_iterator_leaves_no_thread() -> None:
    batches = Stream(Numbered([10] * 20), batch=10).epoch(0)
    assert threads() == []
    next(batches)
    assert len(threads()) == 1
    batches.close()
    assert threads() == []
    list(Stream(Numbered([10] * 20), batch=10).epoch(0))
    assert threads() == []


def test_an_error_arrives_after_the_batches_before_it_and_leaves_no_thread() -> None:
    batches = Stream(Failing([10] * 5), batch=10).epoch(0)
    assert [next(batches).position for _ in range(3)] == [1, 2, 3]
    with pytest.raises(OSError, match="the disk is gone"):
        next(batches)
    assert threads() == []


def test_long_bags_are_cut_to_their_last_ids_and_counted() -> None:
    stream = Stream(Numbered([5, 4], max_lengths={"bag": 1}), batch=9)
    (batch,) = stream.epoch(0)
    bag = batch.features["bag"]
    assert bag.lengths is not None
    assert bag.lengths.tolist() == [0, 1, 1] * 3
    assert list(bag.ids) == ["1.0", "2.1", "4.0", "5.1", "7.0", "8.1"]
    assert stream.cut == {"bag": 3}
    list(stream.epoch(1))
    assert stream.cut == {"bag": 3}  # of one epoch
    assert Stream(Numbered([5], max_lengths={"bag": 2}), batch=9).cut == {"bag": 0}
