"""What a client keeps to itself once a service refuses its calls."""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import grpc
import pytest

from embershard import AsyncClient, Client, Overloaded, Unavailable
from embershard.client import throttle
from embershard.client.throttle import FORGET_S, Throttle


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Time that stands still unless it is moved."""
    clock = SimpleNamespace(now=1000.0)
    monkeypatch.setattr(throttle, "time", SimpleNamespace(monotonic=lambda: clock.now))
    return clock


def let_through(calls: Throttle, most: int) -> list[float]:
    """Begins so many calls, or as many as it may."""
    begun = []
    for _ in range(most):
        try:
            begun.append(calls.begin("here"))
        except Overloaded:
            break
    return begun


def test_whoever_was_never_refused_has_no_limit(clock: Any) -> None:
    assert len(let_through(Throttle(), 10_000)) == 10_000


def test_a_refusal_halves_what_may_be_under_way_once_for_calls_that_began_together(clock: Any) -> None:
    calls = Throttle()
    begun = let_through(calls, 100)
    clock.now += 0.01
    for began in begun[:40]:
        calls.refused(began, 0.03)
    assert let_through(calls, 100) == [], "60 are under way, and 50 may be"
    for _ in begun[40:]:
        calls.ended()
    assert len(let_through(calls, 100)) == 50


def test_answers_let_one_more_through_each_time_that_all_were_answered(clock: Any) -> None:
    calls = Throttle()
    for began in let_through(calls, 20):
        clock.now += 0.001
        calls.refused(began, 0.03)
    for least in (10, 10, 11, 12, 13):
        begun = let_through(calls, 100)
        assert len(begun) in (least, least + 1)
        for _ in begun:
            calls.accepted()


def test_one_caller_alone_pauses_for_longer_and_longer_but_not_for_ever(clock: Any) -> None:
    calls, pauses = Throttle(), []
    for _ in range(20):
        calls.refused(calls.begin("here"), 0.03)
        with pytest.raises(Overloaded, match="here: not sent") as refusal:
            calls.begin("here")
        assert refusal.value.retry_after_s is not None
        pauses.append(refusal.value.retry_after_s)
        clock.now += pauses[-1]
    assert pauses[:3] == pytest.approx([0.06, 0.12, 0.24])
    assert max(pauses) == pytest.approx(0.6)
    for _ in range(40):
        calls.begin("here")
        calls.accepted()
        clock.now += 0.6
    assert len(let_through(calls, 100)) >= 2


def test_a_limit_is_forgotten_some_time_after_the_last_refusal(clock: Any) -> None:
    calls = Throttle()
    calls.refused(calls.begin("here"), 0.03)
    clock.now += FORGET_S + 1
    assert len(let_through(calls, 1000)) == 1000


def test_no_pause_outlives_the_limit(clock: Any) -> None:
    calls = Throttle()
    for _ in range(5):
        calls.refused(calls.begin("here"), 60.0)
        with pytest.raises(Overloaded, match="no more than 1 under way"):
            calls.begin("here")
        clock.now += FORGET_S
    clock.now += 1
    assert len(let_through(calls, 1000)) == 1000


def test_what_grpc_cuts_off_counts_as_a_refusal(clock: Any) -> None:
    class CutOff(grpc.RpcError):
        def code(self) -> grpc.StatusCode:
            return grpc.StatusCode.CANCELLED

    calls = Throttle()
    with pytest.raises(Unavailable), calls.call("here"):
        raise Unavailable("cut off") from CutOff()
    assert let_through(calls, 1) == []


def test_what_says_nothing_of_load_changes_nothing(clock: Any) -> None:
    calls = Throttle()
    for error in [Unavailable("away"), Overloaded("larger than gRPC takes"), KeyboardInterrupt()]:
        with pytest.raises(type(error)), calls.call("here"):
            raise error
    assert len(let_through(calls, 1000)) == 1000


@pytest.mark.parametrize("clients", [1, 4, 50])
def test_of_three_times_what_a_service_can_do_it_has_to_refuse_little(clock: Any, clients: int) -> None:
    """A service that answers a call each millisecond, of 30 that may wait; 3,000 calls a second come at random."""
    chance = random.Random(0)
    throttles = [Throttle() for _ in range(clients)]
    waiting: deque[Throttle] = deque()
    answered = refused = 0
    for _ in range(20_000):
        clock.now += 0.001
        for _ in range(3):
            mine = chance.choice(throttles)
            for began in let_through(mine, 1):
                if len(waiting) < 30:
                    waiting.append(mine)
                else:
                    mine.refused(began, 0.03)
                    refused += 1
        if waiting:
            waiting.popleft().accepted()
            answered += 1
    assert answered >= 0.95 * 20_000
    assert refused <= 0.1 * answered


def test_what_waits_for_a_version_is_not_counted(clock: Any) -> None:
    calls = Throttle()
    calls.refused(calls.begin("here"), 60.0)
    with calls.call("here", waits=True):
        pass
    refusal = Overloaded("too many wait")
    refusal.retry_after_s = 60.0
    with pytest.raises(Overloaded, match="too many wait"), calls.call("here", waits=True):
        raise refusal
    with pytest.raises(Overloaded, match="not sent"):
        calls.begin("here")


@pytest.fixture
def refusing() -> Iterator[tuple[str, list[str]]]:
    """A server that refuses all calls for a minute, and the methods that were called."""
    called: list[str] = []

    class Refusal(grpc.GenericRpcHandler):
        def service(self, call: grpc.HandlerCallDetails) -> Any:
            called.append(call.method)
            return grpc.unary_unary_rpc_method_handler(self.refuse)

        def refuse(self, _: bytes, context: grpc.ServicerContext) -> bytes:
            context.set_trailing_metadata((("grpc-retry-pushback-ms", "60000"),))
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "too much to do")
            raise AssertionError("abort raises")

    server = grpc.server(ThreadPoolExecutor(1), handlers=[Refusal()])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield f"127.0.0.1:{port}", called
    server.stop(None).wait()


def test_a_client_that_is_refused_sends_no_more_lookups_but_all_else(refusing: tuple[str, list[str]]) -> None:
    target, called = refusing
    with Client(target) as client, Client(target) as another:
        for message in ("too much to do", "not sent", "not sent"):
            with pytest.raises(Overloaded, match=message) as refusal:
                client.lookup({"user": [1]})
            assert refusal.value.retry_after_s is not None
        assert len(called) == 1
        for call in (lambda: client.lookup({"user": [1]}, min_version=7), client.describe, another.describe):
            with pytest.raises(Overloaded, match="too much to do"):
                call()


def test_a_refusal_that_is_not_sent_lets_other_coroutines_go_on(refusing: tuple[str, list[str]]) -> None:
    async def insist(client: AsyncClient, done: asyncio.Event) -> int:
        tries = 0
        while not done.is_set():
            tries += 1
            with suppress(Overloaded):
                await client.lookup({"user": [1]})
        return tries

    async def run() -> int:
        done = asyncio.Event()
        async with AsyncClient(refusing[0]) as client:
            insisting = asyncio.ensure_future(insist(client, done))
            for _ in range(100):
                await asyncio.sleep(0)
            while len(refusing[1]) < 1:
                await asyncio.sleep(0.01)
            done.set()
            return await insisting

    assert asyncio.run(run()) >= 1
    assert len(refusing[1]) == 1
