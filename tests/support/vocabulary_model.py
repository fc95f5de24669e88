"""A vocabulary as one would explain it: owners by slot, and ids without a row by key, in plain Python."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from embershard.config import VocabularyIds
from embershard.vocabulary import Counts

Id = int | str
Mentions = Sequence[tuple[Id, bool]]
"""Ids, and whether each demands a row."""


@dataclass
class Known:
    id: Id
    key: int
    step: int
    seen_s: int
    count: int = 0
    demanded: bool = False
    pinned: bool = False


@dataclass
class Model:
    """`key_of` gives the 64-bit key of an id."""

    policy: VocabularyIds
    capacity: int
    key_of: Callable[[Id], int]
    rows: dict[int, Known] = field(default_factory=dict)
    candidates: dict[int, Known] = field(default_factory=dict)
    steps: int = 0
    counts: Counts = field(default_factory=Counts)

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
            slot = min(set(range(self.capacity)) - set(self.rows))
            admitted.append((newcomer.id, slot))
            self.rows[slot] = newcomer
        self.counts.admitted += len(admitted)
        self.counts.evicted += len(evicted)
        self.counts.expired += len(expired)
        self.counts.rejected += len(wanting) - len(admitted)
        return admitted, [slot for slot in before if slot not in self.rows]

    def seen(self, mentions: Mentions, now_s: int = 0) -> list[Known]:
        """Distinct ids in the order of keys; of those with one key, one that demands a row stands for all, or an
        integer, or the first string."""
        found: dict[int, Known] = {}
        first: dict[int, tuple[bool, bool, Id]] = {}
        for of, demanded in mentions:
            key = self.key_of(of)
            known = found.setdefault(key, Known(of, key, self.steps, now_s))
            known.count += 1
            known.demanded |= demanded
            rank = (not demanded, isinstance(of, str), of)
            first[key] = min(first.get(key, rank), rank)
            known.id = first[key][2]
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
        known = copy.deepcopy((self.rows, self.candidates, self.counts))
        tried = Model(self.policy, self.capacity, self.key_of, known[0], known[1], self.steps, known[2])
        tried.step(mentions, now_s, admit=True)
        return all(tried.slot(seen.id) >= 0 for seen in tried.seen(mentions) if seen.demanded)
