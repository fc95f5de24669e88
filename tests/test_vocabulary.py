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
from embershard.vocabulary import Sightings, Vocabulary, columns, victims

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


def test_steps_that_32_bits_can_t_hold_go_on_as_the_model_says() -> None:
    """A life that is about to outrun them: whoever was sighted last long ago is still the first to leave."""
    pair = Pair(3, ttl_s=9).play(("update", 1, 2, 3), ("update", 2), ("update", 1, 3, 4))
    state, ahead = pair.real.state(), 2**32 - 6
    for name in ("steps", "candidate_steps"):
        state[name] = state[name] + ahead
    state["totals"][0] += ahead
    pair.real = pair.new()
    pair.real.restore(state)
    for begin in range(5, 25):
        pair.play(("update", begin, begin, begin + 1), ("update", begin, 1), ("wait", 1))
    assert pair.real.steps > 2**32
    assert pair.real.counts.evicted >= 3
    assert int(pair.real.state()["steps"].min()) > ahead


@pytest.mark.parametrize("first", [0, 2**40])
def test_steps_keep_their_order_however_far_they_go(first: int) -> None:
    steps = columns.Steps(4)
    steps.reach(first)
    steps[:] = np.arange(first, first + 4)
    assert not steps.reach(first + 2**31 - 1)
    assert steps[:].tolist() == [*range(first, first + 4)]
    assert steps.reach(first + 2**32)
    assert steps[:].tolist() == [first + 2**31] * 4  # as long ago as can be told
    steps[np.array([1, 2])] = np.array([first, first + 2**32])
    assert steps[:].tolist() == [*[first + 2**31] * 2, first + 2**32, first + 2**31]
    assert steps.reach(2**62)
    assert set(steps[:].tolist()) == {2**62 - 2**31}


def test_a_count_stops_where_32_bits_end() -> None:
    """Two that were both sighted so often count as equals: who was unseen for longer leaves."""
    pair = Pair(2).play(("update", 1, 2, 2, 2, 3))
    state = pair.real.state()
    state["counts"][:] = [2**32 + 5, 2**32 - 1]
    state["candidate_counts"][:] = 2**32 - 2
    pair.real = pair.new()
    pair.real.restore(state)
    pair.real.step(sightings([(1, False)]), 1001, admit=True)
    assert pair.real.state()["counts"].tolist() == [2**32 - 1] * 2
    step = pair.real.step(sightings([(3, False)] * 5), 1002, admit=True)
    assert not len(step.slots)  # as often is not more often
    assert pair.real.state()["candidate_counts"].tolist() == [2**32 - 1]


def test_the_first_string_is_told_from_integers_of_its_hash_and_takes_memory() -> None:
    pair = Pair(4).play(("update", 11, 5))
    before = pair.real.bytes
    assert pair.real.find(keys(["a"])).tolist() == [-1]
    pair.play(("update", "a", "c"))  # "a" has the hash 11, which an integer owns
    assert pair.real.bytes == before + 4 * 8
    assert pair.real.find(keys(["a", "c"])).tolist() == [-1, 2]
    pair.play(("restart",), ("grow", 2), ("update", "b", 6, "d"), ("pin", "c", True))


def test_without_a_time_to_live_all_were_seen_when_the_last_was() -> None:
    pair = Pair(3).play(("update", 1, 2), ("wait", 5), ("update", 2))
    assert pair.real.state()["seen_s"].tolist() == [1005, 1005]
    pair.play(("restart",))
    assert pair.real.state()["seen_s"].tolist() == [1005, 1005]


def test_a_state_of_before_is_restored() -> None:
    """int64 all over, times of ids that had no time to live, and what is out of the range of 32 bits."""
    pair = Pair(3)
    pair.real.restore(
        {
            "slots": np.array([0, 2]),
            "keys": np.array([-1, 7]),
            "counts": np.array([2**40, 3]),
            "steps": np.array([2**50, 2**50 - 9]),
            "seen_s": np.array([-5, 2**33]),
            "pinned": np.array([True, False]),
            "adopted": np.array([False, True]),
            "names": ["minus", None],
            "candidate_keys": np.array([9, 8]),
            "candidate_counts": np.array([1, 2]),
            "candidate_steps": np.array([2**50 - 3, 2]),
            "totals": np.array([2**50, 2, 0, 0, 0]),
        }
    )
    assert pair.real.find(keys(["minus"])).tolist() == [0]
    assert pair.real.find(keys([-1, 7])).tolist() == [-1, 2]
    state = pair.real.state()
    assert state["counts"].tolist() == [2**32 - 1, 3]
    assert state["steps"].tolist() == [2**50, 2**50 - 9]
    assert (state["pinned"].tolist(), state["adopted"].tolist()) == ([True, False], [False, True])
    assert dict(zip(state["candidate_keys"].tolist(), state["candidate_counts"].tolist(), strict=True)) == {9: 1, 8: 2}
    step = pair.real.step(sightings([(5, True), (6, True)]), 1001, admit=True)
    assert step.slots.tolist() == [1, 2]
