"""A real service under callers who ask for too much, don't read, don't finish sending, or vanish."""

from __future__ import annotations

import asyncio
import itertools
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from http2 import Connection, Ended
from support.raw import int64, lookup
from support.service import Service

from embershard import Client
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
rows = 1_000
dim = 4_096
"""
LARGE = list(range(1_000))
"""Ids whose vectors are nearly 16 MiB."""
MOST = 160 * MIB
"""What requests and answers may hold, by these limits."""
SLACK = 320 * MIB
"""For rows that are read, what arrives within a tenth of a second, and what the allocator keeps."""
RUDE = 40
"""Connections."""
LOOKUP = "/embershard.v1.EmbeddingService/Lookup"
STREAM = "/embershard.v1.EmbeddingService/LookupStream"
RESOURCE_EXHAUSTED, UNAVAILABLE = 8, 14

SMALL = {"feature": "user", "ids": int64(1, 2, 3)}


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
            self._client.lookup({"user": LARGE})
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
    with suppress(OSError):
        while True:
            ends += connection.receive()


@pytest.mark.slow
def test_answers_that_nobody_takes_hold_bounded_memory_and_not_for_ever(service: Service) -> None:
    large = lookup({"feature": "user", "ids": int64(*LARGE)}).SerializeToString()
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


def send_a_part(connection: Connection, path: str, ends: list[Ended]) -> None:
    """Most of a message, and nothing more."""
    with suppress(OSError):
        ends += connection.upload(connection.head(path), bytes(15 * MIB), announced=16 * MIB)
        ends_of(connection, ends)


@pytest.mark.slow
@pytest.mark.parametrize("path", [LOOKUP, STREAM])
def test_requests_that_do_not_arrive_whole_hold_bounded_memory_and_not_for_ever(service: Service, path: str) -> None:
    most, ends = 0, list[Ended]()
    with Witness(service) as witness, ExitStack() as opened:
        readers = []
        for _ in range(RUDE):
            connection = opened.enter_context(Connection(service.target))
            readers.append(threading.Thread(target=send_a_part, args=(connection, path, ends)))
            readers[-1].start()
            witness.asks()
        refused = RUDE if path == LOOKUP else RUDE - MOST // (15 * MIB)
        witness.until(lambda: len(ends) >= refused)
        most = witness.most - witness.before
        assert {ended.status for ended in ends} <= {RESOURCE_EXHAUSTED, 4}
    for thread in readers:
        thread.join()
    assert most < MOST + SLACK


def ended_by(connection: Connection, message: bytes) -> Ended:
    """What becomes of a lookup while others of its connection wait."""
    stream, data = connection.call(connection.head(LOOKUP), message)
    connection.socket.sendall(data)
    while True:
        for ended in connection.receive():
            if ended.stream == stream:
                return ended


def test_no_connection_has_more_calls_than_are_left_for_others_and_is_told_when_to_try_again(service: Service) -> None:
    early, now = (lookup(SMALL, min_version=version).SerializeToString() for version in (10**9, 0))
    with Connection(service.target) as greedy, Connection(service.target) as greedier, Client(service.target) as client:
        told = []
        for connection in (greedy, greedier):
            waits = connection.head(LOOKUP, timeout_ms=60_000)
            for _ in range(25):
                connection.socket.sendall(connection.call(waits, early)[1])
                told.append(ended_by(connection, now))
        assert {(ended.status, ended.pushback_ms) for ended in told} == {(0, None), (RESOURCE_EXHAUSTED, 30)}
        assert all(ended.status == 0 for ended in told[:25])
        assert client.lookup({"user": [1]})["user"].shape == (1, 4096)


def test_refused_input_has_no_hint_to_try_again(service: Service) -> None:
    with Connection(service.target) as connection:
        wrong = lookup({"feature": "nobody", "ids": int64(1)}).SerializeToString()
        ended = ended_by(connection, wrong)
    assert (ended.status, ended.pushback_ms) == (3, None)


def test_what_waits_does_not_hold_up_a_server_that_leaves(service: Service) -> None:
    with ExitStack() as opened:
        idle, half, waiting = (opened.enter_context(Connection(service.target)) for _ in range(3))
        bare = opened.enter_context(socket.create_connection(idle.socket.getpeername()))
        list(half.upload(half.head(LOOKUP), b"some", announced=1000))
        early = lookup(SMALL, min_version=10**9).SerializeToString()
        waiting.socket.sendall(waiting.call(waiting.head(LOOKUP, timeout_ms=60_000), early)[1])
        # The server takes the calls of a connection in order: this one tells that it has taken that one.
        assert ended_by(waiting, lookup(SMALL).SerializeToString()).status == 0
        assert service.stop() == 0
        ends: list[Ended] = []
        ends_of(waiting, ends)
        assert [ended.status for ended in ends] == [UNAVAILABLE]
        while bare.recv(4096):  # its settings, and then the end
            pass
    assert "are cut off" not in service.output


def test_every_update_of_a_stream_that_is_applied_when_the_server_leaves_is_acknowledged(
    service: Service, tmp_path: Path
) -> None:
    versions: list[int] = []
    statuses: list[grpc.StatusCode] = []
    started = threading.Semaphore(0)

    def write(at: int) -> None:
        update = pb.UpdateRequest(
            updates=[pb.FeatureUpdate(batch=pb.FeatureIds(feature="user", ids=int64(at)), values=bytes(4 * 4096))]
        )
        with grpc.insecure_channel(service.target) as channel:
            answers = rpc.EmbeddingServiceStub(channel).UpdateStream(itertools.repeat(update))
            with suppress(grpc.RpcError):
                for response in answers:
                    versions.append(response.version)
                    started.release()
            statuses.append(answers.code())

    writers = [threading.Thread(target=write, args=(at,)) for at in range(6)]
    for writer in writers:
        writer.start()
    for _ in range(60):
        started.acquire()
    assert service.stop() == 0
    for writer in writers:
        writer.join()
    assert statuses == [grpc.StatusCode.UNAVAILABLE] * 6
    newest = max(int(path.name) for path in (tmp_path / "snapshots").iterdir())
    assert sorted(versions) == list(range(1, newest + 1))


def test_callers_that_vanish_leave_no_trace(service: Service) -> None:
    async def vanish() -> None:
        for _ in range(20):
            async with grpc.aio.insecure_channel(service.target) as channel:
                stub = rpc.EmbeddingServiceStub(channel)
                calls = [stub.Lookup(lookup({"feature": "user", "ids": int64(*range(at))})) for at in range(40)]
                with suppress(grpc.RpcError):
                    await calls[5]
                for call in calls:
                    call.cancel()

    asyncio.run(vanish())
    with Client(service.target) as client:
        assert client.lookup({"user": [1]})["user"].shape == (1, 4096)
    assert service.stop() == 0
    assert "Traceback" not in service.output
