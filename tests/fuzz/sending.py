"""Sends requests to every rank, many at once, and looks at how each ends."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import grpc
import grpc.aio
from support.service import Service
from tqdm import tqdm

from embershard.errors import STATUS_BY_ERROR
from embershard.v1 import embershard_pb2 as pb
from fuzz.requests import Request

TELLING = re.compile(r'Traceback|File "|(Error|Exception):|\.py\b|\n  ')
"""What tells of the server's inside."""
BATCH, AT_ONCE = 1_000, 32
DEADLINE_S, WAIT_S = 30.0, 0.2
"""A call that takes so long hangs; one that waits for a version that never comes does so on purpose."""
LONGEST = 1_100
CALLERS_OWN, CALLER_SAYS = "(caller's own)", "Internal error from Core"
"""What the caller's gRPC makes of a call that ended while it was sending; the server's status isn't known then."""
ALLOWED = {"OK", CALLERS_OWN, *STATUS_BY_ERROR.values()} - {"INTERNAL"}
UNSURE = {"OK", CALLERS_OWN, "CANCELLED", "DEADLINE_EXCEEDED", "UNAVAILABLE"}
"""Of a request that ended so, some or all may have been applied."""
DISTINCT = 20
"""So many findings are enough."""


@dataclass(frozen=True, slots=True)
class Ending:
    """How a request ended."""

    request: Request
    status: str
    details: str
    answers: int

    @property
    def refused(self) -> bool:
        """Whether all of it was, for certain."""
        return not self.answers and self.status not in (
            "OK",
            CALLERS_OWN,
            "CANCELLED",
            "DEADLINE_EXCEEDED",
            "UNAVAILABLE",
        )

    @property
    def problem(self) -> str:
        """What must not be; empty: nothing."""
        late = self.status in ("CANCELLED", "DEADLINE_EXCEEDED")  # whichever side was first to notice
        if self.status not in ALLOWED and not (late and self.request.waits):
            return "a status that isn't ours"
        if late and not self.request.waits:
            return f"it hung for {DEADLINE_S:.0f} s"
        if self.status != "OK" and not 0 < len(self.details) <= LONGEST:
            return "no reason, or too long a one"
        return "the server's inside is told" if TELLING.search(self.details) else ""


@dataclass
class Log:
    """What has come of all requests so far."""

    statuses: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By method and status."""
    findings: dict[str, str] = field(default_factory=dict)
    """By what is the same of those that differ in numbers alone."""

    def note(self, where: str, ending: Ending) -> None:
        self.statuses[ending.request.method.split("/")[1], ending.status] += 1
        if ending.problem:
            self.found(where, ending, ending.problem)

    def found(self, where: str, ending: Ending, problem: str) -> None:
        key = re.sub(r"\d+", "0", f"{ending.request.method} {problem} {ending.details[:80]}")
        told = f"{where}: {problem}: {ending.status} {ending.details!r}\n  {ending.request}"
        if len(self.findings) < DISTINCT:
            self.findings.setdefault(key, told)


async def send(service: Service, requests: Iterable[Request], log: Log, where: str) -> list[Ending]:
    """All of them; after each batch every rank must answer."""
    pending, endings = list(requests), []
    free = asyncio.Semaphore(AT_ONCE)
    async with _channels(service) as channels:

        async def one(number: int, request: Request) -> Ending:
            async with free:
                ending = await _send(channels[number % len(channels)], request)
            log.note(where, ending)
            return ending

        with tqdm(total=len(pending), desc=where, unit="requests", delay=2, disable=None) as progress:
            for first in range(0, len(pending), BATCH):
                batch = pending[first : first + BATCH]
                endings += await asyncio.gather(*(one(number, request) for number, request in enumerate(batch)))
                await _check_lives(service, channels, where)
                progress.update(len(batch))
    return endings


@asynccontextmanager
async def _channels(service: Service) -> AsyncIterator[list[grpc.aio.Channel]]:
    """Two connections with each rank."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(at, options=options) for at in service.addresses.values() for _ in range(2)]
    try:
        yield channels
    finally:
        for channel in channels:
            await channel.close()


async def _send(channel: grpc.aio.Channel, request: Request) -> Ending:
    timeout_s, answers = WAIT_S if request.waits else DEADLINE_S, 0
    path = f"/embershard.v1.{request.method}"
    try:
        if request.streams:
            call = channel.stream_stream(path)(timeout=timeout_s)
            # One after the other: a caller that is still sending when it is refused may not hear why.
            for message in request.messages:
                await call.write(message)
                if await call.read() is grpc.aio.EOF:
                    break
                answers += 1
            with suppress(grpc.aio.InternalError):  # it has just ended, and what follows tells how
                await call.done_writing()
            while await call.read() is not grpc.aio.EOF:
                answers += 1
        else:
            await channel.unary_unary(path)(request.messages[0], timeout=timeout_s)
            answers = 1
    except grpc.aio.AioRpcError as error:
        status, details = error.code().name, error.details() or ""
        return Ending(request, CALLERS_OWN if details == CALLER_SAYS else status, details, answers)
    return Ending(request, "OK", "", answers)


async def _check_lives(service: Service, channels: list[grpc.aio.Channel], where: str) -> None:
    assert service.process.poll() is None, f"{where}: the service ended:\n{service.output}"
    for channel in channels:
        describe = channel.unary_unary("/embershard.v1.EmbeddingService/Describe")
        assert pb.DescribeResponse.FromString(await describe(b"", timeout=DEADLINE_S)).name == "fuzz"
