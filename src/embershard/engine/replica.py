"""What entries change, the same on every rank: the tables that are served, who has sent what, and the version.

The same entries, applied one after the other, make the same replica: when calls bring them, and when a log is replayed.
Whatever depends on anything else (memory, disks, clocks) is decided before an entry is logged.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from embershard.change import Change
from embershard.collection import Collection
from embershard.engine import steps
from embershard.engine.beside import let_go
from embershard.engine.entries import Kind, entry_of
from embershard.engine.freezing import freeze
from embershard.engine.growth import grow
from embershard.errors import InvalidInput, SequenceGap

if TYPE_CHECKING:
    from embershard.engine.base import Engine
    from embershard.engine.clients import Clients
    from embershard.engine.entries import Entry
    from embershard.engine.growth import Growing, Growth
    from embershard.errors import EmbershardError


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What has become of an entry."""

    version: int
    """The first that has it."""
    value: Any = None
    """What else its caller is told."""
    duplicate: bool = False
    """Whether it was applied before."""
    refusal: EmbershardError | None = None
    """Why nothing has changed but the version's number; on the rank that brought it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Grown:
    """What a caller is told of a growth."""

    rows: int
    """Rows of the table."""
    pause_ms: float
    """How long calls have waited for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Activation:
    """That other tables were served."""

    version: int
    """The first with them."""
    activated: int
    """Version of the snapshot that they are."""
    before: int
    """Version of what was served before, if it was kept; else 0."""


class Replica:
    """The tables of one rank, and all that is known beside them."""

    def __init__(
        self,
        engine: Engine,
        *,
        version: int,
        clients: Clients,
        activations: Sequence[Activation] = (),
        load: Callable[[int], Engine],
    ) -> None:
        """`load` is joint, and makes an engine of a snapshot's version."""
        self.engine, self.version, self.clients = engine, version, clients
        self.activations = list(activations)
        """Those that the log may still have, and the last one."""
        self.loaded: dict[int, Engine] = {}
        """Snapshots in memory beside what is served, by version."""
        self.activating = 0
        """The version of the snapshot that an entry on its way is to serve; 0: there is none."""
        self.unsaved: dict[int, Clients] = {}
        """Those of them that aren't on the disk yet, with who had sent what."""
        self.growing: Growing | None = None
        """What was made ready for a growth."""
        self._load = load
        self.collection = Collection(engine.config, bounded=False)
        """What requests are checked against, from any thread; replaced when the tables are. Until calls are answered,
        no request is too large: what a log has was accepted once."""

    def serve(self) -> None:
        """From now on calls are answered."""
        self.collection = Collection(self.engine.config, self.collection.generation + 1)

    @property
    def before(self) -> int:
        """The version that a rollback serves again; 0: there is none."""
        return self.activations[-1].before if self.activations else 0

    def _adopt(self) -> None:
        old = self.collection
        self.collection = Collection(self.engine.config, old.generation + 1, bounded=old.bounded)

    def apply(self, entry: Entry, now_s: int, *, mine: bool) -> Outcome:
        """Joint: makes the next version; `mine` on the one rank that brings the entry, and learns why it is refused."""
        self.version += 1
        try:
            match entry.kind:
                case Kind.UPDATE | Kind.SIGHT:
                    return self._change(entry, now_s, mine=mine)
                case Kind.GROW:
                    return Outcome(version=self.version, value=self._grow(entry.body))
                case Kind.FREEZE:
                    batch, frozen = entry.body
                    return Outcome(version=self.version, value=freeze(self.engine, batch, frozen=frozen))
                case _:
                    value = self._activate(entry.body, keep=entry.kind is Kind.ACTIVATE)
                    return Outcome(version=self.version, value=value)
        except (InvalidInput, SequenceGap) as refusal:  # on every rank, and before anything has changed
            return Outcome(version=self.version, refusal=refusal)

    def _change(self, entry: Entry, now_s: int, *, mine: bool) -> Outcome:
        """Joint: an update, or sightings."""
        refusal: EmbershardError | None = None
        if entry.generation != self.collection.generation:
            entry, refusal = self._prepared_again(entry, mine=mine)
            if self._refused(refusal):
                return Outcome(version=self.version, refusal=refusal)
        if entry.kind is Kind.SIGHT:
            steps.sight(self.engine, entry.body if mine else (), entry.work, now_s)
            return Outcome(version=self.version)
        if (version := self.clients.version_of(entry.client, entry.sequence)) is not None:
            return Outcome(version=version, duplicate=True)
        refusal = steps.update(self.engine, entry.body if mine else Change.nothing(), entry.work, now_s)
        if not self._refused(refusal):
            self.clients.note(entry.client, entry.sequence, self.version)
        return Outcome(version=self.version, refusal=refusal)

    def _prepared_again(self, entry: Entry, *, mine: bool) -> tuple[Entry, EmbershardError | None]:
        """Joint: for tables that have changed since it was prepared; with the reason why it doesn't fit them."""
        again, refusal = None, None
        if mine:
            try:
                again = entry_of(entry.kind, entry.request, self.collection)
            except InvalidInput as error:
                refusal = error
        told = [told for told in self.engine.world.gather(again and again.told()) if told]
        return again or (told[0] if told else entry), refusal

    def _refused(self, refusal: EmbershardError | None) -> bool:
        """Joint: whether the rank that brings an entry refuses it."""
        return bool(self.engine.world.sum(torch.tensor([refusal is not None], dtype=torch.int64)).item())

    def _grow(self, growth: Growth) -> Grown:
        """Joint: gives a table more rows."""
        start = time.perf_counter()
        rows = grow(self.engine, growth, self.growing)
        self._adopt()
        return Grown(rows=rows, pause_ms=(time.perf_counter() - start) * 1000)

    def _activate(self, target: int, *, keep: bool) -> Activation:
        """Joint: serves the tables of a snapshot, which are in memory already unless a log is replayed."""
        served, before = [self.engine], self.version - 1 if keep else 0
        # Whoever deletes snapshots, on another thread, sees the target here or among those that are loaded.
        self.activations.append(Activation(version=self.version, activated=target, before=before))
        self.engine = self.loaded.pop(target) if target in self.loaded else self._load(target)
        self.unsaved.pop(target, None)
        if keep:
            self.loaded[before], self.unsaved[before] = *served, self.clients.copy()
        else:
            let_go(served)
        self.activating = 0
        self._adopt()
        return self.activations[-1]
