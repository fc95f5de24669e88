"""Which slot a key has: the index against a dictionary, whatever keys share their print, and however long it lives."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embershard.vocabulary import hints, index

EDGES = [-1, 0, 2**63 - 1, -(2**63)]
INVERSE = pow(0x9E3779B97F4A7C15, -1, 2**64)


def keys_with(of_key: int, count: int) -> list[int]:
    """Distinct keys with one print, which is the upper half of a product."""
    products = ((of_key % 2**32 << 32) + number for number in range(count))
    return [int(np.uint64(product * INVERSE % 2**64).view(np.int64)) for product in products]


class Pair:
    """An index, and a dictionary that says the same."""

    def __init__(self, capacity: int) -> None:
        self.real, self.slots = index.KeyIndex(capacity), dict[int, int]()

    def put(self, keys: list[int]) -> None:
        some = [key for key in dict.fromkeys(keys) if key not in self.slots][: self.real.free]
        lowest = sorted(set(range(self.real.capacity)) - set(self.slots.values()))[: len(some)]
        assert self.real.put(np.array(some, np.int64)).tolist() == lowest
        self.slots |= zip(some, lowest, strict=True)

    def remove(self, keys: list[int]) -> None:
        some = [key for key in dict.fromkeys(keys) if key in self.slots]
        self.real.remove(np.array([self.slots.pop(key) for key in some], np.int64))

    def check(self, others: list[int]) -> None:
        asked = [*self.slots, *others]
        assert self.real.find(np.array(asked, np.int64)).tolist() == [self.slots.get(key, -1) for key in asked]
        used = [slot in self.slots.values() for slot in range(self.real.capacity)]
        assert self.real.used.tolist() == used
        assert self.real.used_at(np.arange(self.real.capacity)).tolist() == used
        assert len(self.real) == len(self.slots)


PRINTS = [-1, 0, 5, 2**31 - 1]
SAME = [key for of_key in PRINTS for key in keys_with(of_key, 4)] + EDGES
MOVES = st.lists(
    st.tuples(st.sampled_from(["put", "remove"]), st.lists(st.sampled_from(SAME), max_size=9)), max_size=20
)


@settings(deadline=None)
@given(st.integers(1, 20), MOVES, st.sampled_from([2**27, 0]))
def test_keys_that_share_their_print_are_told_apart(capacity: int, moves: Any, narrow: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            index, "_PRINTS_MOST", narrow
        )  # none narrow: a key is its own print, and -1 the one that no map has
        patch.setattr(hints, "_SWEPT_LEAST", 1)
        pair = Pair(capacity)
        for kind, keys in moves:
            getattr(pair, kind)(keys)
            pair.check(SAME)
        again = Pair(capacity + 1)
        again.slots = pair.slots
        again.real.restore(np.array([*pair.slots], np.int64), np.array([*pair.slots.values()], np.int64))
        again.check(SAME)
        again.put(SAME)
        again.check(SAME)


@pytest.mark.parametrize(
    ("capacity", "least"), [(1, 1), (2, 1), (9, 1), (300, 1), (300, 64), (3000, 1), (10_000, 1024)]
)
def test_keys_are_found_while_places_are_swept(capacity: int, least: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hints, "_SWEPT_LEAST", least)
    drawn, pair, gone, added = random.Random(least), Pair(capacity), EDGES, 0
    while added < 12 * capacity:
        fresh = [drawn.randrange(-(2**63), 2**63) for _ in range(capacity // drawn.choice([1] + 20 * [30]))]
        entering = drawn.sample(gone, min(len(gone), 4)) + fresh
        added -= len(pair.slots)
        pair.put(entering)
        added += len(pair.slots)
        leaving = drawn.sample(list(pair.slots), len(pair.slots) // drawn.choice([1, 2, 9]))
        pair.remove(leaving)
        gone = [key for key in {*gone[:1000], *entering, *leaving} if key not in pair.slots]
        asked = [*pair.slots, *gone]
        assert pair.real.find(np.array(asked, np.int64)).tolist() == [*pair.slots.values(), *[-1] * len(gone)]


@pytest.mark.parametrize("capacity", [1, 2, 8, 100, 470, 480, 1000])
@pytest.mark.parametrize("part", [1, 3, 10])
def test_a_full_index_may_change_its_keys_for_ever(capacity: int, part: int) -> None:
    """With as little sweeping as there is: FBGEMM looks for an empty place until there is one."""
    drawn, pair = random.Random(capacity), Pair(capacity)
    pair.put([drawn.randrange(2**63) for _ in range(capacity)])
    size = max(1, capacity // part)
    for _ in range(40 + 200 // size):
        pair.remove(drawn.sample(list(pair.slots), size))
        pair.put([drawn.randrange(2**63) for _ in range(size)])
        filled = int((pair.real._hints._table_P2[:, 0] != hints.EMPTY).sum())
        assert filled == pair.real._hints._filled < len(pair.real._hints._table_P2)
    pair.check([])


def test_the_map_keeps_its_size_and_an_empty_place_in_reach_for_ever() -> None:
    pair, drawn = Pair(2000), random.Random(3)
    pair.put([drawn.randrange(2**63) for _ in range(2000)])
    size, table_P2 = pair.real.bytes, pair.real._hints._table_P2
    for _ in range(200):
        pair.remove(drawn.sample(list(pair.slots), 200))
        pair.put([drawn.randrange(2**63) for _ in range(200)])
    assert pair.real.bytes <= size + 2000 * 4
    assert (table_P2[:, 1] >= 0).sum() == 2000
    assert (table_P2[:, 0] == hints.EMPTY).mean() > 0.3
    pair.check([])
