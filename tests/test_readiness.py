"""A rank is ready while it answers lookups, and no longer: also when it is a peer that hangs."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from support.metrics import Scrape, told
from support.service import Service
from support.waiting import eventually

from embershard import Client

CONFIG = """
[collection]
name = "small"
[limits]
group_timeout_s = 60
[[tables]]
name = "t"
rows = 6
dim = 2
"""
SERVING, NOT_SERVING = health_pb2.HealthCheckResponse.SERVING, health_pb2.HealthCheckResponse.NOT_SERVING


def test_a_peer_that_is_stopped_makes_all_ranks_unready_until_it_goes_on(tmp_path: Path) -> None:
    with (
        Service(CONFIG, tmp_path, ranks=2, flags=["--metrics-listen", "127.0.0.1:0"]) as service,
        grpc.insecure_channel(service.target) as channel,
    ):
        health, url = health_pb2_grpc.HealthStub(channel), service.metrics[0]
        ready = told(f"{url}/readyz")
        assert (ready.status, ready.text) == (200, "ok\n")
        assert health.Check(health_pb2.HealthCheckRequest()).status == SERVING
        pids = {rank: pid for pid in service.rank_pids() for rank in [_rank_of(pid)]}
        os.kill(pids[1], signal.SIGSTOP)
        try:
            eventually(lambda: told(f"{url}/readyz").status == 503)
            assert "aren't answered" in told(f"{url}/readyz").text
            assert told(f"{url}/livez").status == 200
            assert Scrape(url).value("ready") == 0
            for name in ("", "embershard.v1.EmbeddingService"):
                assert health.Check(health_pb2.HealthCheckRequest(service=name)).status == NOT_SERVING
        finally:
            os.kill(pids[1], signal.SIGCONT)
        eventually(lambda: told(f"{url}/readyz").status == 200)
        assert health.Check(health_pb2.HealthCheckRequest()).status == SERVING
        with Client(service.target) as client:
            assert len(client.lookup({"t": [1]})["t"]) == 1
        service.wait_said("not ready: lookups aren't answered")
        service.wait_said("ready again")


def _rank_of(pid: int) -> int:
    variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    return next(int(variable[5:]) for variable in variables if variable.startswith(b"RANK="))
