"""What has changed in a training job's tables since it was last asked for, to be published.

Whoever changes rows tells first which (`Shard.watchers`), and a bit a row remembers it. Who owns which row by a
vocabulary is compared with what it was.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from embershard.engine.delta import PUBLISHED

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from embershard.engine.base import Engine
    from embershard.engine.shard import Shard
    from embershard.vocabulary import Vocabulary

Columns = dict[str, Any]
"""{name: a tensor or an array with an item a row or id}, and strings as `names`."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Changes:
    """What one rank has to publish of a delta; nobody else's, and on the CPU."""

    rank: int
    """Which it is."""
    world_size: int
    """Of how many."""
    layout: Mapping[str, Any]
    """Of the tables."""
    optimizers: Mapping[str, str]
    """{table: kind}."""
    rows: Mapping[str, Columns]
    """{matrix: `rows` int64 [n], ascending, and each kind [n] or [n, D]}, of rows that are known by number."""
    owned: Mapping[str, Columns]
    """{table: `keys`, `names`, `counts`, `steps`, `seen_s` [u], and each kind}, of rows that ids own."""
    gone: Mapping[str, Columns]
    """{table: `keys` and `names`} of ids that have lost their row; the first rank has it."""
    vocabularies: Mapping[str, Columns]
    """{table: the whole state}, where vectors are made of rows that several ids share; likewise."""
    taken: _Taken | None = None
    """How `Touched.put_back` finds them again."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Taken:
    """What was touched when it was taken."""

    since: int
    """How often something had been taken before."""
    shards: Mapping[str, tuple[Shard, Tensor]]
    """{group: the shard, and which of its rows}."""
    residents: Mapping[str, _Residents]
    """{table: who had owned which row before}."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Residents:
    """Who owns which row of a table."""

    keys: NDArray[np.int64]
    used: NDArray[np.bool_]
    names: NDArray[np.object_]
    steps: int

    @classmethod
    def of(cls, vocabulary: Vocabulary) -> _Residents:
        keys, used, names = vocabulary.residents()
        return cls(keys=keys, used=used, names=names, steps=vocabulary.steps)

    def gone(self, vocabulary: Vocabulary) -> Columns:
        """Those who own none any more."""
        now = _Residents.of(vocabulary)
        size = len(self.keys)
        differs = (now.keys[:size] != self.keys) | (now.used[:size] != self.used)
        differs |= np.asarray(now.names[:size] != self.names, bool)
        slots = np.flatnonzero(self.used & differs)
        keys, names = self.keys[slots], self.names[slots]
        lost = ~vocabulary.holds(keys, names)
        return {"keys": keys[lost], "names": names[lost].tolist()}


@dataclass(kw_only=True, slots=True, eq=False)
class _Watched:
    """One shard, and which of its rows were touched."""

    shard: Shard
    touched_R: Tensor = field(init=False)

    def __post_init__(self) -> None:
        self.touched_R = torch.zeros(self.shard.group.block_rows, dtype=torch.bool, device=self.shard.weight.device)
        self.shard.watchers.append(self.note)

    def note(self, local_M: Tensor) -> None:
        self.touched_R[local_M] = True

    def close(self) -> None:
        if self.note in self.shard.watchers:
            self.shard.watchers.remove(self.note)


class Touched:
    """Watches an engine from now on; all of it is for the thread that changes rows.

    What was touched before belongs to a publication in full: a job that writes a snapshot begins to watch (or calls
    `clear`) in the step of that snapshot. A stack that grows counts as touched as a whole.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine, self._takes = engine, 0
        self._watched = {name: _Watched(shard=shard) for name, shard in engine.shards.items()}
        self._residents = {name: _Residents.of(vocabulary) for name, vocabulary in engine.vocabularies.items()}
        self._since = 0

    def take(self) -> Changes:
        """Copies this rank's rows that have changed since they were last taken, and begins anew."""
        engine = self._engine
        self._follow()
        local = {name: watched.touched_R.nonzero()[:, 0] for name, watched in self._watched.items()}
        first = engine.world.rank == 0
        rows, owned = self._rows(local)
        by_slot = {name for name in engine.vocabularies if not engine.config.table(name).owns_rows}
        taken = _Taken(
            since=self._since,
            shards={name: (watched.shard, local[name]) for name, watched in self._watched.items()},
            residents=self._residents,
        )
        gone = {
            name: self._residents[name].gone(engine.vocabularies[name])
            for name in engine.vocabularies
            if first and name not in by_slot
        }
        changes = Changes(
            rank=engine.world.rank,
            world_size=engine.world.size,
            layout=engine.config.layout(),
            optimizers={table.name: engine.config.optimizer_of(table).kind for table in engine.config.tables},
            rows=rows,
            owned=owned,
            gone={name: columns for name, columns in gone.items() if len(columns["keys"])},
            vocabularies={
                name: engine.vocabularies[name].state()
                for name in by_slot
                if first and engine.vocabularies[name].steps != self._residents[name].steps
            },
            taken=taken,
        )
        self.clear()
        return changes

    def clear(self) -> None:
        """Begins anew, as if nothing had changed."""
        self._follow()
        self._takes += 1
        self._since = self._takes
        for watched in self._watched.values():
            watched.touched_R.zero_()
        self._residents = {name: _Residents.of(vocabulary) for name, vocabulary in self._engine.vocabularies.items()}

    def put_back(self, changes: Changes) -> None:
        """They couldn't be published: the next ones that are taken have them, too, as the rows are then."""
        assert changes.taken
        self._follow()
        for name, (shard, local_n) in changes.taken.shards.items():
            same = self._watched[name].shard is shard
            self._watched[name].touched_R[local_n if same else slice(None)] = True
        if changes.taken.since < self._since:
            self._since, self._residents = changes.taken.since, dict(changes.taken.residents)

    def close(self) -> None:
        """Watches no more."""
        for watched in self._watched.values():
            watched.close()

    def _follow(self) -> None:
        """Watches the stacks that there are now."""
        for name, shard in self._engine.shards.items():
            if self._watched[name].shard is not shard:
                self._watched[name].close()
                self._watched[name] = _Watched(shard=shard)
                self._watched[name].touched_R.fill_(True)

    def _rows(self, local: Mapping[str, Tensor]) -> tuple[dict[str, Columns], dict[str, Columns]]:
        """Copies of these rows of each shard: by number, and of ids."""
        engine, rows, owned = self._engine, {}, {}
        for group in engine.groups:
            shard, local_n = engine.shards[group.name], local[group.name]
            for matrix, slot in group.slots.items():
                here, first = slot.local(engine.world.rank), slot.held(engine.world.rank)[0]
                of_matrix = local_n[(local_n >= here.start) & (local_n < here.stop)]
                numbers_n = of_matrix.cpu() - here.start + first
                vocabulary = engine.vocabularies.get(matrix) if slot.matrix.table.owns_rows else None
                if vocabulary:
                    of_ids_n = numbers_n >= vocabulary.first_row
                    slots_u = numbers_n[of_ids_n].numpy() - vocabulary.first_row
                    used_u = vocabulary.used(slots_u)
                    ids = vocabulary.owners(slots_u[used_u])
                    ids |= _kinds(shard, of_matrix[of_ids_n][torch.from_numpy(used_u)])
                    owned[matrix] = ids
                    of_matrix, numbers_n = of_matrix[~of_ids_n], numbers_n[~of_ids_n]
                rows[matrix] = {"rows": numbers_n, **_kinds(shard, of_matrix)}
        return rows, owned


def _kinds(shard: Shard, local_n: Tensor) -> Columns:
    """{kind: [n] or [n, D]} of rows of a shard."""
    dim = shard.group.stored_dim
    copies = {kind: tensor.index_select(0, local_n) for kind, tensor in shard.kinds.items() if kind in PUBLISHED}
    return {kind: (rows if rows.ndim == 1 else rows[:, :dim]).cpu().contiguous() for kind, rows in copies.items()}
