"""What a training job publishes is served all at once, exactly once, and is there after any crash; or it is refused."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.command import refused, told
from support.job import CONFIG, EVERY, Job, numbers
from support.service import Service

import embershard
from embershard import Client
from embershard.engine.growth import Growth
from embershard.v1 import embershard_pb2 as pb


@pytest.fixture(scope="module", params=[0, pytest.param(2, marks=pytest.mark.slow)], ids=["local", "torchrec-2"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(CONFIG, tmp_path_factory.mktemp("publish"), ranks=request.param) as service:
        yield service


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.target) as client:
        yield client


@pytest.fixture
def job(client: Client, tmp_path: Path, request: pytest.FixtureRequest) -> Job:
    """One that has published its tables in full, filled with ones."""
    name = hashlib.sha256(request.node.name.encode()).hexdigest()[:12]
    job = Job(client, tmp_path, name).fill(1)
    assert job.full().before == client.describe().version - 1
    return job


def test_readers_see_all_of_a_publication_or_nothing(service: Service, client: Client, job: Job) -> None:
    done, seen = threading.Event(), set[frozenset[float]]()

    def reader() -> None:
        with Client(service.target) as other:
            while not done.is_set():
                seen.add(frozenset(numbers(other)))

    readers = [threading.Thread(target=reader) for _ in range(2)]
    for thread in readers:
        thread.start()
    for number in range(2, 12):
        answer = (job.fill(number).full if number == 6 else job.fill(number).delta)()
        assert numbers(client, min_version=answer.version) == {number}
    done.set()
    for thread in readers:
        thread.join()
    assert all(len(found) == 1 for found in seen)
    assert len(seen) > 2


def test_a_delta_has_what_was_touched_and_nothing_else(client: Client, job: Job) -> None:
    client.assign({"left": [1, 2]}, values={"left": np.full((2, 3), 7)})
    answer = job.fill(5, {"left": [2, 3], "word": ["w1", "new"]}).delta()
    assert (answer.rows, answer.frozen, answer.duplicate) == (4, 0, False)
    left = client.lookup({"left": [0, 1, 2, 3]})["left"][:, 0]
    assert left.tolist() == [1, 7, 5, 5], "the last writer of a row wins"
    assert client.lookup({"word": ["w1", "new", "w2"]})["word"][:, 0].tolist() == [5, 5, 1]
    assert job.delta().rows == 0


def test_what_could_not_be_published_comes_with_the_next(client: Client, job: Job) -> None:
    changes = [job.fill(2, {"left": [1]}).touched.take(), job.fill(3, {"right": [1]}).touched.take()]
    for one in changes:
        job.touched.put_back(one)
    assert job.delta().rows == 2
    assert client.lookup({"left": [1]})["left"][0, 0] == 2


def test_a_publication_is_served_once_however_often_it_is_sent(client: Client, job: Job) -> None:
    sent: list[pb.PublishRequest] = []
    publish = client.publish
    client.publish = lambda request, **options: sent.append(request) or publish(request, **options)  # type: ignore[method-assign]
    first = job.fill(2).delta()
    client.assign({"left": [0]}, values={"left": np.zeros((1, 3))})
    again = publish(sent[0])
    assert (again.version, again.duplicate) == (first.version, True)
    assert client.lookup({"left": [0]})["left"][0, 0] == 0
    sent[0].files[0].size += 1
    with pytest.raises(embershard.SequenceGap, match=r"was made of other files than these.*go on with number 3"):
        publish(sent[0])


def test_a_delta_on_another_publication_is_refused_with_what_to_do(client: Client, job: Job, tmp_path: Path) -> None:
    other = Job(client, tmp_path, "other").fill(3)
    other.full()
    name = job.publisher.publisher
    message = rf"builds on publication 1 of '{name}', but the last one.*publication 1 of 'other': publish in full"
    with pytest.raises(embershard.SequenceGap, match=message):
        job.fill(4).delta()
    assert numbers(client) == {3}
    job.full()
    assert numbers(client) == {4}
    job.fill(5).delta()
    assert (client.describe().published.publisher, client.describe().published.number) == (name, 3)


def test_jobs_that_publish_at_once_take_turns(service: Service, tmp_path: Path) -> None:
    versions: list[int] = []

    def publish(name: str) -> None:
        with Client(service.target) as client:
            job = Job(client, tmp_path, name).fill(7)
            versions.append(job.full().version)

    threads = [threading.Thread(target=publish, args=[f"turn-{number}"]) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({*versions}) == 3


def test_a_rollback_serves_what_was_there_before_and_deltas_go_on_from_that(client: Client, job: Job) -> None:
    job.fill(2).delta()
    job.fill(3).full()
    assert numbers(client) == {3}
    client.rollback()
    assert numbers(client) == {2}
    assert client.describe().published.number == 2
    with pytest.raises(embershard.SequenceGap, match="publish in full"):
        job.fill(4).delta()
    assert job.full().version == client.describe().version
    assert numbers(client) == {4}


def test_rows_that_are_frozen_stay_and_are_counted(client: Client, job: Job) -> None:
    client.freeze({"left": [1, 2]})
    client.freeze({"word": ["w3"]})
    answer = job.fill(2).delta()
    assert (answer.rows, answer.frozen) == (97, 3)
    assert client.lookup({"left": [1, 2, 3]})["left"][:, 0].tolist() == [1, 1, 2]
    assert client.lookup({"word": ["w3", "w4"]})["word"][:, 0].tolist() == [1, 2]
    client.freeze({"left": [1, 2]}, thaw=True)
    assert job.fill(3).delta().frozen == 1


def test_a_table_that_has_grown_there_alone_is_refused_until_it_grows_here(client: Client, job: Job) -> None:
    job.subject.grow(Growth(table="left", rows=50))
    job.fill(2, {"left": np.arange(50)})
    message = r"table 'left' has grown to 50 rows there, and has 40 here: grow it first \(`embershard grow --table left"
    with pytest.raises(embershard.InvalidInput, match=message):
        job.delta()
    client.grow("left", rows=50)
    assert job.delta().version == client.describe().version
    assert (client.lookup({"left": np.arange(50)})["left"] == 2).all()


def test_ids_of_the_service_make_room_for_those_of_the_job(client: Client, job: Job) -> None:
    mine = [f"online {number}" for number in range(4)]
    client.assign({"word": mine}, values={"word": np.full((4, 4), 9)})
    job.fill(2, {"word": ["a", "b", "c"]}).delta()
    described = {table.name: table.vocabulary for table in client.describe().tables}["word"]
    assert (described.ids, described.capacity) == (24, 24)
    assert (client.lookup({"word": ["a", "b", "c"]})["word"] == 2).all()
    assert (client.lookup({"word": mine})["word"][:, 0] == 9).sum() == 1


def test_without_room_for_its_ids_a_delta_is_refused_as_a_whole(client: Client, job: Job) -> None:
    mine = [f"online {number}" for number in range(4)]
    client.assign({"word": mine}, values={"word": np.full((4, 4), 9)})
    client.freeze({"word": [*mine, *EVERY["word"]]})
    with pytest.raises(embershard.InvalidInput, match=r"table 'word' has no room for 1 of the ids .* grow it, or thaw"):
        job.fill(2, {"left": [1], "word": ["a"]}).delta()
    assert client.lookup({"left": [1]})["left"][0, 0] == 1
    client.grow("word", rows=31)
    assert job.delta().rows == 2


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        (("dim = 5", "dim = 6"), embershard.FingerprintMismatch, "tables.right.dim: 5 here, 6 there"),
        (("fallback_rows = 6", "fallback_rows = 7"), embershard.FingerprintMismatch, "fallback_rows: 6 here, 7 there"),
    ],
)
def test_what_another_collection_has_made_is_refused_with_the_difference(
    client: Client, tmp_path: Path, change: tuple[str, str], error: type[Exception], message: str
) -> None:
    other = Job(client, tmp_path, "different", CONFIG.replace(*change))
    for publish in (other.full, other.delta):
        with pytest.raises(error, match=message):
            publish()


def test_another_optimizer_is_refused(client: Client, job: Job, tmp_path: Path) -> None:
    other = Job(client, tmp_path / "other", job.publisher.publisher, CONFIG.replace('"sgd"', '"adagrad"')).fill(2)
    with pytest.raises(embershard.SnapshotError, match=r"optimizer state of adagrad.*set optimizer.kind"):
        other.full()
    other.publisher.number = 1
    with pytest.raises(embershard.InvalidInput, match="trained by adagrad, and served with the state of sgd"):
        other.delta()
    assert numbers(client) == {1}


def test_the_command_line_publishes_snapshots_and_what_differs(
    client: Client, service: Service, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EMBERSHARD_TARGET", service.target)
    job = Job(client, tmp_path, "shell").fill(1)
    first = job.snapshot()
    later = job.fill(2, {"left": [1, 2], "word": ["w1", "new"]}).snapshot()
    full = told("publish", first.path, "--publisher", "shell")
    assert (full["number"], full["delta"], full["before"]) == (1, False, full["version"] - 1)
    done = told("publish", later.path, "--since", "1", "--publisher", "shell")
    assert (done["number"], done["delta"], done["rows"]) == (2, True, 4)
    assert client.lookup({"left": [0, 1]})["left"][:, 0].tolist() == [1, 2]
    assert client.lookup({"word": ["w0", "w1", "new"]})["word"][:, 0].tolist() == [1, 2, 2]
    assert told("describe")["published"] == {"publisher": "shell", "number": 2}
    assert "publish in full" in refused("publish", later.path, "--since", first.path)
    assert told("publish", later.path.parent)["publisher"] == "shop"
