"""Load tests of services that answer, stall, refuse, hang or lie: all is accounted for, and no stall hides."""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import grpc
import psutil
import pytest
from support.command import COMMAND, document, told
from support.fake_service import DESCRIPTION, FakeService
from support.service import Service

from embershard import Client
from embershard.errors import InternalError
from embershard.loadtest import generator
from embershard.loadtest.arrivals import arrivals
from embershard.loadtest.generator import Run
from embershard.loadtest.lanes import Lanes
from embershard.loadtest.pacing import pacer
from embershard.loadtest.plan import LOOKUP, Demand, Plan, features_of
from embershard.loadtest.pool import pools
from embershard.loadtest.sender import now
from embershard.loadtest.tally import Tally, milliseconds

CONFIG = """
collection = { name = "shop" }
tables = [
    { name = "user", rows = 100, dim = 4, ids = { padding = 0 } },
    { name = "zip", rows = 64, dim = 16, ids = { kind = "hashed" } },
    { name = "query", rows = 64, dim = 8, ids = { kind = "vocabulary", fallback_rows = 16 } },
    { name = "genre", rows = 50, dim = 4, pooling = "sum" },
]
"""
STALL_S = 0.6


def plan(target: str, **keys: Any) -> Plan:
    return Plan(**{"target": target, "features": features_of(DESCRIPTION, None, None), "ids": 2, **keys})


def measured(asked: Plan, demand: Demand, until: Callable[[], object] | None = None) -> Tally:
    """What a client process would measure, in this process; `until` returns when it is to be ended early."""

    async def measure() -> Tally:
        async with Lanes(asked, asked.in_flight) as lanes:
            run = Run(asked, demand, pacer(asked, demand, 0), pools(asked, 0), lanes, now() + 0.05)
            running = asyncio.create_task(run.run())
            if until:
                await asyncio.to_thread(until)
                run.stop()
            return Tally.merged([(await running).tallies[LOOKUP]])

    return asyncio.run(measure())


class Stall:
    """From the n-th lookup on nothing is answered for a while."""

    def __init__(self, begins: int) -> None:
        self._begins, self._over = begins, threading.Event()
        self.waited = 0
        """Lookups that came meanwhile."""

    def __call__(self, number: int, call: grpc.ServicerContext) -> None:
        if number == self._begins:
            time.sleep(STALL_S)
            self._over.set()
        elif number > self._begins and not self._over.is_set():
            self.waited += 1
            self._over.wait(60)


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_a_stall_cannot_hide_from_those_that_fell_due_meanwhile(stream: bool) -> None:
    demand, begins = Demand(seconds=1, warmup_s=0, rate=200), 50
    due_N = arrivals(200, 0, 1, seed=0)
    during = due_N[(due_N >= due_N[begins - 1]) & (due_N <= due_N[begins - 1] + STALL_S / 2)]
    assert len(during) > 0.01 * len(due_N)  # the 99th percentile is one of them, or of those that waited longer
    with FakeService(Stall(begins)) as service:
        tally = measured(plan(service.target, stream=stream, in_flight=50), demand)  # others wait in the client
    assert tally.asked == tally.outcomes.total() == len(due_N)
    assert milliseconds(tally.latency, 99) >= STALL_S * 1000 / 2 * 0.99  # type: ignore[operator]  # there are some


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_a_caller_who_waits_for_answers_asks_nothing_while_the_service_stalls(stream: bool) -> None:
    stall = Stall(100)
    with FakeService(stall) as service:
        asked = plan(service.target, stream=stream)
        tally = measured(asked, Demand(seconds=600, warmup_s=0, callers=1), until=lambda: service.wait(200))
    assert stall.waited == 0
    assert tally.asked == tally.outcomes.total() >= 200
    assert tally.outcomes["answered"] >= tally.asked - 1  # the last may have been cut off
    assert milliseconds(tally.latency, 100) >= STALL_S * 1000 * 0.99  # type: ignore[operator]  # there are some


@pytest.mark.parametrize("load", [{"rate": 100}, {"callers": 3}], ids=["open", "closed"])
def test_what_is_in_flight_when_a_run_is_ended_is_cut_off_and_nothing_more_is_sent(
    load: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embershard.loadtest.generator.GRACE_S", 0.1)
    over = threading.Event()
    with FakeService(lambda *_: over.wait(60)) as service:
        asked = plan(service.target, in_flight=3)
        tally = measured(asked, Demand(seconds=600, warmup_s=0, **load), until=lambda: service.wait(3))
        over.set()
    assert tally.seconds < 600
    assert tally.outcomes["cut_off"] == 3
    assert tally.outcomes["cut_off"] + tally.outcomes["never_sent"] == tally.asked
    assert tally.held == tally.outcomes["never_sent"]  # all lanes were busy
    assert tally.latency.get_total_count() == tally.asked


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_every_request_is_accounted_for_by_how_it_ended(stream: bool) -> None:
    told = threading.Lock()
    ends = {1: grpc.StatusCode.RESOURCE_EXHAUSTED, 2: grpc.StatusCode.INVALID_ARGUMENT}
    seen = dict.fromkeys(ends, 0)

    def does(number: int, call: grpc.ServicerContext) -> None:
        if number % 5 in ends:
            with told:
                seen[number % 5] += 1
            call.abort(ends[number % 5], "as the test says")

    with FakeService(does) as service:
        tally = measured(plan(service.target, stream=stream), Demand(seconds=0.5, warmup_s=0, rate=400))
        lookups = service.lookups
    never_sent = tally.outcomes["never_sent"]  # on a machine that has too much to do
    assert tally.asked == tally.outcomes.total() == lookups + never_sent == 200
    assert (tally.outcomes["refused"], tally.outcomes["INVALID_ARGUMENT"]) == tuple(seen.values())
    assert tally.messages.keys() == {"refused", "INVALID_ARGUMENT"}
    assert "as the test says" in tally.messages["refused"]
    assert tally.service.get_total_count() == tally.outcomes["answered"]
    assert tally.latency.get_total_count() == tally.outcomes["answered"] + never_sent


@pytest.mark.parametrize("stream", [False, True], ids=["unary", "stream"])
def test_a_service_that_hangs_ends_no_later_and_is_told(stream: bool) -> None:
    over = threading.Event()
    with FakeService(lambda *_: over.wait(60)) as service:
        asked = plan(service.target, stream=stream, in_flight=5, timeout_s=0.5)
        tally = measured(asked, Demand(seconds=0.3, warmup_s=0, rate=300))
        over.set()
    assert tally.asked == tally.outcomes.total() == 90
    assert tally.outcomes.keys() <= {"deadline_passed", "never_sent"}
    assert tally.outcomes["deadline_passed"] <= 5  # none comes free before the end
    assert tally.latency.get_total_count() == tally.asked  # as long as each had waited


def test_a_warm_up_is_not_counted() -> None:
    with FakeService() as service:
        tally = measured(plan(service.target), Demand(seconds=0.25, warmup_s=0.25, rate=200))
        lookups = service.lookups
    assert tally.asked == 50
    assert lookups == 100 - tally.outcomes["never_sent"]


def test_a_service_that_answers_something_else_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embershard.loadtest.generator.GRACE_S", 0.1)
    with FakeService() as service:
        (item,) = features_of(DESCRIPTION, None, None)
        asked = plan(service.target, features=(replace(item, dim=8),))
        with pytest.raises(InternalError, match="were asked for, and the answer has"):
            measured(asked, Demand(seconds=5, warmup_s=0, rate=100))


def test_a_ramp_tells_the_last_rate_that_passed_and_every_step() -> None:
    passing = 15

    def does(number: int, call: grpc.ServicerContext) -> None:
        if number > passing:  # the first step passes, and no other
            call.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "as the test says")

    with FakeService(does) as service:
        flags = "--ramp --rate 50 --p99-ms 60000 --seconds 0.3 --warmup 0 --ids 2"
        found = told("loadtest", "--target", service.target, *flags.split())["ramp"]
    assert found["highest_per_s"] == 50
    assert [step["rate"] for step in found["steps"] if step["passed"]] == [50]
    assert found["steps"][1]["rate"] == 100
    assert found["steps"][-1]["rate"] < 50 * 1.1
    assert all(step["unanswered"] for step in found["steps"][1:])


def test_an_answer_after_the_deadline_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Lanes):
        """Whose answers come later than asked for, as where the client has too much to do."""

        def take(self, kind: str) -> Any:
            lane = super().take(kind)
            return lane and SimpleNamespace(call=lambda request: self.late(lane, request))

        async def late(self, lane: Any, request: bytes) -> bytes:
            answer: bytes = await lane.call(request)
            monkeypatch.setattr("embershard.loadtest.sender.now", lambda: now() + 3600)
            return answer

    monkeypatch.setattr(f"{__name__}.Lanes", Slow)
    with FakeService() as service:
        tally = measured(plan(service.target), Demand(seconds=0.5, warmup_s=0, rate=2))
    assert tally.outcomes == {"deadline_passed": 1}


def test_client_processes_end_with_the_one_that_began_them() -> None:
    with FakeService() as service:
        flags = f"loadtest --target {service.target} --rate 100 --seconds 600 --warmup 0 --processes 2 --ids 2"
        with subprocess.Popen([COMMAND, *flags.split()], stderr=subprocess.PIPE) as process:
            service.wait(50)
            started = psutil.Process(process.pid).children()
            process.kill()
            assert process.stderr is not None
            errors = process.stderr.read()  # until none is left that could write to it
        _, left = psutil.wait_procs(started, timeout=30)
    assert (len(started), left, errors) == (3, [], b"")


def test_a_process_whose_pipe_has_broken_stops_and_complains_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = multiprocessing.Pipe()
    ours.close()
    stopped = threading.Event()
    run: Any = SimpleNamespace(progress=lambda: "so far", stop=stopped.set)
    asyncio.run(generator._watch(theirs, asyncio.Queue(), run, now() - 1))  # it is time to tell of progress
    assert stopped.is_set()

    async def fails(*_: object) -> None:
        raise InternalError("as the test says")

    monkeypatch.setattr(generator, "_serve", fails)
    generator.main(theirs, plan("127.0.0.1:1"), 0)  # others have failed before, and all are being ended


def test_ctrl_c_ends_early_and_tells_what_there_is(tmp_path: Path) -> None:
    output = tmp_path / "o.json"
    with FakeService() as service:
        flags = f"loadtest --target {service.target} --rate 100 --seconds 600 --warmup 0 --processes 2 --ids 2 --json"
        command = [COMMAND, *flags.split(), "--output", output]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        with subprocess.Popen(command, text=True, start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
            service.wait(50)
            started = [one for one in psutil.Process(process.pid).children() if "spawn_main" in " ".join(one.cmdline())]
            os.killpg(process.pid, signal.SIGINT)  # as a terminal does: to all of them
            shown, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (130, "")
    whole = document(shown)["result"]
    lookup = whole["calls"]["lookup"]
    assert whole["interrupted"]
    assert 0 < whole["seconds"] < 600
    assert lookup["asked"] >= 50
    ends = ("answered", "refused", "deadline_passed", "never_sent", "cut_off")
    assert lookup["asked"] == sum(lookup[name] for name in ends) + sum(lookup["failed"].values())
    assert json.loads(output.read_text())["result"]["calls"]["lookup"]["asked"] == lookup["asked"]
    assert len(started) == 2
    assert not any(one.is_running() for one in started)


def test_a_real_service_answers_all_kinds_of_ids_by_calls_and_by_streams(tmp_path: Path) -> None:
    with Service(CONFIG, tmp_path / "state") as service, Client(service.target) as client:
        flags = (
            f"loadtest --target {service.target} --callers 2 --seconds 1 --warmup 0.2 --bag 5 --processes 2 --ids 22"
        )
        first, report = tmp_path / "first.json", tmp_path / "report.html"
        whole = told(*flags.split(), "--updates", "0.3", "--output", first)
        for kind in ("lookup", "update"):
            calls = whole["result"]["calls"][kind]
            assert calls["asked"] == calls["answered"] + calls["refused"]  # on a machine that has too much to do
            assert calls["answered"] > 0
        assert client.describe().version >= whole["result"]["calls"]["update"]["answered"]
        assert whole["served"]["fingerprint"] == client.describe().fingerprint
        replay = tmp_path / "r.jsonl"
        replay.write_text('{"user": [1, 2], "zip": ["90210"]}\n{"genre": {"ids": [1, 2, 3], "lengths": [2, 1]}}\n')
        flags = f"loadtest --target {service.target} --callers 3 --seconds 0.5 --warmup 0 --stream --dtype int8"
        again = told(*flags.split(), "--replay", replay, "--compare", first, "--report", report)
        assert again["result"]["calls"]["lookup"]["answered"] > 0
        assert {text.partition(":")[0] for text in again["comparison"]["differences"]} >= {"callers", "stream", "dtype"}
        assert report.read_text().startswith("<!doctype html>")
