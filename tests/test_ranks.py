"""Ranks and their operator: they start, idle, fail and leave together."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.service import Service

from embershard import Client, Rows, Unavailable

CONFIG = """
[collection]
name = "small"
[limits]
group_timeout_s = 5
[[tables]]
name = "t"
rows = 3
dim = 3
"""


def test_every_rank_answers_alike_and_counts_the_same_versions(tmp_path: Path) -> None:
    with Service(CONFIG, tmp_path, ranks=3) as service:
        clients = [Client(service.addresses[rank]) for rank in range(3)]
        threads = [threading.Thread(target=_updates, args=(client, 20)) for client in clients]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        version = max(client.describe().version for client in clients)
        answers = [client.lookup({"t": [0, 1, 2]}, min_version=version) for client in clients]
        for answer in answers:
            np.testing.assert_array_equal(answer["t"], answers[0]["t"])
            assert answer.version == version
        assert 20 <= version <= 60, "ranks that update in one tick share its version"
        for client in clients:
            client.close()


def _updates(client: Client, count: int) -> None:
    for _ in range(count):
        client.update({"t": [0, 2]}, gradients={"t": np.ones((2, 3))})
        client.lookup({"t": [1]})


@pytest.mark.slow
def test_an_idle_group_costs_under_two_percent_of_a_core_a_rank(tmp_path: Path) -> None:
    with Service(CONFIG, tmp_path, ranks=2) as service, Client(service.target) as client:
        client.lookup({"t": [1]})
        ranks = [psutil.Process(pid) for pid in service.rank_pids()]
        before = [sum(rank.cpu_times()[:2]) for rank in ranks]
        began = time.monotonic()
        assert service.process.poll() is None
        threading.Event().wait(5)  # the time that is measured
        elapsed = time.monotonic() - began
        used = [sum(rank.cpu_times()[:2]) - start for rank, start in zip(ranks, before, strict=True)]
        assert max(used) / elapsed < 0.02


@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_takes_its_peers_along_and_callers_are_told(tmp_path: Path, victim: int) -> None:
    service = Service(CONFIG, tmp_path, ranks=2).wait()
    with Client(service.addresses[1 - victim], timeout_s=30) as client:
        client.lookup({"t": [1]})
        pids = service.rank_pids()
        survivor = psutil.Process(_rank_pid(pids, 1 - victim))
        os.kill(_rank_pid(pids, victim), signal.SIGKILL)
        assert _until_refused(client)
    survivor.wait(30)
    assert service.ended() != 0
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_stuck_rank_is_waited_for_no_longer_than_configured(tmp_path: Path) -> None:
    service = Service(CONFIG, tmp_path, ranks=2).wait()
    pids = service.rank_pids()
    stuck = _rank_pid(pids, 1)
    os.kill(stuck, signal.SIGSTOP)
    try:
        psutil.Process(_rank_pid(pids, 0)).wait(60)
    finally:
        os.kill(stuck, signal.SIGKILL)
    assert service.ended() != 0
    assert "the engine failed: all ranks end" in service.output


@pytest.mark.parametrize("ranks", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_a_group_outlives_its_timeout_whether_it_idles_or_works_without_a_pause(tmp_path: Path, ranks: int) -> None:
    config = CONFIG.replace("group_timeout_s = 5", "group_timeout_s = 2")
    with Service(config, tmp_path, ranks=ranks) as service, Client(service.target) as client:
        threading.Event().wait(3)  # the time that it must outlive
        ends = time.monotonic() + 3
        callers = [threading.Thread(target=_until, args=(service.target, ends)) for _ in range(4)]
        for caller in callers:
            caller.start()
        for caller in callers:
            caller.join()
        assert client.lookup({"t": [1]})["t"].shape == (1, 3)
        assert "the engine failed" not in service.output


def _until(target: str, ends: float) -> None:
    with Client(target) as client:
        while time.monotonic() < ends:
            client.update({"t": [0]}, gradients={"t": np.zeros((1, 3))})


def test_torchrun_restarts_the_ranks_from_the_last_snapshot(tmp_path: Path) -> None:
    with Service(CONFIG, tmp_path, ranks=2, launcher=["--max-restarts=1"]) as service:
        with Client(service.target) as client:
            version = client.update({"t": [1]}, gradients={"t": np.ones((1, 3))})
            saved = client.lookup({"t": [1]}, min_version=version)["t"]
            assert client.snapshot().version == version
        os.kill(service.rank_pids()[0], signal.SIGKILL)
        service.wait(lives=2)
        with Client(service.target) as client:
            client.wait_ready()
            again = client.lookup({"t": [1]})
            assert again.version == version
            np.testing.assert_array_equal(again["t"], saved)
            assert client.update({"t": [1]}, gradients={"t": np.ones((1, 3))}) == version + 1


def test_one_rank_that_is_told_to_leave_takes_all_along_with_a_snapshot(tmp_path: Path) -> None:
    service = Service(CONFIG, tmp_path, ranks=2).wait()
    with Client(service.target) as client:
        version = client.update({"t": [1]}, gradients={"t": np.ones((1, 3))})
    os.kill(service.rank_pids()[1], signal.SIGTERM)
    assert service.ended() == 0
    assert (tmp_path / "snapshots" / f"{version:012d}" / "manifest.json").is_file()


@pytest.mark.parametrize(
    ("ranks", "number"),
    [
        pytest.param(0, signal.SIGTERM, id="term"),
        pytest.param(0, signal.SIGINT, id="int", marks=pytest.mark.slow),
        pytest.param(2, signal.SIGTERM, id="ranks"),
    ],
)
def test_calls_in_flight_are_finished_and_the_last_snapshot_has_all_that_was_acknowledged(
    tmp_path: Path, ranks: int, number: int
) -> None:
    service = Service(CONFIG, tmp_path, ranks=ranks).wait()
    acknowledged: list[int] = []
    busy = threading.Event()

    def update_until_refused(target: str) -> None:
        with Client(target) as client, contextlib.suppress(Unavailable):  # any other error is one of the test
            while True:
                acknowledged.append(client.update({"t": [0]}, gradients={"t": np.ones((1, 3))}))
                if len(acknowledged) > 50:
                    busy.set()

    def read_until_refused(answers: Iterator[Rows]) -> None:
        with contextlib.suppress(Unavailable):
            next(answers)

    with Client(service.target) as client:
        idle = client.lookup_stream({"t": [1]} for _ in iter(threading.Event().wait, None))
        reader = threading.Thread(target=read_until_refused, args=(idle,))
        targets = [target for target in service.addresses.values() for _ in range(2)]
        callers = [threading.Thread(target=update_until_refused, args=(target,)) for target in targets]
        for thread in (reader, *callers):
            thread.start()
        assert busy.wait(30)
        status = service.stop(number)
        for thread in (reader, *callers):
            thread.join(30)
            assert not thread.is_alive()
    assert "the engine failed" not in service.output
    (saved,) = (int(path.name) for path in (tmp_path / "snapshots").iterdir())
    assert saved == max(acknowledged), "no call was cut off after its update was applied"
    if not ranks:
        assert status == 0
        assert sorted(acknowledged) == list(range(1, saved + 1)), "every update that was applied was acknowledged"


def _until_refused(client: Client) -> list[int]:
    """Calls until the service says that it stops; any other error is one."""
    calls = 0
    try:
        while True:
            client.lookup({"t": [0]})
            calls += 1
    except Unavailable:
        return [calls]


@pytest.mark.parametrize("ranks", [0, 2], ids=["local", "torchrec-2"])
def test_a_port_in_use_is_told_and_changes_nothing(tmp_path: Path, ranks: int) -> None:
    with Service(CONFIG, tmp_path / "first") as running:
        host, _, port = running.target.partition(":")
        listen = f"{host}:{int(port) - max(ranks - 1, 0)}"  # the last rank's port is the one in use
        second = Service(CONFIG, tmp_path / "second", ranks=ranks, listen=listen)
        assert second.ended() == (1 if ranks else 2)
        assert f"embershard: can't listen on {running.target}: Address already in use" in second.output
        with Client(running.target) as client:
            assert client.lookup({"t": [1]})["t"].shape == (1, 3)


NO_TABLES = '[collection]\nname = "x"\n'


@pytest.mark.parametrize(
    ("ranks", "config", "message"),
    [
        (0, NO_TABLES, "collection.toml: tables: this key is required"),
        (2, NO_TABLES, "collection.toml: tables: this key is required"),
        (0, "tables = []\n" + NO_TABLES, "collection.toml: tables: list should have at least 1 item"),
        (0, "[collection", "is not valid TOML"),
        (0, CONFIG.replace("rows = 3", "rows = 900_000_000_000"), "GiB of memory"),
        (2, CONFIG.replace("rows = 3", "rows = 900_000_000_000"), "GiB of memory"),
    ],
)
def test_a_wrong_configuration_is_told_at_start(tmp_path: Path, ranks: int, config: str, message: str) -> None:
    service = Service(config, tmp_path, ranks=ranks)
    assert service.ended() == (1 if ranks else 2)
    assert message in service.output
    assert "Traceback" not in service.output.partition("torch/distributed/elastic")[0]


def _rank_pid(pids: list[int], rank: int) -> int:
    return next(pid for pid in pids if psutil.Process(pid).environ()["RANK"] == str(rank))
