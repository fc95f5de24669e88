"""Callers who ask at times fixed beforehand, whatever becomes of what they asked before, or for as much as they get.

They send ready-made bytes (`http2`), and hold back as embershard's own clients do.
"""

from __future__ import annotations

import select
import time
from bisect import bisect
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from http2 import Connection, Ended

from embershard.client.throttle import PAUSE_S, Throttle
from embershard.errors import Overloaded
from embershard.v1 import embershard_pb2 as pb

ROWS: Final = 1_000_000
CONNECTIONS: Final = 4
"""Of each client."""
BATCH: Final = 64
TICK_S: Final = 0.002
"""A client looks so often at what is due and what has come: lookups are late by half of it, and the machine is left to
the server."""
MOST: Final = 256
"""Lookups at once on one connection: the server takes no more."""
TIMEOUT_MS: Final = 2_000
OK: Final = 0
REFUSED: Final = (1, 8)
"""CANCELLED by gRPC, as too many wait, or RESOURCE_EXHAUSTED."""
HELD_BACK: Final = -1
"""Of a lookup that a client doesn't send."""


@dataclass(frozen=True)
class Order:
    """What one client is to do."""

    target: str
    ids: int
    seconds: float
    seed: int
    rate: float = 0.0
    """Lookups a second at random times; 0: as fast as answers come."""
    at_once: int = 0
    """Lookups at once, if answers are waited for."""
    throttled: bool = True
    """Whether the client holds back."""


@dataclass
class Client:
    """Sends lookups, and notes of each (when it was to be sent, when it was, when it ended, status)."""

    order: Order
    pending: dict[tuple[int, int], tuple[float, float, float]] = field(default_factory=dict)
    ended: list[tuple[float, float, float, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        rng = np.random.default_rng(self.order.seed)
        ids = [rng.integers(0, ROWS, self.order.ids).astype("<i8").tobytes() for _ in range(64)]
        self.messages = [
            pb.LookupRequest(features=[pb.FeatureIds(feature="item", ids=part)]).SerializeToString() for part in ids
        ]
        self.connections = [Connection(self.order.target) for _ in range(CONNECTIONS)]
        self.open_on = [0] * CONNECTIONS
        self.at = {connection.socket: at for at, connection in enumerate(self.connections)}
        path = "/embershard.v1.EmbeddingService/Lookup"
        self.head = self.connections[0].head(path, timeout_ms=TIMEOUT_MS)
        self.throttle = Throttle() if self.order.throttled and self.order.rate else None
        gaps = rng.exponential(1 / max(self.order.rate, 1e-9), int(self.order.rate * self.order.seconds))
        self.times = np.cumsum(gaps).tolist()

    def note(self, call: Ended, begun: float) -> None:
        """Tells the throttle what has become of a lookup."""
        if not self.throttle:
            return
        if call.status == OK:
            self.throttle.accepted()
        elif call.status in REFUSED:
            self.throttle.refused(begun, PAUSE_S if call.pushback_ms is None else call.pushback_ms / 1000)
        else:
            self.throttle.ended()

    def send(self, at: int, dues: list[float]) -> None:
        """Lookups on one connection, those that the throttle lets through."""
        connection, now = self.connections[at], time.perf_counter()
        batch = []
        for due in dues:
            try:
                begun = self.throttle.begin(self.order.target) if self.throttle else now
            except Overloaded:
                self.ended.append((due, now, now, HELD_BACK))
                continue
            stream, data = connection.call(self.head, self.messages[len(self.pending) % len(self.messages)])
            self.pending[at, stream] = due, now, begun
            batch.append(data)
        self.open_on[at] += len(batch)
        connection.socket.sendall(b"".join(batch))

    def receive(self) -> list[int]:
        """Notes what has ended; returns on which connections."""
        found = []
        for ready in select.select(list(self.at), [], [], 0)[0]:
            at = self.at[ready]
            for call in self.connections[at].receive():
                due, sent, begun = self.pending.pop((at, call.stream))
                self.note(call, begun)
                self.open_on[at] -= 1
                self.ended.append((due, sent, time.perf_counter(), call.status))
                found.append(at)
        return found

    def closed(self) -> None:
        """The next lookup once one has ended."""
        end = time.perf_counter() + self.order.seconds
        for number in range(self.order.at_once):
            self.send(number % CONNECTIONS, [time.perf_counter()])
        while time.perf_counter() < end:
            time.sleep(TICK_S)
            for at, count in Counter(self.receive()).items():
                self.send(at, [time.perf_counter()] * count)

    def open(self) -> None:
        """Lookups when their times have come, whatever becomes of those before; then the rest of the answers."""
        start = time.perf_counter()
        last = start + self.order.seconds + TIMEOUT_MS / 1000 + 5
        times, number = [start + after for after in self.times], 0
        while number < len(times) or (self.pending and time.perf_counter() < last):
            for _ in range(CONNECTIONS):
                at = self.open_on.index(min(self.open_on))
                some = times[number : number + min(MOST - self.open_on[at], BATCH)]
                if due := some[: bisect(some, time.perf_counter())]:
                    self.send(at, due)
                    number += len(due)
            time.sleep(TICK_S)
            self.receive()


def run(order: Order) -> tuple[float, list[tuple[float, float, float, int]], int]:
    """One client: seconds, what has become of its lookups, and how many never ended."""
    client = Client(order)
    start = time.perf_counter()
    if order.rate:
        client.open()
        # However long it took: a client that falls behind goes on after its time, and gains no goodput by it.
        return time.perf_counter() - start, client.ended, len(client.pending)
    client.closed()
    return time.perf_counter() - start, client.ended, 0
