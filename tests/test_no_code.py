"""Snapshots, publications and imports are data: what runs code when it is unpickled does nothing there."""

from __future__ import annotations

import io
import json
import os
import pickle
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.command import refused
from support.job import CONFIG, Job
from support.jobs import DLRM, collection, run_job, write_job
from support.service import Service
from support.subject import local

import embershard.publisher
from embershard import Client, SnapshotError
from embershard.config import parse_config
from embershard.engine.world import SoloWorld
from embershard.errors import EmbershardError
from embershard.store import snapshot
from embershard.store.manifest import MANIFEST, _checksum, describe_file, open_snapshot


class Malice:
    """What makes a folder when it is unpickled."""

    def __init__(self, sentinel: Path) -> None:
        self._sentinel = sentinel

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._sentinel),)


@pytest.fixture
def sentinel(tmp_path: Path) -> Iterator[Path]:
    """What isn't there at the end, as nothing has run."""
    path = tmp_path / "it-ran"
    yield path
    assert not path.exists()


def test_the_sentinel_would_tell(tmp_path: Path) -> None:
    pickle.loads(pickled(tmp_path / "it-ran"))
    assert (tmp_path / "it-ran").is_dir()


def pickled(sentinel: Path) -> bytes:
    return pickle.dumps({"weight": Malice(sentinel)})


def torch_file(sentinel: Path) -> bytes:
    file = io.BytesIO()
    torch.save({"weight": torch.ones(3, 4), "more": Malice(sentinel)}, file)
    return file.getvalue()


def old_torch_file(sentinel: Path) -> bytes:
    file = io.BytesIO()
    torch.save({"weight": Malice(sentinel)}, file, _use_new_zipfile_serialization=False)
    return file.getvalue()


def npy(sentinel: Path) -> bytes:
    file = io.BytesIO()
    np.save(file, np.array([[Malice(sentinel)]], object), allow_pickle=True)
    return file.getvalue()


def npz(sentinel: Path) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("ids.npy", npy(sentinel))
        archive.writestr("vectors.npy", npy(sentinel))
    return file.getvalue()


MALICIOUS: dict[str, Callable[[Path], bytes]] = {
    "pickle": pickled,
    "torch": torch_file,
    "old-torch": old_torch_file,
    "npy": npy,
    "npz": npz,
}


@pytest.mark.parametrize("kind", MALICIOUS)
@pytest.mark.parametrize("name", ["v.pt", "v.npy", "v.npz", "v.safetensors", "v.parquet", "v.txt", "v.tsv"])
def test_an_import_runs_nothing(tmp_path: Path, sentinel: Path, kind: str, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(MALICIOUS[kind](sentinel))
    (tmp_path / "v.metadata.tsv").write_text("a\n")
    assert str(path) in refused("import", path, "--feature", "left")


@pytest.mark.parametrize("kind", ["pickle", "torch"])
def test_gradients_of_an_update_run_nothing(tmp_path: Path, sentinel: Path, kind: str) -> None:
    path = tmp_path / "gradients.npy"
    for data in (MALICIOUS[kind](sentinel), npy(sentinel)):
        path.write_bytes(data)
        assert str(path) in refused("update", "--ids", "left=1", "--gradients", path)


def arm(folder: Path, name: str, data: bytes) -> Path:
    """Puts a file in the place of one of a snapshot, with checksums that are right."""
    (folder / name).write_bytes(data)
    manifest = json.loads((folder / MANIFEST).read_text())
    del manifest["checksum"]
    manifest["files"][name] = describe_file(folder / name)
    (folder / MANIFEST).write_text(json.dumps({**manifest, "checksum": _checksum(manifest)}))
    return folder


def files_of(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.name != MANIFEST)


@pytest.mark.parametrize("kind", MALICIOUS)
def test_a_snapshot_runs_nothing(tmp_path: Path, sentinel: Path, kind: str) -> None:
    saved = Path(local(parse_config(_table())).save(str(tmp_path), 7))
    data = MALICIOUS[kind](sentinel)
    for name in files_of(saved):
        right = (saved / name).read_bytes()
        arm(saved, name, data)
        with pytest.raises(SnapshotError, match=name):
            snapshot.load(local(parse_config(_table())).engine, open_snapshot(saved))
        arm(saved, name, right)
    (saved / MANIFEST).write_bytes(data)
    with pytest.raises(SnapshotError, match="is damaged"):
        open_snapshot(saved)


def _table() -> dict[str, Any]:
    words = {"name": "word", "rows": 30, "dim": 4, "ids": {"kind": "vocabulary", "fallback_rows": 6}}
    return {"collection": {"name": "shop"}, "tables": [{"name": "left", "rows": 40, "dim": 3}, words]}


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(CONFIG, tmp_path_factory.mktemp("served")) as service:
        yield service


@pytest.mark.parametrize("kind", MALICIOUS)
def test_a_publication_runs_nothing(
    service: Service, tmp_path: Path, sentinel: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, module = MALICIOUS[kind](sentinel), embershard.publisher
    with Client(service.target) as client:
        job = Job(client, tmp_path, f"job-{kind}").fill(1)
        for number, name in enumerate(files_of(job.snapshot().path)):
            other = Job(client, tmp_path, f"job-{kind}-{number}").fill(1)
            armed = open_snapshot(arm(other.snapshot().path, name, data))
            with pytest.raises(SnapshotError, match=name):
                other.publisher.full(armed)
        job.full()
        version = client.describe().version

        def malicious(folder: Path, *given: Any) -> Any:
            made = write(folder, *given)
            (folder / made.name).write_bytes(data)
            return module._described(folder / made.name)

        write = module.write_delta_file
        monkeypatch.setattr(module, "write_delta_file", malicious)
        with pytest.raises(SnapshotError, match="can't be read"):
            job.fill(2).delta()
        assert client.describe().version == version


def test_a_job_starts_from_a_snapshot_and_goes_on_from_a_checkpoint_and_runs_nothing(
    tmp_path: Path, sentinel: Path
) -> None:
    run_job(write_job(tmp_path, DLRM, tables=collection(), epochs=1), tmp_path / "base", SoloWorld())
    tuned = write_job(tmp_path, DLRM, tables=collection(), epochs=1, start="base")
    (saved,) = (tmp_path / "base/snapshots").iterdir()
    (layers,) = (tmp_path / "base/trainer").iterdir()
    rows, right = files_of(saved)[0], (saved / files_of(saved)[0]).read_bytes()
    for number, make in enumerate(MALICIOUS.values()):
        arm(saved, rows, make(sentinel))
        with pytest.raises(EmbershardError, match=rows):
            run_job(tuned, tmp_path / f"tuned{number}", SoloWorld())
    arm(saved, rows, right)
    longer = write_job(tmp_path, DLRM, tables=collection(), epochs=2)
    for make in MALICIOUS.values():
        layers.write_bytes(make(sentinel))
        with pytest.raises(SnapshotError, match="can't be read"):
            run_job(longer, tmp_path / "base", SoloWorld())
