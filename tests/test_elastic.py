"""Several hosts: torchrun's agents bring their ranks together, again and again, and what was acknowledged is there."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
from support.service import Service

from embershard import Client
from embershard.engine.world import TorchWorld
from embershard.errors import ConfigError

CONFIG = Path(__file__).parents[1] / "deploy" / "movielens.toml"
USER = {"user_id": [1]}


class Hosts:
    """Two agents with a rank each, of which the first hosts the rendezvous, and a data directory that both reach."""

    def __init__(self, data_dir: Path) -> None:
        self._data_dir, self._rendezvous = data_dir, f"127.0.0.1:{_free_port()}"
        self.listens = [f"127.0.0.1:{_free_port()}" for _ in range(2)]
        self.hosts = [self._start(0), self._start(1)]

    def wait(self, *, lives: tuple[int, int] = (1, 1)) -> None:
        for host, life in zip(self.hosts, lives, strict=True):
            host.wait(life)

    def start_again(self, number: int) -> None:
        """A host that has ended comes back, as a pod does."""
        self.hosts[number].ended()
        self.hosts[number] = self._start(number)

    def vanish(self, number: int) -> None:
        """A host that loses its power: its agent and rank go without a word."""
        host = self.hosts[number]
        agent = psutil.Process(host.process.pid)
        agent.suspend()  # so that it can't tell anybody that its rank is gone
        for process in (*agent.children(), agent):
            process.kill()
        host.ended()

    def assign(self, number: float) -> int:
        """Through the second host."""
        with Client(self.listens[1]) as client:
            return client.assign(USER, values={"user_id": np.full((1, 16), number)})

    def check(self, number: float, version: int) -> None:
        """Both answer what was acknowledged."""
        for listen in self.listens:
            with Client(listen) as client:
                client.wait_ready()
                found = client.lookup(USER)
                assert found.version >= version
                np.testing.assert_array_equal(found["user_id"], np.full((1, 16), number, np.float32))
                assert client.describe().world_size == 2

    def _start(self, number: int) -> Service:
        meeting = ["--nnodes=2", "--rdzv-backend=c10d", f"--rdzv-endpoint={self._rendezvous}", "--rdzv-id=test"]
        return Service(
            CONFIG,
            self._data_dir,
            ranks=1,
            listen=self.listens[number],
            launcher=["--max-restarts=3"],
            meeting=[*meeting, "--local-addr=127.0.0.1", f"--rdzv-conf=is_host={number == 0}"],
            environment={"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
        )


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[Hosts]:
    made = Hosts(tmp_path)
    try:
        made.wait()
        yield made
    finally:
        for host in made.hosts:
            if host.process.poll() is None:
                host.process.send_signal(signal.SIGTERM)
        for host in made.hosts:
            host.ended()


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_rank_comes_back_with_its_peers(hosts: Hosts, victim: int) -> None:
    version = hosts.assign(7)
    os.kill(hosts.hosts[victim].rank_pids()[0], signal.SIGKILL)
    hosts.wait(lives=(2, 2))
    hosts.check(7, version)


@pytest.mark.slow
def test_a_host_that_vanishes_is_waited_for_and_its_ranks_start_from_where_all_were(hosts: Hosts) -> None:
    for life in (2, 3):
        version = hosts.assign(life)
        hosts.vanish(1)
        hosts.start_again(1)
        hosts.wait(lives=(life, 1))
        hosts.check(life, version)


@pytest.mark.slow
def test_with_the_host_of_the_rendezvous_the_other_ends_and_both_start_anew(hosts: Hosts) -> None:
    version = hosts.assign(7)
    hosts.vanish(0)
    assert hosts.hosts[1].ended() != 0
    hosts.start_again(0)
    hosts.start_again(1)
    hosts.wait()
    hosts.check(7, version)


@pytest.mark.slow
@pytest.mark.parametrize("victim", [0, 1])
def test_a_host_that_is_told_to_leave_has_all_write_a_snapshot_and_the_other_wait_for_it(
    hosts: Hosts, victim: int, tmp_path: Path
) -> None:
    version = hosts.assign(7)
    hosts.hosts[victim].stop(signal.SIGTERM)
    assert (tmp_path / "snapshots" / f"{version:012d}" / "manifest.json").is_file()
    hosts.start_again(victim)
    if victim == 0:
        hosts.start_again(1)
        hosts.wait()
    else:
        hosts.wait(lives=(2, 1))
    hosts.check(7, version)


def test_agents_that_share_their_store_are_refused_on_several_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    told = {"RANK": "0", "WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", "TORCHELASTIC_USE_AGENT_STORE": "True"}
    for name, value in (told | {"TORCHELASTIC_MAX_RESTARTS": "3"}).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match="set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in torchrun's environment"):
        TorchWorld(timeout_s=1)
