"""Snapshots in memory: taken there beside what is served, and out of it once nobody has a use for them."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from embershard.engine.beside import beside, let_go, without_frames
from embershard.engine.jobs import ActionJob
from embershard.engine.making import make_engine
from embershard.errors import ConfigError, EmbershardError, InvalidInput, Overloaded, SnapshotError
from embershard.meters import Work
from embershard.store import snapshot
from embershard_server.joint import Joint
from embershard_server.start import fitted_snapshot

if TYPE_CHECKING:
    from embershard.config import Config
    from embershard.engine.base import Engine
    from embershard.engine.tick import Action, Ticker
    from embershard.store.folder import DataDir
    from embershard.store.manifest import Snapshot
    from embershard_server.start import Started

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Load:
    """One that is under way."""

    version: int
    """Of the snapshot."""
    number: int
    """How many had begun before it; the same on every rank."""
    since_s: float = field(default_factory=time.monotonic)
    """When it began, in `time.monotonic()` seconds."""
    filled: Future[Engine] = field(default_factory=Future)
    """The engine, or the reason why there is none."""


class Loads:
    """What the engine's thread does about it (`actions` jointly, `chore` alone), and what callers ask for."""

    def __init__(self, started: Started, data: DataDir, config: Config) -> None:
        self._replica, self._data, self._config = started.replica, data, config
        self._world = started.replica.engine.world
        self._under_way: dict[int, _Load] = {}
        self._begun = 0
        self._making = threading.Lock()
        self._wanted: set[int] = set()
        """Versions that callers have loaded; others are in memory for a rollback alone."""
        self._tidied: Future[None] | None = None
        self.meters = Work()

    def serve(self, ticker: Ticker) -> None:
        """Before it ticks."""
        self._ticker, self.joint = ticker, Joint(ticker)

    @property
    def actions(self) -> dict[str, Action]:
        """What all ranks do together."""
        return {"load": self._load, "adopt": self._adopt, "unload": self._unload, "tidy": self._tidy}

    @property
    def versions(self) -> set[int]:
        """Those in memory, beside what is served, or on the way there; from any thread."""
        return {*list(self._under_way), *list(self._replica.loaded)}

    def chore(self) -> bool:
        """Whether there was anything to do."""
        if self._world.rank or not self._idle or (self._tidied and not self._tidied.done()):
            return False
        self._tidied = self._ticker.ask(ActionJob(action="tidy"))
        return True

    async def load(self, version: int) -> None:
        """Has a snapshot in memory, beside what is served, until it is unloaded or activated.

        Raises:
            SnapshotError, FingerprintMismatch: there is none, or it can't be used.
            Overloaded: there is no memory for it.
        """
        await self.joint.to_its_end(self._load_beside(version))

    async def unload(self, version: int) -> None:
        """Takes a snapshot out of memory.

        Raises:
            InvalidInput: it isn't there, or isn't on the disk yet.
        """
        await self.joint.act("unload", version)

    async def _load_beside(self, version: int) -> None:
        load: _Load | None = await self.joint.act("load", version)
        problem: BaseException | None = None
        if load is not None:
            filled = asyncio.wrap_future(load.filled)
            await asyncio.wait([filled])
            problem = filled.exception()
        try:
            await self.joint.act("adopt", (version, load.number if load else 0))
        except InvalidInput:
            if problem:  # which another caller of the same load has told before
                raise problem from None
            raise

    def _load(self, version: int) -> _Load | None:
        """Joint: begins to fill an engine with a snapshot, or tells of the load that does; None: it is there."""
        if version in self._under_way:
            return self._under_way[version]
        if version in self._replica.loaded and any(self._world.gather(version in self._replica.unsaved)):
            return None
        config, found = fitted_snapshot(self._config, self._data, version, self._world)
        if version in self._replica.loaded:  # and on the disk, too: a log that activates it can be applied
            return None
        made = None if self._replica.engine.made_beside else self._make(config, version)
        self._begun += 1
        load = self._under_way[version] = _Load(version=version, number=self._begun)
        beside("load", lambda: self._fill(load, config, found, made))
        return load

    def _fill(self, load: _Load, config: Config, found: Snapshot, made: Engine | None) -> None:
        try:
            engine = made or self._make(config, load.version)
            snapshot.load(engine, found, beside=f"load/{load.number}")
        except Exception as error:
            if not isinstance(error, EmbershardError):
                logger.error("version %d can't be loaded", load.version, exc_info=error)
            load.filled.set_exception(without_frames(error))
        else:
            load.filled.set_result(engine)

    def _make(self, config: Config, version: int) -> Engine:
        """Joint, or beside the tick: an engine for a snapshot."""
        try:
            with self._making:  # one has its memory before the next looks how much there is
                return make_engine(config, self._world, seeded=False)
        except ConfigError as error:
            raise Overloaded(f"version {version:,} can't be loaded: {error}") from error

    def _adopt(self, told: tuple[int, int]) -> None:
        """Joint: has what a load has filled, unless another caller of the same load was first."""
        version, number = told
        load = self._under_way.get(version)
        if load is not None and load.number == number:
            del self._under_way[version]
            problems = [problem for problem in self._world.gather(load.filled.exception()) if problem]
            if problems:
                self.meters.failures += 1
                raise problems[0] if isinstance(problems[0], EmbershardError) else SnapshotError(str(problems[0]))
            self._replica.loaded[version] = load.filled.result()
            self.meters.seconds.observe(time.monotonic() - load.since_s)
        if version not in self._replica.loaded:
            raise InvalidInput(f"version {version:,} was just activated, or taken out of memory; load it again")
        self._wanted = (self._wanted & self._replica.loaded.keys()) | {version}

    def _unload(self, version: int) -> None:
        """Joint: takes a snapshot out of memory."""
        if version not in self._replica.loaded:
            raise InvalidInput(f"version {version:,} isn't loaded")
        if version == self._replica.activating:
            raise InvalidInput(f"version {version:,} is being activated")
        if any(self._world.gather(version in self._replica.unsaved)):  # ranks learn at different times that it is
            raise InvalidInput(f"version {version:,} isn't on the disk yet; try again once it is")
        self._wanted.discard(version)
        let_go([self._replica.loaded.pop(version)])

    def _tidy(self, _: Any) -> None:
        """Joint: takes out of memory what is idle on every rank."""
        for version in set.intersection(*self._world.gather(self._idle)):
            let_go([self._replica.loaded.pop(version)])

    @property
    def _idle(self) -> set[int]:
        """Versions in memory that no caller has loaded, and no rollback needs any more."""
        replica = self._replica
        busy = self._wanted | replica.unsaved.keys() | {replica.before, replica.activating}
        return replica.loaded.keys() - busy
