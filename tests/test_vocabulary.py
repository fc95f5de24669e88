"""Who owns a row: the vocabulary against a model in plain Python, after every step of any history."""

from __future__ import annotations

import copy
import itertools
import random
from collections.abc import Collection, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from embershard.config import TableSpec, VocabularyIds
from embershard.ids import Keys
from embershard.vocabulary import Sightings, Vocabulary, index, victims

Id = int | str
Mentions = Sequence[tuple[Id, bool]]
"""Ids, and whether each demands a row."""
HASHES = {"a": 11, "b": 11, "c": 12, "like 1": 1, "": 0, "like -1": -1, "d": 2**63 - 1}
"""Strings with hashes that were chosen to collide, with those of other strings and with integers."""
IDS: list[Id] = [0, 1, 2, 3, 11, -1, -2, 2**32, 2**63 - 1, -(2**63), *HASHES]


def keys(ids: Sequence[Id]) -> Keys:
    keys_n = np.array([HASHES[of] if isinstance(of, str) else of for of in ids], np.int64)
    return Keys(keys_n=keys_n, names=[of for of in ids if isinstance(of, str)] or None)


def sightings(mentions: Mentions) -> Sightings:
    return Sightings.merged([Sightings.of(keys([of]), demanded=demanded) for of, demanded in mentions])


def lowest_free(taken: Collection[int]) -> int:
    return next(number for number in itertools.count() if number not in taken)


@dataclass
class Known:
    """What the model knows of one id."""

    id: Id
    key: int
    step: int
    seen_s: int
    count: int = 0
    demanded: bool = False
    pinned: bool = False


@dataclass
class Model:
    """A vocabulary as one would explain it: owners by slot, and ids without a row by key."""

    policy: VocabularyIds
    capacity: int
    rows: dict[int, Known] = field(default_factory=dict)
    candidates: dict[int, Known] = field(default_factory=dict)
    steps: int = 0
    counts: dict[str, int] = field(
        default_factory=lambda: dict.fromkeys(("admitted", "evicted", "expired", "rejected"), 0)
    )

    def slot(self, of: Id) -> int:
        owned = [slot for slot, owner in self.rows.items() if owner.id == of]
        assert len(owned) <= 1, "an id with two rows"
        return owned[0] if owned else -1

    def step(self, mentions: Mentions, now_s: int, *, admit: bool) -> tuple[list[tuple[Id, int]], list[int]]:
        """Which ids have got which slots, and which slots are empty now that weren't."""
        before = sorted(self.rows)
        others = self.sight(mentions, now_s)
        expired = self.expire(now_s) if admit else []
        wanting = [known for known in others if admit and (known.demanded or known.count >= self.policy.admit_after)]
        taken = {owner.key for owner in self.rows.values()}
        chosen, evicted = self.choose([known for known in wanting if known.key not in taken])
        self.forget(chosen)
        self.remember([known for known in others if known not in chosen and known.key not in self.candidates])
        self.forget(evicted)
        self.remember(evicted)
        admitted = []
        for newcomer in sorted(chosen, key=lambda known: known.key):
            admitted.append((newcomer.id, slot := lowest_free(self.rows)))
            self.rows[slot] = newcomer
        happened = len(admitted), len(evicted), len(expired), len(wanting) - len(admitted)
        for name, count in zip(self.counts, happened, strict=True):
            self.counts[name] += count
        return admitted, [slot for slot in before if slot not in self.rows]

    def seen(self, mentions: Mentions, now_s: int = 0) -> list[Known]:
        """Distinct ids in the order of keys; of those with one key, an integer or the first string stands for all."""
        found: dict[int, Known] = {}
        for of, demanded in mentions:
            key = HASHES[of] if isinstance(of, str) else of
            known = found.setdefault(key, Known(of, key, self.steps, now_s))
            known.count += 1
            known.demanded |= demanded
            known.id = min(known.id, of, key=lambda given: (isinstance(given, str), given))
        return [found[key] for key in sorted(found)]

    def sight(self, mentions: Mentions, now_s: int) -> list[Known]:
        """Counts; returns ids without a row of their own, with all that is remembered of them."""
        self.steps += 1
        others = []
        for seen in self.seen(mentions, now_s):
            slot = self.slot(seen.id)
            known = self.rows.get(slot) or self.candidates.get(seen.key)
            if known:
                known.count, known.step, known.seen_s = known.count + seen.count, self.steps, now_s
                seen.count = known.count
            if slot < 0:
                others.append(seen)
        return others

    def expire(self, now_s: int) -> list[Known]:
        ttl_s = self.policy.ttl_s or 2**62
        over = [slot for slot, owner in self.rows.items() if now_s - owner.seen_s >= ttl_s and not owner.pinned]
        return [self.rows.pop(slot) for slot in over]

    def choose(self, newcomers: list[Known]) -> tuple[list[Known], list[Known]]:
        """Those who get a row, and those who must leave for them and do."""
        newcomers.sort(key=lambda known: (not known.demanded, 0 if known.demanded else -known.count, known.key))
        free = self.capacity - len(self.rows)
        chosen, evicted = newcomers[:free], []
        may_leave = sorted(
            (owner.count, owner.step, slot)
            for slot, owner in self.rows.items()
            if self.policy.evict == "lfu" and not owner.pinned and owner.step < self.steps
        )
        for newcomer, (count, _, slot) in zip(newcomers[free:], may_leave, strict=False):
            if newcomer.demanded or newcomer.count > count:
                chosen.append(newcomer)
                evicted.append(self.rows.pop(slot))
        return chosen, evicted

    def forget(self, many: Iterable[Known]) -> None:
        for known in many:
            self.candidates.pop(known.key, None)

    def remember(self, many: list[Known]) -> None:
        capacity = self.policy.candidates or 65_536
        lacking = len(self.candidates) + len(many[:capacity]) - capacity
        if lacking > 0:
            longest_unseen_first = sorted(self.candidates.values(), key=lambda known: (known.step, known.key))
            self.forget(longest_unseen_first[: max(lacking, len(self.candidates) // 2)])
        self.candidates |= {known.key: known for known in many[:capacity]}

    def fits(self, mentions: Mentions, now_s: int) -> bool:
        tried = copy.deepcopy(self)
        tried.step(mentions, now_s, admit=True)
        return all(tried.slot(seen.id) >= 0 for seen in tried.seen(mentions) if seen.demanded)


class Pair:
    """The vocabulary and the model of it, through one life."""

    def __init__(self, capacity: int, **policy: Any) -> None:
        self.model = Model(VocabularyIds(fallback_rows=2, **policy), capacity)
        self.real, self.now_s = self.new(), 1000
        self.named: dict[Id, None] = {}

    def new(self) -> Vocabulary:
        return Vocabulary(TableSpec(name="t", rows=2 + self.model.capacity, dim=4, ids=self.model.policy))

    def play(self, *history: tuple[Any, ...]) -> Pair:
        for kind, *told in history:
            getattr(self, kind)(*told)
            slots = {of: self.model.slot(of) for of in self.named}
            for asked in ([of for of in slots if isinstance(of, kind)] for kind in (int, str)):
                assert self.real.find(keys(asked)).tolist() == [slots[of] for of in asked]
            counts = asdict(self.real.counts)
            assert {name: counts[name] for name in self.model.counts} == self.model.counts
            assert len(self.real) == len(self.model.rows)
        return self

    def update(self, *ids: Id) -> None:
        self.step([(of, False) for of in ids])

    def look_up(self, *ids: Id) -> None:
        self.step([(of, False) for of in ids], admit=False)

    def step(self, mentions: Mentions, admit: bool = True) -> None:
        self.named |= dict.fromkeys(of for of, _ in mentions)
        seen = sightings(mentions)
        assert self.real.fits(seen, self.now_s) == self.model.fits(mentions, self.now_s)
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


@pytest.mark.parametrize("policy", [{}, {"admit_after": 2}, {"ttl_s": 25}], ids=str)
def test_a_long_history_of_many_ids_goes_as_the_model_says(policy: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(victims, "_RANKED_LEAST", 16)
    monkeypatch.setattr(victims, "_NOTED_LEAST", 8)
    drawn, pair = np.random.default_rng(7), Pair(50, candidates=100, **policy)
    for begin in range(0, 1000, 10):
        ids = begin + drawn.zipf(1.5, 60) % 300
        pair.play(("wait", 1), ("update", *ids.tolist()), *([("grow", 2), ("restart",)] if begin % 200 == 90 else []))
    assert min(pair.real.counts.evicted, pair.real.counts.rejected) > 100


@given(st.lists(st.tuples(SOME, st.booleans(), st.integers(0, 3))), st.permutations(range(4)))
def test_sightings_are_the_same_however_they_are_spread_over_ranks(mentions: Any, order: list[int]) -> None:
    of_ranks = [sightings([(of, demanded) for of, demanded, at in mentions if at == rank]) for rank in order]
    merged = Sightings.merged(of_ranks)
    columns = merged.keys_u, merged.names_u, merged.counts_u, merged.demanded_u
    assert list(zip(*(column.tolist() for column in columns), strict=True)) == [
        (known.key, known.id if isinstance(known.id, str) else None, known.count, known.demanded)
        for known in Model(VocabularyIds(fallback_rows=2), 0).seen([(of, demanded) for of, demanded, _ in mentions])
    ]


Y, N = True, False
EXAMPLES: dict[str, tuple[int, dict[str, Any], list[Any], list[Id | None]]] = {
    "an id owns a row once it was sighted often enough": (2, {"admit_after": 3}, [[7, 8, 7], [7]], [7, None]),
    "rows are given in the order of keys": (
        5,
        {},
        [[2**63 - 1, 0, -1, -(2**63), "c"]],
        [-(2**63), -1, 0, "c", 2**63 - 1],
    ),
    "as often is not more often": (2, {}, [[1, 1, 2, 2, 2], [3, 3]], [1, 2]),
    "who was sighted more often replaces the least frequent": (2, {}, [[1, 1, 2, 2, 2], [3, 3], [3]], [3, 2]),
}
