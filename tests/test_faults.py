"""Disks fill or lie, and processes die: what was acknowledged is there, or the service says what isn't.

Every update adds 1 to a row, so that the row tells how often updates were applied.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import grpc
import numpy as np
import psutil
import pytest
from embershard_server.start import start
from support.raw import Raw, float32, int64, lookup, update
from support.service import Service

from embershard.config import load_config
from embershard.engine.session import Session
from embershard.errors import LogError, SnapshotError
from embershard.store.folder import DataDir
from embershard.store.log import segments
from embershard.store.replay import read
from embershard.types import FeatureBatch
from embershard.v1 import embershard_pb2 as pb

CONFIG = """
[collection]
name = "small"
[limits]
group_timeout_s = 20
[durability]
log = "fsync"
[optimizer]
kind = "sgd"
learning_rate = 1.0
[[tables]]
name = "t"
rows = 6
dim = 2
init = { kind = "zeros" }
"""


def push(raw: Raw, sequence: int, *, row: int = 1) -> pb.UpdateResponse:
    """Adds 1 to a row, as its only client, whose updates are numbered."""
    request = update({"feature": "t", "ids": int64(row)}, gradients=float32(-1, -1))
    request.client_id, request.sequence = f"of row {row}", sequence
    return pb.UpdateResponse.FromString(raw.call("Update", request))


def applied(raw: Raw, row: int = 1) -> tuple[int, int]:
    """How often a row was changed, and the version."""
    answer = pb.LookupResponse.FromString(raw.call("Lookup", lookup({"feature": "t", "ids": int64(row)})))
    number, _ = np.frombuffer(answer.features[0].values, np.float32)
    return int(number), answer.version


def brought_back(data: Path, text: str = CONFIG) -> tuple[int, int]:
    """How often row 1 was changed, and the version, as a service would have them that is started on a directory."""
    (data / "collection.toml").write_text(text)
    folder = DataDir(data)
    try:
        started = start(load_config(data / "collection.toml"), folder)
    finally:
        folder.release()
    assert started.log
    started.log.close()
    found = Session(started.replica.engine).lookup([FeatureBatch.of("t", [1])])
    return int(found.vectors[0][0, 0]), started.replica.version


@dataclass(frozen=True, kw_only=True)
class Crashed:
    """A directory that a killed service has left: snapshots of versions 3 and 6, and the log up to version 9."""

    path: Path

    @property
    def wal(self) -> Path:
        (found,) = (self.path / "log").glob("*7.sqlite-wal")
        return found

    def snapshot(self, version: int) -> Path:
        return self.path / "snapshots" / f"{version:012d}"


@pytest.fixture(scope="module")
def left_behind(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("crashed")
    service = Service(CONFIG, data).wait()
    with Raw(service.target) as raw:
        for sequence in range(1, 10):
            assert push(raw, sequence).version == sequence
            if sequence in (3, 6):
                raw.call("Snapshot", pb.SnapshotRequest())
    service.stop(signal.SIGKILL)
    return data


@pytest.fixture
def crashed(left_behind: Path, tmp_path: Path) -> Crashed:
    shutil.copytree(left_behind, tmp_path / "data")
    return Crashed(path=tmp_path / "data")


def spoil(path: Path, at: int, count: int = 8) -> None:
    data = bytearray(path.read_bytes())
    data[at : at + count] = bytes(byte ^ 0xFF for byte in data[at : at + count])
    path.write_bytes(data)


@contextlib.contextmanager
def full_disk(service: Service) -> Iterator[None]:
    """No file of the process may grow."""
    unlimited = resource.RLIM_INFINITY
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (0, unlimited))
    yield
    resource.prlimit(service.process.pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))


def test_on_a_full_disk_updates_are_refused_lookups_go_on_and_all_is_well_once_there_is_room(tmp_path: Path) -> None:
    service = Service(CONFIG, tmp_path).wait()
    with Raw(service.target) as raw:
        for sequence in (1, 2, 3):
            push(raw, sequence)
        with full_disk(service):
            for row, sequence in ((1, 4), (2, 1), (2, 1)):
                with pytest.raises(grpc.RpcError) as refused:
                    push(raw, sequence, row=row)
                assert refused.value.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNAVAILABLE)
                assert "updates are refused until it can; lookups go on" in refused.value.details()
                assert applied(raw) == (3, 3)
            with pytest.raises(grpc.RpcError, match="a snapshot can't be written") as refused:
                raw.call("Snapshot", pb.SnapshotRequest())
            assert refused.value.code() is grpc.StatusCode.ABORTED
        assert push(raw, 4) == pb.UpdateResponse(version=4)
        assert pb.SnapshotResponse.FromString(raw.call("Snapshot", pb.SnapshotRequest())).version == 4
        push(raw, 5)
    service.stop(signal.SIGKILL)
    with Service(CONFIG, tmp_path) as again, Raw(again.target) as raw:
        assert (applied(raw, 1), applied(raw, 2)) == ((5, 5), (0, 5)), "what was refused isn't there"
        assert push(raw, 5) == pb.UpdateResponse(version=5, duplicate=True)
        assert push(raw, 1, row=2) == pb.UpdateResponse(version=6), (
            "neither what was refused nor the repeat took a number"
        )


@pytest.mark.parametrize(
    ("cut", "garbage", "least"), [(0, b"", 9), (0, b"garbage" * 999, 9), (10, b"", 8), (2_000, b"\xff" * 5_000, 8)]
)
def test_an_end_of_the_log_that_is_torn_costs_no_more_than_what_is_torn(
    crashed: Crashed, cut: int, garbage: bytes, least: int
) -> None:
    data = crashed.wal.read_bytes()
    crashed.wal.write_bytes(data[: len(data) - cut] + garbage)
    count, version = brought_back(crashed.path)
    assert count == version == least
    with Service(CONFIG, crashed.path) as service, Raw(service.target) as raw:
        assert push(raw, 9) == pb.UpdateResponse(version=9, duplicate=least == 9)
        assert applied(raw)[0] == 9


def test_a_log_that_is_damaged_before_its_end_is_refused_and_can_be_moved_away(crashed: Crashed) -> None:
    spoil(crashed.wal, crashed.wal.stat().st_size - 2 * (4096 + 24) - 100)
    service = Service(CONFIG, crashed.path)
    assert service.ended() == 2
    assert f"embershard: {crashed.wal.with_name(crashed.wal.name.removesuffix('-wal'))}: " in service.output
    assert "acknowledged batches can't be read; restore it from a copy, or move" in service.output
    assert "away to serve version 6 without what came later" in service.output
    (crashed.path / "log").rename(crashed.path / "away")
    with Service(CONFIG, crashed.path) as again, Raw(again.target) as raw:
        assert applied(raw) == (6, 6)
        assert push(raw, 7).version == 7


def test_a_damaged_page_of_the_log_is_refused(crashed: Crashed) -> None:
    assert len(list(read(crashed.path / "log", 6))) == 3, "which also moves all of it out of the file beside"
    path = segments(crashed.path / "log")[-1]
    spoil(path, path.read_bytes().index(b"of row 1"))
    with pytest.raises(LogError, match=rf"{path}: the update of version \d is damaged: its checksum is wrong; restore"):
        brought_back(crashed.path)


def test_without_the_newest_snapshot_the_log_brings_back_the_same(crashed: Crashed) -> None:
    (rows,) = crashed.snapshot(6).glob("shard-*.safetensors")
    spoil(rows, rows.stat().st_size - 8)
    with pytest.raises(SnapshotError, match=r"damaged.*move the folder away to start from the snapshot before it"):
        brought_back(crashed.path)
    shutil.move(crashed.snapshot(6), crashed.path.parent)
    assert brought_back(crashed.path) == (9, 9)


def test_without_any_snapshot_a_log_that_was_trimmed_is_refused(crashed: Crashed) -> None:
    shutil.rmtree(crashed.path / "snapshots")
    with pytest.raises(LogError, match="the updates of versions 1 to 3 are missing: the log goes on with 000000000004"):
        brought_back(crashed.path)


def test_a_missing_file_of_the_log_is_refused_if_it_is_needed(crashed: Crashed) -> None:
    segments(crashed.path / "log")[0].unlink()
    assert brought_back(crashed.path) == (9, 9)
    shutil.rmtree(crashed.snapshot(6))
    with pytest.raises(LogError, match="the updates of versions 4 to 6 are missing"):
        brought_back(crashed.path)


def test_a_crash_while_a_file_of_the_log_is_begun_leaves_one_with_nothing_in_it(crashed: Crashed) -> None:
    (crashed.path / "log" / "000000000010.sqlite").touch()
    assert brought_back(crashed.path) == (9, 9)
    empty = crashed.path.parent / "new"
    (empty / "log").mkdir(parents=True)
    (empty / "log" / "000000000001.sqlite").touch()
    assert brought_back(empty) == (0, 0)


def test_other_settings_after_a_crash_are_refused_with_the_difference(crashed: Crashed) -> None:
    changed = Service(CONFIG.replace("learning_rate = 1.0", "learning_rate = 0.5"), crashed.path)
    assert changed.ended() == 2
    assert "updates that were acknowledged under other settings" in changed.output
    assert "optimizer.learning_rate: 0.5 here, 1.0 there" in changed.output
    assert "start once with the old configuration and stop it, which writes a snapshot" in changed.output
    assert brought_back(crashed.path) == (9, 9)


def test_a_table_that_is_made_larger_after_a_crash_grows_once_the_log_is_applied(crashed: Crashed) -> None:
    larger = CONFIG.replace("rows = 6", "rows = 8")
    assert brought_back(crashed.path, larger) == (9, 10)
    assert brought_back(crashed.path, larger) == (9, 10), "the growth is in the log"
    assert brought_back(crashed.path) == (9, 10), "and a smaller number is ignored"


def test_a_service_that_never_wrote_a_snapshot_comes_back_from_its_log_alone(tmp_path: Path) -> None:
    service = Service(CONFIG, tmp_path).wait()
    with Raw(service.target) as raw:
        push(raw, 1)
        push(raw, 2)
    service.stop(signal.SIGKILL)
    assert not list((tmp_path / "snapshots").iterdir())
    assert brought_back(tmp_path) == brought_back(tmp_path) == (2, 2)


@pytest.mark.parametrize(("mode", "survives"), [("os", 5), ("none", 3)])
def test_what_survives_depends_on_the_mode_and_numbers_go_on_from_there(
    tmp_path: Path, mode: str, survives: int
) -> None:
    config = CONFIG.replace('"fsync"', f'"{mode}"')
    service = Service(config, tmp_path).wait()
    with Raw(service.target) as raw:
        for sequence in range(1, 6):
            push(raw, sequence)
            if sequence == 3:
                raw.call("Snapshot", pb.SnapshotRequest())
    service.stop(signal.SIGKILL)
    assert (tmp_path / "log").exists() == (mode == "os")
    with Service(config, tmp_path) as again, Raw(again.target) as raw:
        assert applied(raw) == (survives, survives)
        assert push(raw, survives + 1) == pb.UpdateResponse(version=survives + 1)
        assert push(raw, survives) == pb.UpdateResponse(version=survives, duplicate=True)


def until_refused(raw: Raw) -> None:
    """Looks rows up for as long as they are answered."""
    with contextlib.suppress(grpc.RpcError):
        while True:
            applied(raw)


def test_a_rank_that_is_killed_costs_no_update_and_repeats_none_on_whichever_rank(tmp_path: Path) -> None:
    with Service(CONFIG, tmp_path, ranks=2, launcher=["--max-restarts=1"]) as service:
        with Raw(service.addresses[0]) as raw, Raw(service.addresses[1]) as other:
            assert push(raw, 1).version == 1
            assert push(other, 2).version == 2
            assert push(raw, 2) == pb.UpdateResponse(version=2, duplicate=True)
            victim = next(pid for pid in service.rank_pids() if psutil.Process(pid).environ()["RANK"] == "1")
            os.kill(victim, signal.SIGKILL)
            until_refused(raw)
        service.wait(lives=2)
        with Raw(service.addresses[0]) as raw, Raw(service.addresses[1]) as other:
            push(other, 3)
            assert push(raw, 3).duplicate
            assert push(raw, 2) == pb.UpdateResponse(version=2, duplicate=True)
            assert [applied(one)[0] for one in (raw, other)] == [3, 3]


def test_what_was_acknowledged_comes_back_whatever_may_be_asked_from_now_on(tmp_path: Path) -> None:
    with Service(CONFIG, tmp_path) as service, Raw(service.target) as raw:
        many = update({"feature": "t", "ids": int64(1, 2, 3)}, gradients=float32(*[-1] * 6))
        raw.call("Update", many)
        service.stop(signal.SIGKILL)
    assert brought_back(tmp_path, CONFIG.replace("[limits]", "[limits]\nids_per_request = 2")) == (1, 1)
