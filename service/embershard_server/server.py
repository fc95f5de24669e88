"""One rank's process: replica, ticker and front end; how they start, and how they leave together."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
from typing import TYPE_CHECKING

import grpc
import grpc.aio
from grpc_health.v1 import health

from embershard.engine.tick import Ticker
from embershard.errors import ConfigError, SnapshotError
from embershard.meters import FrontMeters
from embershard_server.descriptors import connections_for
from embershard_server.gate import Gate
from embershard_server.growths import Growths
from embershard_server.handlers import service
from embershard_server.loads import Loads
from embershard_server.publications import Publications
from embershard_server.readiness import Pulse
from embershard_server.rpcs import ADMIN, EMBEDDING, SERVICES, admin, embedding
from embershard_server.servicers import Servicers
from embershard_server.sources import Sources
from embershard_server.standard import Health, reflection_handlers
from embershard_server.versions import Versions

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from embershard.config import Config
    from embershard.store.folder import DataDir
    from embershard_server.observing import Observing
    from embershard_server.protection import Protection
    from embershard_server.start import Started

logger = logging.getLogger(__name__)

GRACE_S = 10.0
"""Longest that calls in flight may take to finish when the server leaves."""
KEEPALIVE_S = 20
"""A connection is checked so often, and ends if it doesn't answer within half of that."""
SWITCH_S = 0.0005
"""Longest that a thread keeps Python from another one that wants it; its own 5 ms are longer than most lookups."""
HEADER_BYTES = 2**20
"""What an answer may have around its vectors."""
FAILED = 70
"""Exit status of a rank whose engine failed: start it again (EX_SOFTWARE of sysexits.h)."""
HOST_LEFT = 75
"""Exit status of a rank that has left as another host was told to: start it again, to wait for that (EX_TEMPFAIL)."""


class Server:
    """One rank's front end and ticker around a replica."""

    def __init__(
        self,
        started: Started,
        config: Config,
        *,
        address: str,
        data: DataDir,
        protection: Protection,
        observing: Observing,
    ) -> None:
        self._protection, self._observing = protection, observing
        self._meters = FrontMeters(examine_every=observing.examine_every)
        self._replica, self._log = started.replica, started.log
        self._world = started.replica.engine.world
        self._limits, self._address = config.limits, address
        self._loads, self._growths = Loads(started, data, config), Growths(started.replica)
        self._publications = Publications(started, data, config)
        self._versions = Versions(started, data, config, self._loads, self._publications.trim)
        self._loop = asyncio.get_running_loop()
        self._leaving, self._told = asyncio.Event(), False
        self._health = Health(SERVICES)
        self._status = 0

    async def run(self, announce: Callable[[str, int], None]) -> int:
        """Serves, and leaves with the group; returns the status.

        `announce` is called with the address and version, once lookups are answered.

        Raises:
            ConfigError: the address can't be had.
        """
        parts = (self._versions, self._loads, self._growths, self._publications)
        ticker = Ticker(
            self._replica,
            self._log,
            actions={name: action for part in parts for name, action in part.actions.items()},
            chore=lambda: self._versions.chore() or self._loads.chore(),
            farewell=self._save_last,
            asked_to_leave=lambda: self._from_thread(self._leaving.set),
            lost=lambda error: self._from_thread(self._lose, error),
        )
        for part in parts:
            part.serve(ticker)
        gate = Gate(self._limits, self._protection.access)
        servicers = Servicers(self._replica, ticker, *parts, gate, self._meters)
        shared = gate, self._meters
        handlers = [
            # Not the generated ones, as `codec` serialises lookups and `handlers` reads requests.
            service(EMBEDDING, embedding(servicers, ticker.queue.check_lookup), *shared, self._observing.tracing),
            service(ADMIN, admin(servicers), *shared, self._observing.tracing),
            self._health.handler(*shared),
            *reflection_handlers([*SERVICES, health.SERVICE_NAME], *shared),
        ]
        front, address = await self._open(handlers)
        self._observing.observe(self._sources(ticker, gate))
        watching = asyncio.create_task(gate.sweep())
        watching.add_done_callback(self._watched)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._obey)
        # Two threads share Python here, and either would keep it from the other for as long as that.
        sys.setswitchinterval(SWITCH_S)
        # What is there now stays, most of it torch's: the garbage collector would go through it while calls wait.
        gc.collect()
        gc.freeze()
        ticker.start()
        pulse = Pulse(ticker, self._observing.readiness, self._meters.pulses, self._health.tell)
        beating = asyncio.create_task(pulse.run())
        beating.add_done_callback(self._watched)
        try:
            if await self._serves(pulse):
                announce(address, ticker.version)
            await self._leaving.wait()
            logger.info("leaving: finishing the calls in flight")
            pulse.stop()
            ticker.leave(ready=False)
            gate.leave()
            await self._close(front, gate)
        finally:  # whatever happened: the engine's thread would keep the process
            ticker.leave(ready=True)
            await asyncio.to_thread(ticker.join)
            for part in parts:
                await part.joint.settle()
            watching.cancel()
            beating.cancel()
            if self._log is not None:
                await asyncio.to_thread(self._log.close)
        if self._status != FAILED:
            await asyncio.to_thread(self._world.leave)
        if not (self._status or self._told) and self._world.local_size < self._world.size:
            logger.info("another host was told to leave; this one is to be started again, and waits for it")
            return HOST_LEFT
        return self._status

    async def _open(self, handlers: Sequence[grpc.GenericRpcHandler]) -> tuple[grpc.aio.Server, str]:
        most = self._limits.message_bytes
        front = grpc.aio.server(
            options=[
                ("grpc.max_receive_message_length", most),
                ("grpc.max_send_message_length", most + HEADER_BYTES),
                # Without this, a second server on the same port would take every other call in silence.
                ("grpc.so_reuseport", 0),
                # Those that have come and wait for this process to take them, and refuse them with a reason if they
                # are too many. Where even that is too slow, gRPC cuts calls off without one (CANCELLED), at a tenth of
                # the cost: more and more of them from the first number on, and all beyond the second.
                ("grpc.server.max_pending_requests", self._limits.calls // 4),
                ("grpc.server.max_pending_requests_hard_limit", self._limits.calls // 2),
                # Clients may ask every ten seconds whether the server is still there, and the server asks, too: a
                # client that has gone without a word holds nothing for long.
                ("grpc.http2.min_recv_ping_interval_without_data_ms", 10_000),
                ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
                ("grpc.keepalive_timeout_ms", KEEPALIVE_S * 1000 // 2),
                ("grpc.keepalive_permit_without_calls", 1),
                ("grpc.server_handshake_timeout_ms", KEEPALIVE_S * 1000),
                # What one connection may have at most; a client with more keeps them on its side.
                ("grpc.max_concurrent_streams", self._limits.calls // 2),
                ("grpc.max_allowed_incoming_connections", connections_for(self._limits.calls)),
            ],
        )
        front.add_generic_rpc_handlers(handlers)
        host, _, port = self._address.rpartition(":")
        try:
            if certificates := self._protection.certificates:
                bound = front.add_secure_port(self._address, certificates.server_credentials())
            else:
                bound = front.add_insecure_port(self._address)
        except RuntimeError as error:
            raise ConfigError(f"can't listen on {self._address}: {error}; give another --listen HOST:PORT") from error
        await front.start()
        return front, f"{host}:{bound or port}"

    async def _close(self, front: grpc.aio.Server, gate: Gate) -> None:
        """Lets calls end; what stays open after that are connections on which nothing is asked, and health watches."""
        stopping = asyncio.create_task(front.stop(GRACE_S))
        drained = asyncio.create_task(gate.drained())
        await asyncio.wait([stopping, drained], return_when=asyncio.FIRST_COMPLETED)
        if not drained.done():
            logger.warning("calls that didn't end within %.0f s are cut off", GRACE_S)
            drained.cancel()
        await front.stop(None)
        await stopping

    def _obey(self) -> None:
        self._told = True
        self._leaving.set()

    def _watched(self, watching: asyncio.Task[None]) -> None:
        if not watching.cancelled() and (error := watching.exception()):
            self._lose(error)

    async def _serves(self, pulse: Pulse) -> bool:
        """Waits until it does, or leaves; tells which."""
        waiting = [asyncio.create_task(event.wait()) for event in (pulse.begun, self._leaving)]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        for task in waiting:
            task.cancel()
        return pulse.begun.is_set()

    def _sources(self, ticker: Ticker, gate: Gate) -> Sources:
        return Sources(
            replica=self._replica,
            ticker=ticker,
            log=self._log,
            gate=gate,
            front=self._meters,
            versions=self._versions,
            loads=self._loads,
            publications=self._publications,
        )

    def _save_last(self) -> None:
        """Joint: so that the next start has no log to apply; what is in the log is safe without it."""
        try:
            made = self._versions.farewell()
        except SnapshotError as error:
            self._status = 1
            logger.error("the last snapshot failed: %s", error)
        else:
            logger.info("wrote %s", made.path)

    def _lose(self, error: BaseException) -> None:
        """The engine can't go on, and every rank ends: what callers wait for is already refused."""
        self._status = FAILED
        logger.error("the engine failed: all ranks end and must be started again", exc_info=error)
        self._leaving.set()

    def _from_thread(self, function: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(function, *arguments)
