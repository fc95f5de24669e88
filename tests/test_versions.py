"""Versions: what was served can be served again, all tables at once, and a reader may stay with one of them."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.command import refused, shown, told
from support.service import Service

import embershard
from embershard import Client
from embershard.v1 import embershard_pb2 as pb

CONFIG = """
[collection]
name = "pair"
[optimizer]
kind = "sgd"
learning_rate = 1.0
[[tables]]
name = "left"
rows = 40
dim = 3
init = { kind = "zeros" }
[[tables]]
name = "right"
rows = 40
dim = 5
init = { kind = "zeros" }
"""


@pytest.fixture(scope="module", params=[0, 2], ids=["local", "torchrec-2"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(CONFIG, tmp_path_factory.mktemp("versions"), ranks=request.param) as service:
        yield service


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.target) as client:
        yield client


def fill(client: Client, number: float) -> int:
    """Row 1 of both tables, in one update."""
    values = {"left": np.full((1, 3), number), "right": np.full((1, 5), number)}
    return client.assign({"left": [1], "right": [1]}, values=values)


def read(client: Client, **options: Any) -> float:
    """What row 1 of both tables is; they never differ."""
    rows = client.lookup({"left": [1], "right": [1]}, **options)
    (number,) = {*rows["left"].ravel().tolist(), *rows["right"].ravel().tolist()}
    return float(number)


def states(client: Client) -> dict[int, tuple[int, bool]]:
    return {told.version: (told.state, told.rollback) for told in client.list_versions()}


def test_a_bad_change_is_undone_in_one_call_and_rolled_back_again(client: Client) -> None:
    fill(client, 1)
    good = client.snapshot().version
    bad = fill(client, 2)
    activated = client.activate(good)
    assert (activated.version, activated.activated, activated.before) == (bad + 1, good, bad)
    assert read(client) == 1
    assert states(client)[bad] == (pb.VERSION_STATE_LOADED, True)
    fill(client, 3)
    undone = client.rollback()
    assert (undone.version, undone.activated, undone.before) == (bad + 3, bad, 0)
    assert read(client, min_version=undone.version) == 2
    with pytest.raises(embershard.InvalidInput, match="nothing to roll back to"):
        client.rollback()


def test_a_pinned_reader_stays_where_it_is(client: Client) -> None:
    fill(client, 4)
    pinned = client.snapshot().version
    with pytest.raises(embershard.InvalidInput, match=f"version {pinned} isn't loaded"):
        read(client, pinned_version=pinned)
    client.load(pinned)
    client.load(pinned)  # no matter
    fill(client, 5)
    assert (read(client, pinned_version=pinned), read(client)) == (4, 5)
    assert client.lookup({"left": [1]}, pinned_version=pinned).version == pinned
    client.load(pinned, unload=True)
    with pytest.raises(embershard.InvalidInput, match="isn't loaded"):
        client.load(pinned, unload=True)
    assert states(client)[pinned] == (pb.VERSION_STATE_ON_DISK, False)


def test_of_what_was_served_only_what_a_rollback_needs_stays_in_memory(client: Client) -> None:
    versions, served = [], []
    for number in (1, 2, 3):
        fill(client, number)
        versions.append(client.snapshot().version)
    client.load(versions[0])
    for version in versions[1:]:
        served.append(client.activate(version))
    wanted = {versions[0], served[-1].before}
    for _ in range(5_000):
        loaded = {version for version, (state, _) in states(client).items() if state == pb.VERSION_STATE_LOADED}
        if loaded == wanted:
            break
        assert read(client) == 3
    assert loaded == wanted
    client.rollback()
    assert read(client) == 2
    assert read(client, pinned_version=versions[0]) == 1
    client.load(versions[0], unload=True)


def test_all_tables_change_at_once_under_readers(client: Client, service: Service) -> None:
    fill(client, 6)
    first = client.snapshot().version
    fill(client, 7)
    done, seen = threading.Event(), set()

    def reader(target: str) -> None:
        with Client(target) as other:
            while not done.is_set():
                seen.add(read(other))

    readers = [threading.Thread(target=reader, args=[target]) for target in service.addresses.values()]
    for thread in readers:
        thread.start()
    for _ in range(5):
        client.activate(first)
        client.rollback()
    done.set()
    for thread in readers:
        thread.join()
    assert seen <= {6, 7}


def test_rows_that_came_later_are_gone_with_what_was_asked_of_them(client: Client) -> None:
    fill(client, 8)
    small = client.snapshot().version
    client.grow("left", rows=60)
    client.assign({"left": [50]}, values={"left": np.ones((1, 3))})
    client.activate(small)
    with pytest.raises(embershard.InvalidInput, match=r"ids\[0\] = 50 is out of range"):
        client.lookup({"left": [50]})
    client.rollback()
    assert (client.lookup({"left": [50]})["left"] == 1).all()


def test_an_update_is_applied_once_whatever_is_served(client: Client) -> None:
    fill(client, 9)
    base = client.snapshot().version
    send: Any = {"features": {"left": [2]}, "gradients": {"left": -np.ones((1, 3))}, "identity": ("once", 1)}
    version = client.update(**send)
    client.activate(base)
    assert client.update(**send) == version  # it was applied, to what is served no more
    client.rollback()
    assert (client.lookup({"left": [2]})["left"] == 1).all()


@pytest.mark.parametrize("version", [1, 2**40, 2**64 - 1])
def test_what_is_not_there_is_refused(client: Client, version: int) -> None:
    before = client.describe().version
    for call in (client.activate, client.load):
        with pytest.raises(embershard.SnapshotError, match="there is no snapshot of version"):
            call(version)
    assert client.describe().version == before


def test_another_fingerprint_is_refused(client: Client) -> None:
    for call in (lambda: client.activate(1, fingerprint="other"), lambda: client.rollback(fingerprint="other")):
        with pytest.raises(embershard.FingerprintMismatch):
            call()


def test_the_command_line_does_it_all(client: Client, service: Service, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EMBERSHARD_TARGET", service.target)
    fill(client, 10)
    good = client.snapshot().version
    fill(client, 11)
    assert told("load", good) == {"version": good}
    assert told("lookup", "--ids", "left=1", "--pinned-version", good)["features"]["left"]["vectors"] == [[10] * 3]
    assert shown("activate", good)[1:] == [f"activated {good}", f"before {good + 1}, which a rollback serves again"]
    assert told("lookup", "--ids", "left=1")["features"]["left"]["vectors"] == [[10] * 3]
    assert {one["version"] for one in told("versions")["versions"] if one["rollback"]} == {good + 1}
    assert shown("rollback")[2] == "nothing is left to roll back to"
    assert "nothing to roll back to" in refused("rollback")


def test_a_restart_serves_what_was_activated_and_can_still_roll_back(tmp_path: Path) -> None:
    with Service(CONFIG, tmp_path) as service, Client(service.target) as client:
        fill(client, 1)
        good = client.snapshot().version
        fill(client, 2)
        client.activate(good)
        fill(client, 3)
        service.process.kill()
        service.ended()
    with Service(tmp_path / "collection.toml", tmp_path) as service, Client(service.target) as client:
        assert read(client) == 3
    with Service(tmp_path / "collection.toml", tmp_path) as service, Client(service.target) as client:
        assert read(client) == 3
        client.rollback()
        assert read(client) == 2


def test_a_repeat_is_told_even_where_its_ids_are_gone(client: Client) -> None:
    fill(client, 12)
    small = client.snapshot().version
    client.grow("left", rows=80)
    send: Any = {"features": {"left": [70]}, "gradients": {"left": np.ones((1, 3))}, "identity": ("gone", 1)}
    version = client.update(**send)
    client.activate(small)
    assert client.update(**send) == version
    client.rollback()


def test_of_rollbacks_at_once_one_is_done_and_the_others_are_refused(service: Service, client: Client) -> None:
    fill(client, 13)
    good = client.snapshot().version
    fill(client, 14)
    client.activate(good)
    told = []

    def roll_back(target: str) -> None:
        with Client(target) as other:
            try:
                told.append(other.rollback().version)
            except embershard.EmbershardError as refusal:
                told.append(type(refusal))

    threads = [threading.Thread(target=roll_back, args=[target]) for target in [*service.addresses.values()] * 4]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len([version for version in told if isinstance(version, int)]) == 1
    assert {kind for kind in told if isinstance(kind, type)} <= {embershard.InvalidInput, embershard.Overloaded}
    assert read(client) == 14


def test_a_damaged_snapshot_is_refused_to_all_who_load_it_at_once(service: Service, client: Client) -> None:
    fill(client, 15)
    made = client.snapshot()
    (file,) = Path(made.path).glob("shard-00001-*")
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)
    told = []

    def load() -> None:
        with Client(service.target) as other, pytest.raises(embershard.EmbershardError) as refused:
            other.load(made.version)
        told.append(type(refused.value))

    threads = [threading.Thread(target=load) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert told == [embershard.SnapshotError] * 4
    assert read(client) == 15


def test_a_loaded_version_that_is_no_longer_on_the_disk_is_not_activated(client: Client) -> None:
    """The log couldn't be applied then."""
    fill(client, 16)
    made = client.snapshot()
    client.load(made.version)
    moved = Path(made.path).rename(Path(made.path).with_name("moved"))
    with pytest.raises(embershard.SnapshotError, match=f"no snapshot of version {made.version}"):
        client.activate(made.version)
    assert read(client, pinned_version=made.version) == 16
    moved.rename(made.path)
    assert client.activate(made.version).activated == made.version
    client.rollback()


def test_a_snapshot_that_was_activated_stays_as_long_as_the_log_names_it(tmp_path: Path) -> None:
    config = CONFIG.replace("[optimizer]", "[limits]\nsnapshots_kept = 1\n[optimizer]")
    with Service(config, tmp_path) as service, Client(service.target) as client:
        fill(client, 1)
        first = client.snapshot().version
        client.load(first)
        for number in (2, 3):
            fill(client, number)
            client.snapshot()
        client.activate(first)
        service.process.kill()
        service.ended()
    with Service(tmp_path / "collection.toml", tmp_path) as service, Client(service.target) as client:
        assert read(client) == 1
