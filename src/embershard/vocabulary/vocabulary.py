"""Which ids of a table own a row: admission by count, bounded capacity, eviction.

It changes only in *steps*, which every rank takes with the same sightings, so that all have the same vocabulary.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from embershard.config import TableSpec, VocabularyIds
from embershard.vocabulary.adoption import Adoption, Owners, plan_adoption
from embershard.vocabulary.candidates import Candidates
from embershard.vocabulary.columns import MOST, within
from embershard.vocabulary.index import bytes_of_index
from embershard.vocabulary.residents import Residents
from embershard.vocabulary.victims import Victims

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.ids import Keys
    from embershard.vocabulary.sightings import Sightings

CANDIDATES_LEAST = 65_536
"""Ids without a row that are remembered unless the configuration says how many."""
_NOBODY = np.empty(0, np.int64)
_MOST, _LONG_AGO = np.iinfo(np.int64).max, np.iinfo(np.int64).min
_KNOWN_BYTES = 4 + 4
"""Of any id: how often it was sighted, and in which step last."""
_TIME_BYTES, _SELDOM_BYTES, _RANKED_BYTES = 4, 1 + 1 + 8, 2
"""Of an owner: when it was sighted, if there is a ttl; whether it is pinned or was adopted, and its name, if ever any
is; and its part in a ranking."""


@dataclass(kw_only=True, slots=True)
class Counts:
    """What has happened to ids, ever since the table began; but `own` and `fallback` since this rank started."""

    admitted: int = 0
    """Times that an id was given a row."""
    evicted: int = 0
    """Times that an id lost its row to one that was sighted more often."""
    expired: int = 0
    """Times that an id lost its row because its time to live was over."""
    rejected: int = 0
    """Times that an update named an id that was sighted often enough, and there was no room."""
    own: int = 0
    """Ids that lookups of this rank found in a row of their own."""
    fallback: int = 0
    """Ids that lookups of this rank answered by hashing."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Step:
    """What one step changes."""

    admitted: Sightings
    """Ids that were given a row."""
    slots: NDArray[np.int64]
    """int64: the slot of each admitted id."""
    emptied: NDArray[np.int64]
    """int64: slots whose id was evicted or has expired, and that no other id has yet."""


def bytes_of_vocabulary(table: TableSpec) -> int:
    """Most memory that the vocabulary of a table takes on each rank, strings aside; 0 if it has none."""
    if not isinstance(table.ids, VocabularyIds):
        return 0
    owner_bytes = _KNOWN_BYTES + (table.ids.ttl_s is not None) * _TIME_BYTES + _SELDOM_BYTES + _RANKED_BYTES
    rows, candidates = table.capacity, _candidates_of(table.ids, table.capacity)
    return bytes_of_index(rows) + rows * owner_bytes + bytes_of_index(candidates) + candidates * _KNOWN_BYTES


def _candidates_of(policy: VocabularyIds, capacity: int) -> int:
    return policy.candidates or max(capacity, CANDIDATES_LEAST)


class Vocabulary:
    """The ids that own a row of one table; slot s is the table's row `first_row` + s."""

    def __init__(self, table: TableSpec) -> None:
        assert isinstance(table.ids, VocabularyIds)
        self._table, self._policy = table.name, table.ids
        self.first_row = table.ids.fallback_rows
        self.counts = Counts()
        self._step, self._due_s = 0, _LONG_AGO
        self._make(table.capacity)

    def __len__(self) -> int:
        # By what was counted, as whoever asks may be another thread than the one that changes the index.
        return self.counts.admitted - self.counts.evicted - self.counts.expired

    @property
    def capacity(self) -> int:
        """Ids that may own a row."""
        return self._held.index.capacity

    @property
    def bytes(self) -> int:
        """Memory that it takes, the strings themselves apart."""
        return self._held.bytes + self._candidates.bytes

    def find(self, keys: Keys) -> NDArray[np.int64]:
        """The slot that each id owns, or -1."""
        return self._held.find(keys)

    def fits(self, sightings: Sightings, now_s: int) -> bool:
        """Whether all ids that demand a row can have one, those that own one included."""
        held = self._held
        slots_u, own_u = held.places(sightings)
        lacks_u = sightings.demanded_u & ~own_u
        lacking = int(lacks_u.sum())
        taken = slots_u[lacks_u & (slots_u >= 0)]  # by an id of the same hash, which keeps its row until its time is up
        if not self._is_over(taken, now_s).all():
            return False
        if lacking <= held.index.free:
            return True
        leaving = held.may_leave()
        if self._policy.evict == "ttl":
            leaving &= self._is_over(slice(None), now_s)
        leaving[slots_u[own_u]] = False
        return lacking <= held.index.free + int(leaving.sum())

    def step(self, sightings: Sightings, now_s: int, *, admit: bool) -> Step:
        """Counts sightings; those of an update also let ids go and others in. `now_s` is the same on every rank."""
        self._step += 1
        self._reach(self._step)
        if self._policy.ttl_s is not None:
            self._due_s = min(self._due_s, now_s + self._policy.ttl_s)  # a clock may be set back
        slots_u, own_u = self._held.places(sightings)
        self._held.sight(slots_u[own_u], sightings.counts_u[own_u], self._step, now_s)
        self._victims.note(slots_u[own_u])
        others, taken_u = sightings.where(~own_u), slots_u[~own_u]
        totals_u, candidates_u = self._candidates.sight(others.keys_u, others.counts_u, self._step)
        chosen_u, expired, evicted = np.zeros(len(totals_u), np.bool_), _NOBODY, _NOBODY
        if admit:
            expired = self._expire(now_s)
            wanting_u = (totals_u >= self._policy.admit_after) | others.demanded_u
            blocked_u = (taken_u >= 0) & self._held.index.used_at(taken_u)  # by an id of the same hash
            order, evicted = self._choose(np.where(others.demanded_u, _MOST, totals_u), wanting_u & ~blocked_u)
            chosen_u[order] = True
            self.counts.rejected += int(wanting_u.sum()) - len(order)
        self._candidates.index.remove(candidates_u[chosen_u & (candidates_u >= 0)])
        new_u = ~chosen_u & (candidates_u < 0)
        self._candidates.remember(others.keys_u[new_u], totals_u[new_u], self._step)
        if len(evicted):
            self._take_back(evicted)
            self._held.leave(evicted)
        admitted = others.where(chosen_u)  # in the order of keys: the slots don't depend on who was more frequent
        slots = self._held.enter(admitted, totals_u[chosen_u], self._step, now_s)
        self._victims.note(slots)
        self.counts.admitted += len(slots)
        self.counts.evicted += len(evicted)
        return Step(admitted=admitted, slots=slots, emptied=expired[~self._held.index.used_at(expired)])

    def plan(self, owners: Owners, gone: Sightings) -> Adoption:
        """What has ids own rows as they do elsewhere, and others that are gone lose theirs; nothing changes yet.

        Raises:
            InvalidInput: there is no room.
        """
        return plan_adoption(self._table, self._held, owners, gone)

    def adopt(self, plan: Adoption) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Does what was just planned: the slot of each owner, or -1, and slots that have lost their owner."""
        held, owners = self._held, plan.owners
        self._reach(int(owners.steps_u.max(initial=self._step)))
        held.leave(plan.leaving)
        entering = owners.ids.where(plan.enters_u)
        slots_u = plan.slots_u.copy()
        slots_u[plan.enters_u] = held.enter(entering, entering.counts_u, 0, 0)
        own_u = slots_u >= 0
        known = slots_u[own_u]
        held.counts[known], held.steps[known] = within(owners.ids.counts_u[own_u]), owners.steps_u[own_u]
        held.see(known, owners.seen_s_u[own_u])
        held.adopted[known] = True
        self._candidates.forget(entering.keys_u)
        # Numbers of others were given: nothing that is known of who is the rarest, or due next, holds.
        self._step, self._due_s = max(self._step + 1, int(owners.steps_u.max(initial=0))), _LONG_AGO
        self._victims.reset()
        self.counts.admitted += len(entering.keys_u)
        self.counts.evicted += len(plan.leaving)
        return slots_u, plan.leaving[~held.index.used_at(plan.leaving)]

    def owners(self, slots_n: NDArray[np.int64]) -> dict[str, Any]:
        """As `state` has them: the owners of these slots, which are used."""
        return self._held.owners(slots_n)

    def adopt_all(self) -> None:
        """Whoever owns a row was published."""
        self._held.adopted[self._held.index.used] = True

    @property
    def steps(self) -> int:
        """How many it has taken, as long as it has gone on: if none, nothing has changed."""
        return self._step

    def used(self, slots_n: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether slots have an owner."""
        return self._held.index.used_at(slots_n)

    def holds(self, keys_n: NDArray[np.int64], names_n: NDArray[np.object_]) -> NDArray[np.bool_]:
        """Whether ids own a row: each has a key, and a string or None."""
        slots_n = self._held.index.find(keys_n)
        same_n = np.asarray(self._held.names[slots_n] == names_n, np.bool_)
        return np.asarray((slots_n >= 0) & same_n)

    def residents(self) -> tuple[NDArray[np.int64], NDArray[np.bool_], NDArray[np.object_]]:
        """By slot: the key, whether it is used, and the string if it is one; as they are now."""
        held = self._held
        return held.index.keys.copy(), held.index.used, held.names.copy()

    def pin(self, slots_n: NDArray[np.int64], pinned: bool) -> None:
        """Keeps ids from losing their rows, or no longer."""
        self._held.pinned[slots_n] = pinned
        if not pinned:
            self._victims.reset()
            self._due_s = _LONG_AGO

    def grow(self, capacity: int) -> None:
        """Gives room to more ids; those that are there keep their slots."""
        state, counts = self.state(), self.counts
        self._make(capacity)
        self.restore(state)
        self.counts = counts

    def state(self) -> dict[str, Any]:
        """Everything that is to outlive the process: arrays, and a list of strings."""
        totals = [self._step, *list(asdict(self.counts).values())[:4]]
        return {**self._held.state(), **self._candidates.state(), "totals": np.array(totals, np.int64)}

    def restore(self, state: dict[str, Any]) -> None:
        """Fills a vocabulary that is empty, and whose capacity is at least what the state had."""
        self._held.restore(state)
        self._candidates.restore(state)
        self._due_s = _LONG_AGO
        self._step, *counts = state["totals"].tolist()
        self.counts = Counts(**dict(zip(asdict(Counts()), counts, strict=False)))

    def _make(self, capacity: int) -> None:
        self._held = Residents(capacity, times=self._policy.ttl_s is not None)
        self._victims = Victims(self._held)
        self._candidates = Candidates(_candidates_of(self._policy, capacity))

    def _reach(self, step: int) -> None:
        if self._held.steps.reach(step):
            self._victims.reset()  # it remembers the steps of residents as they were
        self._candidates.steps.reach(step)

    def _is_over(self, slots: NDArray[np.int64] | slice, now_s: int) -> NDArray[np.bool_]:
        """Whether the ids with these slots lose them now, as their time to live is over."""
        held, ttl_s = self._held, self._policy.ttl_s
        if ttl_s is None:
            return np.zeros(len(held.pinned[slots]), np.bool_)
        return ~held.pinned[slots] & (held.seen_s[slots] <= now_s - ttl_s)

    def _expire(self, now_s: int) -> NDArray[np.int64]:
        """Frees the slots of ids whose time is over; looks at all of them only if the first of them is due."""
        if self._policy.ttl_s is None or now_s < self._due_s:
            return _NOBODY
        held = self._held
        expired = np.flatnonzero(held.index.used & self._is_over(slice(None), now_s))
        held.leave(expired)
        self._due_s = (
            int(held.seen_s.min(where=held.may_leave(), initial=min(max(now_s, 0), MOST))) + self._policy.ttl_s
        )
        self.counts.expired += len(expired)
        return expired

    def _choose(
        self, ranks_u: NDArray[np.int64], may_u: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Which newcomers get a row, the most frequent first, and the slots of the least frequent who must leave."""
        at = np.flatnonzero(may_u)
        free = self._held.index.free
        if len(at) <= free:
            return at, _NOBODY
        order = at[np.argsort(-ranks_u[at], kind="stable")]
        waiting = ranks_u[order[free:]]
        if self._policy.evict != "lfu" or not len(first := self._victims.lowest(1, self._step)):
            return order[:free], _NOBODY
        counts = self._held.counts
        lowest = self._victims.lowest(int((waiting > counts[first[0]]).sum()), self._step)
        # The former descend and the latter ascend: from the first who isn't more frequent on, nobody is.
        evicted = lowest[counts[lowest] < waiting[: len(lowest)]]
        return order[: free + len(evicted)], evicted

    def _take_back(self, evicted: NDArray[np.int64]) -> None:
        """Remembers what is known of those who were evicted, in place of what was sighted of others with their keys."""
        held = self._held
        keys = held.index.keys[evicted]
        self._candidates.forget(keys)
        self._candidates.remember(keys, held.counts[evicted], held.steps[evicted])
