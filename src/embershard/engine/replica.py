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
from embershard.engine.delta import Delta, write_delta
from embershard.engine.entries import Kind, entry_of
from embershard.engine.freezing import freeze
from embershard.engine.growth import grow
from embershard.errors import InvalidInput, SequenceGap
from embershard.meters import EngineMeters

if TYPE_CHECKING:
    from embershard.engine.base import Engine
    from embershard.engine.clients import Clients
    from embershard.engine.entries import Entry
    from embershard.engine.growth import Growing, Growth
    from embershard.engine.publication import Logged, Publication
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
class Served:
    """What a caller is told of a publication."""

    rows: int = 0
    """Of a delta: rows that were written."""
    frozen: int = 0
    """Of a delta: rows that stayed as they were, because they are frozen here."""
    before: int = 0
    """Of a full one: version of what was served before."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Activation:
    """That other tables were served."""

    version: int
    """The first with them."""
    activated: int
    """Version of the snapshot that they are; of a publication, the same as `version`."""
    before: int
    """Version of what was served before, if it was kept; else 0."""


@dataclass(kw_only=True, slots=True, eq=False)
class Staged:
    """A publication whose files are being read, or were."""

    publication: Publication
    """What it is."""
    made: Engine | Delta | None = None
    """What its files hold."""
    on_its_way: bool = False
    """Whether an entry is to serve it."""

    @property
    def replaces(self) -> bool:
        """Whether an entry on its way is to serve other tables."""
        return self.on_its_way and not self.publication.delta


class Replica:
    """The tables of one rank, and all that is known beside them."""

    def __init__(
        self,
        engine: Engine,
        *,
        version: int,
        clients: Clients,
        activations: Sequence[Activation] = (),
        publications: Sequence[Logged] = (),
        load: Callable[[int], Engine],
        fetch: Callable[[Publication, Engine], Engine | Delta],
    ) -> None:
        """`load` is joint, and makes an engine of a snapshot's version; `fetch`, too, has what a publication's files
        hold: an engine, or what is to be written into the given one."""
        self.engine, self.version, self.clients = engine, version, clients
        self.served = version
        """The last version that is whole: while an entry is applied, that before it."""
        self.activations = list(activations)
        """Those that the log may still have, and the last one."""
        self.publications = list(publications)
        """Those that the log may still have."""
        self.published_bytes = 0
        """Of all publications that were applied."""
        self.loaded: dict[int, Engine] = {}
        """Snapshots in memory beside what is served, by version."""
        self.activating = 0
        """The version of the snapshot that an entry on its way is to serve; 0: there is none."""
        self.unsaved: dict[int, Clients] = {}
        """Those of them that aren't on the disk yet, with who had sent what."""
        self.growing: Growing | None = None
        """What was made ready for a growth."""
        self.staged: Staged | None = None
        """The publication that is made ready, or on its way."""
        self.meters = EngineMeters()
        """What the engine's thread counts."""
        self._load, self._fetch = load, fetch
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
        outcome = self._applied(entry, now_s, mine=mine)
        self.served = self.version
        return outcome

    def _applied(self, entry: Entry, now_s: int, *, mine: bool) -> Outcome:
        try:
            match entry.kind:
                case Kind.UPDATE | Kind.SIGHT:
                    return self._change(entry, now_s, mine=mine)
                case Kind.GROW:
                    return Outcome(version=self.version, value=self._grow(entry.body))
                case Kind.FREEZE:
                    batch, frozen = entry.body
                    return Outcome(version=self.version, value=freeze(self.engine, batch, frozen=frozen))
                case Kind.PUBLISH:
                    try:
                        return self._publish(entry.body)
                    finally:
                        self.staged = None
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
        # Whoever deletes snapshots, on another thread, sees the target here or among those that are loaded.
        self.activations.append(
            Activation(version=self.version, activated=target, before=self.version - 1 if keep else 0)
        )
        self._swap(self.loaded.pop(target) if target in self.loaded else self._load(target))
        self.unsaved.pop(target, None)
        self.activating = 0
        return self.activations[-1]

    def _publish(self, told: Publication) -> Outcome:
        """Joint: serves what a training job has made, which is in memory already unless a log is replayed."""
        if not told.follows(self.engine.published):
            return Outcome(version=self.engine.published.version, value=Served(), duplicate=True)
        if told.delta:
            told.check_rows(self.engine.config)
        # Whatever becomes of it, who applies the log again needs its files: they stay from here on.
        self.publications.append(told.logged(self.version))
        self.published_bytes += told.bytes
        staged = self.staged
        made = staged.made if staged and staged.publication == told else None
        if made is None or (isinstance(made, Delta) and not made.fits(self.engine)):  # tables have changed since
            made = self._fetch(told, self.engine)
        if isinstance(made, Delta):
            written = write_delta(self.engine, made)
            value = Served(rows=written.rows, frozen=written.frozen)
        else:
            self.activations.append(Activation(version=self.version, activated=self.version, before=self.version - 1))
            for vocabulary in made.vocabularies.values():
                vocabulary.adopt_all()
            self._swap(made)
            value = Served(before=self.version - 1)
        self.engine.published = told.published(self.version)
        return Outcome(version=self.version, value=value)

    def _swap(self, engine: Engine) -> None:
        """Serves other tables, as the last activation says; what was served is kept or dropped."""
        served, self.engine = [self.engine], engine
        if before := self.activations[-1].before:
            self.loaded[before], self.unsaved[before] = *served, self.clients.copy()
        else:
            let_go(served)
        self._adopt()
