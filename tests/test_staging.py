"""What is staged goes on where it was cut, and whatever no job has written, or no disk holds, changes nothing."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import resource
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file
from support.job import CONFIG, Job, numbers
from support.service import Service

import embershard
import embershard.publisher
from embershard import AsyncClient, Client
from embershard.engine.publication import StagedFile
from embershard.store.delta_files import write_delta_file
from embershard.v1 import embershard_pb2 as pb


@pytest.fixture(scope="module", params=[0, pytest.param(2, marks=pytest.mark.slow)], ids=["local", "torchrec-2"])
def ranks(request: pytest.FixtureRequest) -> int:
    return int(request.param)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory, ranks: int) -> Path:
    return tmp_path_factory.mktemp(f"staging-{ranks}")


@pytest.fixture(scope="module")
def service(data: Path, ranks: int) -> Iterator[Service]:
    with Service(CONFIG, data, ranks=ranks) as service:
        yield service


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.target) as client:
        yield client


@pytest.fixture
def staged(data: Path) -> Path:
    """Where the service keeps what was staged."""
    return data / "publications"


@pytest.fixture
def job(client: Client, tmp_path: Path) -> Job:
    """One that has published its tables in full, filled with ones."""
    job = Job(client, tmp_path, f"job-{client.describe().version}").fill(1)
    job.full()
    return job


class Cut(io.BytesIO):
    """A file that ends with an error, and counts what is read."""

    def __init__(self, data: bytes, after: int) -> None:
        super().__init__(data)
        self.after, self.read_bytes = after, 0

    def read(self, size: int | None = -1) -> bytes:
        if self.read_bytes >= self.after:
            raise ConnectionResetError("cut")
        data = super().read(size)
        self.read_bytes += len(data)
        return data


def test_an_upload_that_was_cut_goes_on_where_it_ended(client: Client) -> None:
    data = np.random.default_rng(1).bytes(300_000)
    cut = Cut(data, after=120_000)
    with pytest.raises(ConnectionResetError):
        client.stage("cut", 1, "file", cut, piece_bytes=10_000)
    rest = Cut(data, after=400_000)
    there: list[int] = []
    assert client.stage("cut", 1, "file", rest, piece_bytes=10_000, told=there.append) == len(data)
    assert there[0] + rest.read_bytes == len(data)
    assert 0 < there[0] <= 120_000
    again = Cut(data, after=1)
    assert client.stage("cut", 1, "file", again) == len(data)
    assert again.read_bytes == 0


def test_the_asynchronous_client_does_the_same(client: Client, job: Job) -> None:
    job.fill(2)
    sent: list[Any] = []

    async def send(file: StagedFile, path: Path) -> pb.PublishResponse:
        request = pb.PublishRequest(
            publisher=job.publisher.publisher,
            number=2,
            delta=True,
            files=[pb.StagedFile(name=file.name, size=file.size, sha256=bytes.fromhex(file.sha256))],
            layout=json.dumps(job.subject.engine.config.layout()),
        )
        async with AsyncClient(client.target) as other:
            with path.open("rb") as source:
                await other.stage(job.publisher.publisher, 2, file.name, source, piece_bytes=1000, told=sent.append)
            return await other.publish(request)

    with tempfile.TemporaryDirectory() as folder:
        file = write_delta_file(Path(folder), job.publisher.publisher, 2, job.touched.take())
        assert asyncio.run(send(file, Path(folder) / file.name)).rows == 100
    assert sent[0] == 0
    assert sent[-1] == file.size
    assert numbers(client) == {2}


@pytest.mark.parametrize(
    ("piece", "message"),
    [
        ({"publisher": "../up"}, "publisher '../up' must be of up to 128 letters"),
        ({"publisher": ""}, "publisher '' must be"),
        ({"file": ".hidden"}, "file '.hidden' must be"),
        ({"file": "a/b"}, "file 'a/b' must be"),
        ({"file": "x" * 129}, "must be of up to 128 letters"),
        ({"number": 0}, "number 0 of a publication must be from 1"),
        ({"number": 2**64 - 1}, "must be from 1 to 999,999,999,999"),
        ({"offset": 7}, "file 'file' has 0 bytes here, and can't go on from 7"),
    ],
)
def test_a_piece_that_leads_elsewhere_is_refused(
    client: Client, staged: Path, piece: dict[str, Any], message: str
) -> None:
    request = pb.StageRequest(**{"publisher": "bad", "number": 1, "file": "file", "data": b"data", **piece})
    with pytest.raises(embershard.InvalidInput, match=message):
        list(client._stream(client._admin.Stage, iter([request]), 10))
    assert not (staged / "bad").exists()


def test_a_new_publication_drops_what_its_publisher_never_published(client: Client, staged: Path) -> None:
    for number in (1, 2):
        client.stage("dropping", number, "file", io.BytesIO(b"data"))
    assert [path.name for path in (staged / "dropping").iterdir()] == [f"{2:012d}"]


def test_so_many_may_stage_at_once_and_no_more(tmp_path: Path) -> None:
    with Service(CONFIG, tmp_path) as service, Client(service.target) as client:
        for number in range(16):
            client.stage(f"p{number}", 1, "file", io.BytesIO(b"data"))
        with pytest.raises(embershard.Overloaded, match="16 publishers stage something at once"):
            client.stage("more", 1, "file", io.BytesIO(b"data"))
        client.stage("p3", 2, "file", io.BytesIO(b"data"))


def test_a_damaged_file_is_refused_and_can_be_sent_again(client: Client, staged: Path, job: Job) -> None:
    publish, name = client.publish, job.publisher.publisher

    def spoil(request: pb.PublishRequest, **options: Any) -> pb.PublishResponse:
        (path,) = (staged / name / f"{2:012d}").iterdir()
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
        return publish(request, **options)

    client.publish = spoil  # type: ignore[method-assign]
    with pytest.raises(embershard.SnapshotError, match=r"delta-.*: its checksum is wrong; stage it again"):
        job.fill(2).delta()
    assert numbers(client) == {1}
    client.publish = publish  # type: ignore[method-assign]
    job.delta()
    assert numbers(client) == {2}


def test_what_was_not_staged_is_not_published(client: Client, job: Job) -> None:
    request = pb.PublishRequest(
        publisher=job.publisher.publisher,
        number=2,
        delta=True,
        files=[pb.StagedFile(name="nowhere", size=5, sha256=bytes(32))],
        layout=json.dumps(job.subject.engine.config.layout()),
    )
    with pytest.raises(embershard.SnapshotError, match="nowhere: has 0 of 5 bytes: stage it"):
        client.publish(request)
    for wrong in ("", "[]", '{"seed": 1}', "{" * 9999):
        request.layout = wrong
        with pytest.raises(embershard.InvalidInput, match="the layout is no"):
            client.publish(request)


Arrays = dict[str, Any]
BAD: dict[str, Callable[[Arrays, dict[str, str]], object]] = {
    "the rows of left don't ascend": lambda arrays, _: arrays["rows/left"].sort() or arrays["rows/left"][::-1].sort(),
    "the rows of left are torch.float64": lambda arrays, _: arrays.update(
        {"rows/left": arrays["rows/left"].astype(np.float64)}
    ),
    "row 2,000 of left is none": lambda arrays, _: np.put(arrays["rows/left"], -1, 2000),
    "row 6 of word is none": lambda arrays, _: arrays.update(_word_row(arrays)),
    "has numbers that aren't finite": lambda arrays, _: np.put(arrays["weight/right"], 3, np.nan),
    "weight/left has rows of torch.float64": lambda arrays, _: arrays.update(
        {"weight/left": arrays["weight/left"].astype(np.float64)}
    ),
    r"has rows of torch.float32 \[2\]": lambda arrays, _: arrays.update({"weight/left": arrays["weight/left"][:, :2]}),
    "updates of left has other rows": lambda arrays, _: arrays.update({"updates/left": arrays["updates/left"][1:]}),
    "weight/right": lambda arrays, _: arrays.pop("weight/right"),
    "two ids of word have one key": lambda arrays, _: np.put(arrays["ids.keys/word"], [0, 1], 5),
    "counts of the ids of word can't be": lambda arrays, _: np.put(arrays["ids.counts/word"], 0, -1),
    "names of the ids of word are others": lambda arrays, _: arrays.update({"ids.there/word": np.ones(3, bool)}),
    "of the format 'else'": lambda _, told: told.update(format="else"),
    "a file is of publication 7": lambda _, told: told.update(number="7"),
    r"has files of ranks \[0\] of 2": lambda _, told: told.update(world_size="2"),
}
"""What is told of it: what is done to a good file."""


def _word_row(arrays: Arrays) -> Arrays:
    """A row that an id owns, by its number."""
    shapes = {"weight/word": (1, 4), "updates/word": 1}
    return {"rows/word": np.array([6])} | {name: np.zeros(of, arrays[name].dtype) for name, of in shapes.items()}


@pytest.mark.parametrize("message", BAD)
def test_a_file_that_no_job_has_written_changes_nothing(
    client: Client, job: Job, tmp_path: Path, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def spoiled(folder: Path, *given: Any) -> Any:
        made = write(folder, *given)
        with safe_open(folder / made.name, "np") as file:
            names = [*file.keys()]
            arrays, metadata = {name: file.get_tensor(name).copy() for name in names}, dict(file.metadata())
        BAD[message](arrays, metadata)
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, folder / made.name, metadata)
        return module._described(folder / made.name)

    module = embershard.publisher
    write = module.write_delta_file
    monkeypatch.setattr(module, "write_delta_file", spoiled)
    version = client.describe().version
    with pytest.raises(embershard.SnapshotError, match=message):
        job.fill(2).delta()
    assert (client.describe().version, numbers(client)) == (version, {1})
    monkeypatch.undo()
    job.delta()
    assert numbers(client) == {2}


@contextlib.contextmanager
def full_disk(service: Service) -> Iterator[None]:
    """No file of the processes may grow."""
    for most in (0, resource.RLIM_INFINITY):
        for pid in service.rank_pids():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, resource.RLIM_INFINITY))
        if not most:
            yield


def test_on_a_full_disk_nothing_is_staged_and_it_goes_on_once_there_is_room(
    client: Client, service: Service, job: Job
) -> None:
    job.publisher._timeout_s = 2
    with full_disk(service), pytest.raises(embershard.DeadlineExceeded, match="the disk is full"):
        job.fill(2).delta()
    assert numbers(client) == {1}
    job.delta()
    assert numbers(client) == {2}
