"""A real service under callers who ask for too much, don't read, don't finish sending, or vanish."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from http2 import Connection, Ended
from support.raw import int64, lookup
from support.service import Service

from embershard import Client, EmbershardError
from embershard.v1 import embershard_pb2 as pb
from embershard.v1 import embershard_pb2_grpc as rpc

MIB = 2**20
CONFIG = f"""
[collection]
name = "shop"

[optimizer]
kind = "sgd"
learning_rate = 1.0

[limits]
message_bytes = {16 * MIB}
in_flight_messages = 10
calls = 64
stalled_s = 2
queued_numbers = {8 * MIB}

[[tables]]
name = "user"
rows = 100_000
dim = 64
"""
MOST = 160 * MIB
"""What requests and answers may hold, by these limits."""
SLACK = 160 * MIB
"""For rows that are read, what arrives within a tenth of a second, and what the allocator keeps."""
RUDE = 24
"""Connections."""
LOOKUP = "/embershard.v1.EmbeddingService/Lookup"
STREAM = "/embershard.v1.EmbeddingService/LookupStream"
RESOURCE_EXHAUSTED, UNAVAILABLE = 8, 14


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    with Service(CONFIG, tmp_path) as running:
        yield running


class Witness:
    """A well-behaved caller, and the most memory that the server had meanwhile."""

    def __init__(self, service: Service) -> None:
        self._client, self._process = Client(service.target), psutil.Process(service.rank_pids()[0])
        self._expected = self._client.lookup({"user": [1, 2, 3]})["user"]
        for _ in range(3):  # so that the memory of answers is there, and what comes is what is held
            self._client.lookup({"user": np.arange(16 * MIB // 256)})
        self.before = self.most = self._process.memory_info().rss

    def __enter__(self) -> Witness:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def asks(self) -> None:
        """Gets the right answer, whatever others do."""
        np.testing.assert_array_equal(self._client.lookup({"user": [1, 2, 3]}, timeout_s=30)["user"], self._expected)
        self.most = max(self.most, self._process.memory_info().rss)

    def until(self, done: Callable[[], bool]) -> None:
        """Asks again and again."""
        while not done():
            self.asks()


def ends_of(connection: Connection, ends: list[Ended]) -> None:
    """Reads until the server closes the connection."""
    try:
        while True:
            ends += connection.receive()
    except OSError:
        pass


def test_answers_that_nobody_takes_hold_bounded_memory_and_not_for_ever(service: Service) -> None:
    large = lookup({"feature": "user", "ids": int64(*range(16 * MIB // 256))}).SerializeToString()
    ends: list[Ended] = []
    with Witness(service) as witness, ExitStack() as opened:
        readers = []
        for _ in range(RUDE):
            connection = opened.enter_context(Connection(service.target, window=1000))
            for _ in range(3):
                connection.socket.sendall(connection.call(connection.head(LOOKUP), large)[1])
            readers.append(threading.Thread(target=ends_of, args=(connection, ends)))
            readers[-1].start()
            witness.asks()
        witness.until(lambda: "ending connections that didn't take an answer" in service.output)
        assert witness.most - witness.before < MOST + SLACK
        assert {ended.status for ended in ends} <= {RESOURCE_EXHAUSTED, 1}
        assert RESOURCE_EXHAUSTED in {ended.status for ended in ends}
    for reader in readers:
        reader.join()


@pytest.mark.parametrize("path", [LOOKUP, STREAM])
def test_requests_that_do_not_arrive_whole_hold_bounded_memory_and_not_for_ever(service: Service, path: str) -> None:
    most, ends = 0, list[Ended]()
    with Witness(service) as witness, ExitStack() as opened:
        readers = []
        for _ in range(RUDE):
            connection = opened.enter_context(Connection(service.target))
            readers.append(threading.Thread(target=ends_of, args=(connection, ends)))
            readers[-1].start()
            _, data = connection.call(connection.head(path), bytes(15 * MIB), announced=16 * MIB)
            sender = threading.Thread(target=lambda c=connection, d=data: send(c, d))  # type: ignore[misc]
            sender.start()
            readers.append(sender)
            witness.asks()
        refused = RUDE if path == LOOKUP else RUDE - MOST // (15 * MIB)
        witness.until(lambda: len(ends) >= refused)
        most = witness.most - witness.before
        assert {ended.status for ended in ends} <= {RESOURCE_EXHAUSTED, 4}
    for thread in readers:
        thread.join()
    assert most < MOST + SLACK


def send(connection: Connection, data: bytes) -> None:
    """As much of it as the server takes."""
    try:
        connection.socket.sendall(data)
    except OSError:
        pass
