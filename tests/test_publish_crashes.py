"""Whoever dies while something is published, and whenever: what was acknowledged is there, and readers see no half."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from support.job import CONFIG, Job, numbers
from support.service import Service
from support.waiting import eventually

import embershard
from embershard import Client

LOG = CONFIG.replace("[optimizer]", "[durability]\nreplay_s = 3600\n[optimizer]")


def publications(data: Path) -> list[str]:
    return sorted(path.name.lstrip("0") for path in (data / "publications").glob("*/*"))


def killed(service: Service) -> None:
    for pid in service.rank_pids():
        os.kill(pid, signal.SIGKILL)
    service.ended()


@pytest.mark.slow
def test_files_stay_as_long_as_the_log_needs_them_and_no_longer(tmp_path: Path) -> None:
    data = tmp_path / "data"
    service = Service(LOG, data).wait()
    with Client(service.target) as client:
        client.assign({"left": [0]}, values={"left": np.full((1, 3), 5)})
        job = Job(client, tmp_path, "run").fill(1)
        before = job.full().before
        job.fill(2).delta()
        eventually((data / "snapshots" / f"{before:012d}").exists)  # what a rollback serves again
        killed(service)
    assert publications(data) == ["1", "2"]
    with Service(LOG, data) as again, Client(again.target) as client:
        assert numbers(client) == {2}
        assert client.describe().published.number == 2
        client.rollback()
        assert client.lookup({"left": [0]})["left"][0, 0] == 5
        assert not client.describe().HasField("published")
    with Service(LOG, data) as again, Client(again.target) as client:
        eventually(lambda: not (data / "publications" / "run").exists())
        job = Job(client, tmp_path, "later").fill(3)
        job.full()
        client.snapshot()
        eventually(lambda: not (data / "publications" / "later").exists())
        killed(again)
    with Service(LOG, data) as again, Client(again.target) as client:
        assert numbers(client) == {3}
        assert client.describe().published.publisher == "later"


def test_a_log_whose_publication_has_no_files_any_more_is_refused_with_what_to_do(tmp_path: Path) -> None:
    data = tmp_path / "data"
    service = Service(LOG, data).wait()
    with Client(service.target) as client:
        job = Job(client, tmp_path, "run").fill(1)
        job.full()
        job.fill(2).delta()
        killed(service)
    (path,) = (data / "publications" / "run" / f"{2:012d}").iterdir()
    content = path.read_bytes()
    for spoilt, message in ((b"", "has 0 of"), (content[:-1] + bytes([content[-1] ^ 1]), "its checksum is wrong")):
        path.write_bytes(spoilt)
        refused = Service(LOG, data)
        assert refused.ended() == 2
        assert "the update log can't be applied, as it has publication 2 of 'run'" in refused.output
        assert message in refused.output
    path.write_bytes(content)
    with Service(LOG, data) as again, Client(again.target) as client:
        assert numbers(client) == {2}


def test_a_refused_publication_is_refused_again_when_the_log_is_applied(tmp_path: Path) -> None:
    """As what was between it and its check by the front end isn't known to that."""
    data = tmp_path / "data"
    service = Service(LOG, data).wait()
    with Client(service.target) as client:
        job = Job(client, tmp_path, "run").fill(1)
        job.full()
        words = [f"w{number}" for number in range(20)] + [f"mine {number}" for number in range(4)]
        client.assign({"word": words[20:]}, values={"word": np.ones((4, 4))})
        client.freeze({"word": words})
        with pytest.raises(embershard.InvalidInput, match="has no room"):
            job.fill(2, {"left": [1], "word": ["new"]}).delta()
        assert numbers(client) == {1}
        version = client.describe().version
        killed(service)
        with Service(LOG, data, listen=service.target):
            client.wait_ready()
            assert (client.describe().version, numbers(client)) == (version, {1})
            client.freeze({"word": words}, thaw=True)
            assert job.delta().version == version + 2
            assert client.lookup({"left": [1]})["left"][0, 0] == 2


def test_a_publication_outlives_the_service_that_dies_while_it_is_sent(tmp_path: Path) -> None:
    data = tmp_path / "data"
    service = Service(LOG, data).wait()
    with Client(service.target) as client:
        job = Job(client, tmp_path, "run").fill(1)
        job.full()
        killed(service)
        again = Service(LOG, data, listen=service.target)
        with again:
            assert job.fill(2).delta().duplicate is False
            assert numbers(client) == {2}


PUBLISHER = """
import sys
from pathlib import Path
from embershard.quiet import quieten
quieten()
from support.job import Job
from embershard import Client
from embershard.errors import EmbershardError
target, folder, first = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
with Client(target, timeout_s=60) as client:
    job = Job(client, folder, "run").fill(first)
    print(first, job.full().version, flush=True)
    for number in range(first + 1, first + 1000):
        print(number, (job.fill(number).delta if number % 7 else job.fill(number).full)().version, flush=True)
"""


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [0, 2])
def test_readers_see_whole_publications_whoever_is_killed_and_whenever(tmp_path: Path, ranks: int) -> None:
    """Every publication fills all rows of all tables with its own number."""
    random, data = np.random.default_rng(ranks), tmp_path / "data"
    service = Service(LOG, data, ranks=ranks).wait()
    target, acknowledged, done = service.target, 0.0, threading.Event()
    seen: list[set[float]] = []

    def reader() -> None:
        with Client(target) as client:
            while not done.is_set():
                with contextlib.suppress(embershard.Unavailable, embershard.DeadlineExceeded):
                    seen.append(numbers(client))

    threads = [threading.Thread(target=reader) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for life in range(5):
            command = [sys.executable, "-c", PUBLISHER, target, str(tmp_path / f"life-{life}"), str(1000 * life + 1)]
            environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as publisher:
                assert publisher.stdout is not None
                for _ in range(int(random.integers(1, 12))):
                    acknowledged = float(publisher.stdout.readline().split()[0])
                if life % 2:
                    killed(service)
                    service = Service(LOG, data, ranks=ranks, listen=target).wait()
                    acknowledged = float(publisher.stdout.readline().split()[0])
                publisher.send_signal(signal.SIGKILL)
                for line in publisher.stdout:
                    acknowledged = float(line.split()[0])
            with Client(target) as client:
                (number,) = numbers(client)
            assert number in (acknowledged, acknowledged + 1), "what was acknowledged, or what was on its way"
    finally:
        done.set()
        for thread in threads:
            thread.join()
        service.stop()
    assert all(len(found) == 1 for found in seen)
    assert len({number for found in seen for number in found}) > 10
