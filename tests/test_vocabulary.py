"""Who owns a row: the vocabulary against a model in plain Python, after every step of any history."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.vocabulary_model import Id, Mentions, Model

from embershard.config import TableSpec, VocabularyIds
from embershard.ids import Keys
from embershard.vocabulary import Sightings, Vocabulary, index, victims

# Strings with hashes that were chosen to collide, with those of other strings and with integers.
HASHES = {"a": 11, "b": 11, "c": 12, "one": 1, "": 0, "minus": -1, "d": 2**63 - 1}
IDS: list[Id] = [0, 1, 2, 3, 11, -1, -2, 2**32, 2**63 - 1, -(2**63), *HASHES]


def key_of(of: Id) -> int:
    return HASHES[of] if isinstance(of, str) else of


def keys(ids: Sequence[Id]) -> Keys:
    keys_n = np.array([key_of(of) for of in ids], np.int64)
    return Keys(keys_n=keys_n, names=[of for of in ids if isinstance(of, str)] or None)


def sightings(mentions: Mentions) -> Sightings:
    return Sightings.merged([Sightings.of(keys([of]), demanded=demanded) for of, demanded in mentions])


class Pair:
    """The vocabulary and the model of it, through one life."""

    def __init__(self, capacity: int, **policy: Any) -> None:
        self.model = Model(VocabularyIds(fallback_rows=2, **policy), capacity, key_of)
        self.real, self.now_s, self.named = self.new(), 1000, dict[Id, None]()

    def new(self) -> Vocabulary:
        return Vocabulary(TableSpec(name="t", rows=2 + self.model.capacity, dim=4, ids=self.model.policy))

    def play(self, *history: tuple[Any, ...]) -> Pair:
        for kind, *told in history:
            getattr(self, kind)(*told)
            slots = {of: self.model.slot(of) for of in self.named}
            for asked in ([of for of in slots if isinstance(of, kind)] for kind in (int, str)):
                assert self.real.find(keys(asked)).tolist() == [slots[of] for of in asked]
            assert (len(self.real), self.real.counts) == (len(self.model.rows), self.model.counts)
        return self

    def update(self, *ids: Id) -> None:
        self.step([(of, False) for of in ids])

    def demand(self, *ids: Id) -> None:
        self.step([(of, True) for of in ids])

    def look_up(self, *ids: Id) -> None:
        self.step([(of, False) for of in ids], admit=False)

    def step(self, mentions: Mentions, admit: bool = True) -> None:
        self.named |= dict.fromkeys(of for of, _ in mentions)
        seen = sightings(mentions)
        fits = not any(demanded for _, demanded in mentions) or self.model.fits(mentions, self.now_s)
        assert self.real.fits(seen, self.now_s) == fits
        step = self.real.step(seen, self.now_s, admit=admit)
        of_step = zip(step.admitted.keys_u.tolist(), step.admitted.names_u, step.slots.tolist(), strict=True)
        admitted = [(key if name is None else name, slot) for key, name, slot in of_step]
        assert (admitted, step.emptied.tolist()) == self.model.step(mentions, self.now_s, admit=admit)

    def wait(self, seconds: int) -> None:
        self.now_s += seconds

    def pin(self, of: Id, pinned: bool) -> None:
        if (slot := self.model.slot(of)) >= 0:
            self.real.pin(np.array([slot]), pinned)
            self.model.rows[slot].pinned = pinned

    def grow(self, by: int) -> None:
        self.model.capacity += by
        self.real.grow(self.model.capacity)

    def restart(self) -> None:
        state, self.real = self.real.state(), self.new()
        self.real.restore(state)


SOME = st.sampled_from(IDS)
STEPS = st.one_of(
    st.lists(SOME, max_size=10).map(lambda ids: ("update", *ids)),
    st.lists(SOME, max_size=5).map(lambda ids: ("look_up", *ids)),
    st.tuples(st.just("step"), st.lists(st.tuples(SOME, st.booleans()), max_size=5)),
    st.tuples(st.just("pin"), SOME, st.booleans()),
    st.sampled_from([("wait", 1), ("wait", 2), ("wait", -1), ("grow", 1), ("restart",)]),
)
POLICY = {"admit_after": st.sampled_from([1, 1, 2, 3]), "candidates": st.sampled_from([1, 2, 3, 7, None])}
POLICIES = st.fixed_dictionaries({**POLICY, "ttl_s": st.integers(1, 4), "evict": st.sampled_from(["lfu", "ttl"])})


@settings(deadline=None, max_examples=200)
@given(st.integers(1, 5), st.fixed_dictionaries(POLICY) | POLICIES, st.lists(STEPS, max_size=40), st.integers(1, 3))
def test_any_history_goes_as_the_model_says(capacity: int, policy: Any, history: Any, ranked: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(victims, "_RANKED_LEAST", ranked)
        patch.setattr(victims, "_NOTED_LEAST", ranked)
        Pair(capacity, **policy).play(*history)


@pytest.mark.parametrize("ranked", [3, 8, 4096])
@pytest.mark.parametrize("policy", [{}, {"admit_after": 2}, {"ttl_s": 25}], ids=str)
def test_a_long_life_goes_as_the_model_says(policy: Any, ranked: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victims, "_RANKED_LEAST", ranked)
    drawn, pair = random.Random(ranked), Pair(12, candidates=30, **policy)
    for begin in range(500):
        some = [begin // 2 + int(drawn.expovariate(0.1)) for _ in range(drawn.randrange(20))]
        then = drawn.choice([("look_up", *some[:5]), ("pin", *some[:1], True), ("pin", *some[:1], False), ("restart",)])
        pair.play(("wait", 1), ("update", *some), *([then] if some else [("grow", 1)]))
    assert min(pair.real.counts.evicted, pair.real.counts.rejected) > 40


@given(st.lists(st.tuples(SOME, st.booleans(), st.integers(0, 3))), st.permutations(range(4)))
def test_sightings_are_the_same_however_they_are_spread_over_ranks(mentions: Any, order: list[int]) -> None:
    merged = Sightings.merged([sightings([(of, must) for of, must, at in mentions if at == rank]) for rank in order])
    columns = merged.keys_u, merged.names_u, merged.counts_u, merged.demanded_u
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        (known.key, known.id if isinstance(known.id, str) else None, known.count, known.demanded)
        for known in Model(VocabularyIds(fallback_rows=2), 0, key_of).seen([(of, must) for of, must, _ in mentions])
    ]


TTL, TWO, FEW = {"evict": "ttl", "ttl_s": 10}, {"candidates": 2}, {"admit_after": 3, "candidates": 4}
EXAMPLES = {
    "an id owns a row once it was sighted often enough": (2, {"admit_after": 3}, "update 7 8 7; update 7", "7 -"),
    "rows are given in the order of keys": (4, {}, "update 5 -1 0 c", "-1 0 5 c"),
    "as often is not more often": (2, {}, "update 1 1 2 2 2; update 3 3", "1 2"),
    "who is more frequent replaces the least frequent": (2, {}, "update 1 1 2 2 2; update 3 3; update 3", "3 2"),
    "of equals who was unseen for longer leaves": (2, {}, "update 1 2 2; update 1; update 3 3 3", "1 3"),
    "who was evicted comes back with its count": (1, {}, "update 1 1; update 2 2 2; update 1; update 1", "1"),
    "nobody leaves in the step that sights it": (1, {"ttl_s": 1}, "update 1; wait 9; update 1 2 2 2", "1"),
    "who is not sighted for long enough expires": (2, TTL, "update 1 2; wait 9; update 1; wait 1; update 3", "1 3"),
    "before its time nobody makes room": (1, TTL, "update 1; wait 9; update 2 2 2; demand 3", "1"),
    "lookups admit nobody": (1, {}, "look_up 1 1 1", "-"),
    "lookups are sightings": (1, {"admit_after": 3}, "look_up 1 1; update 1", "1"),
    "lookups keep ids alive": (1, TTL, "update 1; wait 9; look_up 1; wait 9; update 2", "1"),
    "who demands a row gets it": (1, {"admit_after": 3}, "update 1 1 1; demand 2", "2"),
    "the pinned stay": (1, {"ttl_s": 5}, "update 1; pin 1 1; wait 9; update 2 2; demand 3", "1"),
    "the pinned expire once unpinned": (1, {"ttl_s": 5}, "update 1; pin 1 1; wait 9; update; pin 1 0; update 2", "2"),
    "the longer unseen half is forgotten": (1, FEW, "update 1 2; update 3 4; update 1; update 5; update 2 2 1", "1"),
    "who shares a hash is remembered once": (1, TWO, "update a a; update b; update 2 2 2; update 3; update a a", "a"),
    "of two strings with one hash one owns a row": (3, {}, "update a; update b b 11; demand b", "a - -"),
    "a string is not the integer of its hash": (3, {}, "update 1 -1; update one minus", "-1 1 -"),
}


@pytest.mark.parametrize("meant", EXAMPLES)
def test_by_example(meant: str) -> None:
    capacity, policy, history, owners = EXAMPLES[meant]
    pair = Pair(capacity, **policy)
    for kind, *told in (step.split() for step in history.split("; ")):
        pair.play((kind, *(int(word) if word.lstrip("-").isdigit() else word for word in told)))
    rows = pair.model.rows
    assert [str(rows[slot].id) if slot in rows else "-" for slot in range(capacity)] == owners.split()


@pytest.mark.parametrize(("capacity", "pace"), [(1, 1), (2, 1), (9, 1), (300, 1), (300, 64), (3000, 1), (10_000, 1024)])
def test_keys_are_found_while_map_follows_map(capacity: int, pace: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index, "_MOVED_LEAST", pace)
    monkeypatch.setattr(index, "_CLEARED_LEAST", pace)
    drawn, tried, maps = random.Random(pace), index.KeyIndex(capacity), set()
    owned, gone = {}, [-1, 0, 2**63 - 1, -(2**63)]
    while len(maps) < 5:
        maps.add(tried._map)
        fresh = [drawn.randrange(-(2**63), 2**63) for _ in range(capacity // drawn.choice([1] + 20 * [30]))]
        entering = list(dict.fromkeys(drawn.sample(gone, min(len(gone), 4)) + fresh))[: capacity - len(owned)]
        slots = tried.put(np.array(entering, np.int64)).tolist()
        assert slots == sorted(set(range(capacity)) - set(owned.values()))[: len(entering)]
        owned |= zip(entering, slots, strict=True)
        leaving = drawn.sample(list(owned), len(owned) // drawn.choice([1, 2, 9]))
        tried.remove(np.array([owned.pop(of) for of in leaving], np.int64))
        gone = [of for of in {*gone[:1000], *entering, *leaving} if of not in owned]
        assert tried.find(np.array([*owned, *gone])).tolist() == [*owned.values(), *[-1] * len(gone)]
        assert tried.free == capacity - len(owned)
