"""Growth while calls are answered: nothing that comes meanwhile is lost, and nothing else changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.implementation import Implementation
from support.scenario import collection, random_updates
from support.service import Service

import embershard
from embershard import Client
from embershard.config import parse_config
from embershard.engine.clients import Clients
from embershard.engine.entries import growth_entry
from embershard.engine.growth import Growing
from embershard.engine.jobs import EntryJob, JobQueue
from embershard.engine.local import LocalEngine
from embershard.engine.pipeline import Brought, Pipeline
from embershard.engine.replica import Replica
from embershard.engine.world import SoloWorld
from embershard.v1 import embershard_pb2 as pb

CONFIG = """
[collection]
name = "growing"
[optimizer]
kind = "sgd"
learning_rate = 1.0
[[tables]]
name = "user"
rows = 30_000
dim = 64
init = { kind = "zeros" }
[[tables]]
name = "beside"
rows = 100
dim = 64
init = { kind = "zeros" }
"""


def test_rows_that_change_between_slices_are_as_if_they_had_changed_before(implementation: Implementation) -> None:
    tables = [{"name": "t", "rows": 50, "dim": 6}, {"name": "u", "rows": 9, "dim": 6}]
    random = np.random.default_rng(0)
    config = collection(tables)
    updates = [implementation.on_first(random_updates(random, config)) for _ in range(6)]
    states = []
    for interrupted in (False, True):
        implementation.build(config)
        if interrupted:
            implementation.grow_between("t", 83, updates)
        else:
            for update in updates:
                implementation.update(update)
            implementation.grow("t", 83)
        states.append(implementation.state())
    for name, tensor in states[0].items():
        np.testing.assert_array_equal(states[1][name], tensor, err_msg=name)


@pytest.fixture(scope="module", params=[0, 2], ids=["local", "torchrec-2"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(CONFIG, tmp_path_factory.mktemp("growth"), ranks=request.param) as service:
        yield service


def test_a_table_grows_under_updates_and_a_snapshot_and_loses_none(service: Service) -> None:
    counts = np.zeros(200)
    done = threading.Event()

    def work() -> None:
        with Client(service.target) as client:
            random = np.random.default_rng(1)
            while not done.is_set():
                ids = random.integers(0, 200, 20)
                client.update({"user": ids}, gradients={"user": -np.ones((20, 64))})
                np.add.at(counts, ids, 1)

    worker = threading.Thread(target=work)
    worker.start()
    with Client(service.target) as client:
        for rows in (45_000, 60_001):
            assert client.grow("user", rows=rows).rows == rows
            client.snapshot()
        done.set()
        worker.join()
        np.testing.assert_array_equal(client.lookup({"user": range(200)})["user"][:, 0], counts)
        assert (client.lookup({"user": [60_000], "beside": [99]})["user"] == 0).all()
        with pytest.raises(embershard.InvalidInput, match="can't shrink"):
            client.grow("user", rows=10)


def test_what_was_grown_is_there_after_a_crash(tmp_path: Path) -> None:
    with Service(CONFIG, tmp_path) as service, Client(service.target) as client:
        client.assign({"user": [7]}, values={"user": np.ones((1, 64))})
        client.grow("user", rows=40_000)
        client.assign({"user": [39_999]}, values={"user": np.ones((1, 64))})
        service.process.kill()
        service.ended()
    with Service(tmp_path / "collection.toml", tmp_path) as service, Client(service.target) as client:
        assert (client.lookup({"user": [7, 39_999]})["user"] == 1).all()


@pytest.mark.parametrize("overtaken", ["by other tables", "by an activation under way"])
def test_a_growth_that_an_activation_overtakes_is_refused_before_it_is_logged(overtaken: str) -> None:
    config = parse_config(
        {
            "collection": {"name": "growing"},
            "durability": {"log": "none"},
            "tables": [{"name": "user", "rows": 10, "dim": 4}],
        }
    )
    engines = [LocalEngine(config, SoloWorld()) for _ in range(2)]
    replica = Replica(
        engines[0], version=0, clients=Clients(10), load=lambda _: engines[1], fetch=lambda *_: engines[1]
    )
    if overtaken == "by other tables":
        replica.growing = Growing(engines[1], {"user": 20})
    else:
        replica.growing, replica.activating = Growing(engines[0], {"user": 20}), 7
    queue = JobQueue(config.limits, merged_lookups=1)
    job = EntryJob(entry=growth_entry(replica.collection, pb.GrowRequest(table="user", rows=20)))
    queue.put(job)
    Pipeline(replica, queue, None, config).advance(Brought(waiting=1, logged=0, quota=1), now_s=0)
    with pytest.raises(embershard.Overloaded, match="other tables were activated while 'user' was made ready"):
        job.done.result(timeout=0)
    assert (replica.version, engines[0].config.table("user").rows) == (0, 10)
