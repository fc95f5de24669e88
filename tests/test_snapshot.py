"""Snapshots: bit-exact at any world size, and refused, never half believed, when anything about them is wrong."""

from __future__ import annotations

import json
import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.implementation import Implementation
from support.ranks import Ranks
from support.scenario import collection, everything, random_updates
from support.service import Service
from support.subject import local

from embershard import Client, FingerprintMismatch, SnapshotError
from embershard.config import Config
from embershard.store import snapshot
from embershard.store.manifest import list_snapshots, open_snapshot

WORLDS = [0, 1, 2, 3]
"""World sizes; 0 is the local engine."""


def implementation_of(world: Callable[[int], Ranks], size: int) -> Implementation:
    return Implementation(world(size) if size else None)


def trained(implementation: Implementation, config: Config) -> None:
    random = np.random.default_rng(5)
    implementation.build(config)
    for _ in range(3):
        implementation.update([random_updates(random, config) for _ in range(implementation.size)])


def as_sets(vocabulary: dict[str, Any]) -> tuple[set[Any], set[Any], list[int]]:
    """Owners with their slots, candidates (whose places mean nothing), and what was counted."""
    owners = ("slots", "keys", "names", "counts", "steps", "seen_s", "pinned")
    candidates = ("candidate_keys", "candidate_counts", "candidate_steps")
    return (
        set(zip(*(list(vocabulary[key]) for key in owners), strict=True)),
        set(zip(*(list(vocabulary[key]) for key in candidates), strict=True)),
        vocabulary["totals"].tolist(),
    )


@pytest.mark.parametrize("target", WORLDS)
@pytest.mark.parametrize("source", WORLDS)
def test_a_snapshot_of_any_world_loads_into_any_other_bit_for_bit(
    world: Callable[[int], Ranks], tmp_path: Path, source: int, target: int
) -> None:
    config = everything("adagrad", "sum", "vocabulary")
    saving, loading = implementation_of(world, source), implementation_of(world, target)
    trained(saving, config)
    expected = saving.state()
    path = saving.save(tmp_path, 42)
    loading.build(config)
    assert loading.load(path) == 42
    found = loading.state()
    assert found.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(found[name], expected[name], strict=True)
    kept = {name: as_sets(vocabulary) for name, vocabulary in saving.vocabularies()[0].items()}
    for of_rank in loading.vocabularies():
        assert {name: as_sets(vocabulary) for name, vocabulary in of_rank.items()} == kept
    assert expected["wide.updates"].any()
    assert not expected["wide.updates"].all()


def test_half_precision_rows_and_row_wise_state_come_back(tmp_path: Path) -> None:
    config = collection([{"name": "t", "rows": 20, "dim": 3, "dtype": "float16"}])
    implementation = Implementation(None)
    trained(implementation, config)
    expected = implementation.state()
    path = implementation.save(tmp_path, 1)
    implementation.build(config)
    implementation.load(path)
    for name, array in implementation.state().items():
        np.testing.assert_array_equal(array, expected[name], strict=True)


CONFIG = collection([{"name": "t", "rows": 200, "dim": 4}, {"name": "u", "rows": 3, "dim": 4}])


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return Path(local(CONFIG).save(str(tmp_path), 7))


def load(path: Path, config: Config = CONFIG) -> None:
    snapshot.load(local(config).engine, open_snapshot(path))


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_a_flipped_bit_anywhere_is_found(saved: Path, share: float) -> None:
    (rows,) = saved.glob("*.safetensors")
    flip(rows, int(share * rows.stat().st_size))
    with pytest.raises(SnapshotError, match=f"{saved.name}: the checksum of {rows.name} is wrong.*restore it"):
        load(saved)


def test_every_flipped_bit_of_the_manifest_is_found(saved: Path) -> None:
    manifest = saved / "manifest.json"
    whole = manifest.read_bytes()
    meaning = json.loads(whole)
    for at in range(0, len(whole), 7):
        flip(manifest, at)
        with pytest.raises(SnapshotError, match=r"damaged|format|can't read"):
            load(saved)
        manifest.write_bytes(whole)
    assert open_snapshot(saved).version == meaning["version"] == 7


def test_a_truncated_file_is_found(saved: Path) -> None:
    (rows,) = saved.glob("*.safetensors")
    with rows.open("r+b") as file:
        file.truncate(rows.stat().st_size - 1)
    with pytest.raises(SnapshotError, match="truncated or changed"):
        load(saved)


def test_a_missing_and_a_strange_file_are_found(saved: Path) -> None:
    (rows,) = saved.glob("*.safetensors")
    rows.rename(saved / "other.safetensors")
    with pytest.raises(SnapshotError, match=r"other\.safetensors is not of this snapshot"):
        load(saved)
    (saved / "other.safetensors").unlink()
    with pytest.raises(SnapshotError, match="is missing"):
        load(saved)


def test_a_renamed_snapshot_is_refused_as_its_number_would_stand_for_another_version(saved: Path) -> None:
    with pytest.raises(SnapshotError, match="holds version 7; rename the folder back"):
        load(saved.rename(saved.with_name("000000000008")))


def test_a_missing_manifest_is_found(saved: Path) -> None:
    (saved / "manifest.json").unlink()
    with pytest.raises(SnapshotError, match="can't read manifest"):
        load(saved)


def test_another_collection_is_refused_with_the_difference_spelled_out(saved: Path) -> None:
    other = collection([{"name": "t", "rows": 200, "dim": 5}, {"name": "v", "rows": 3, "dim": 4}], seed=8)
    with pytest.raises(FingerprintMismatch) as caught:
        load(saved, other)
    for difference in ("seed: 8 here, 7 there", "tables.t.dim: 5 here, 4 there", "tables.u: absent here"):
        assert difference in str(caught.value)


def test_the_state_of_another_optimizer_is_refused(saved: Path) -> None:
    other = collection([{"name": "t", "rows": 200, "dim": 4}, {"name": "u", "rows": 3, "dim": 4}], kind="sgd")
    with pytest.raises(
        SnapshotError, match="has the optimizer state of rowwise_adagrad, and the configuration says sgd"
    ):
        load(saved, other)


def test_a_snapshot_is_data_and_holds_no_pickle(saved: Path) -> None:
    assert sorted(path.suffix for path in saved.iterdir()) == [".json", ".safetensors"]


def test_a_version_is_written_once_and_old_ones_are_deleted(tmp_path: Path) -> None:
    subject = local(CONFIG)
    for version in (1, 2, 2, 10, 3):
        subject.save(str(tmp_path), version, 2)
    assert [path.name for path in list_snapshots(tmp_path)] == ["000000000003", "000000000010"]


def test_a_failed_snapshot_leaves_nothing_behind(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(SnapshotError, match="can't be written"):
        local(CONFIG).save(str(tmp_path / "file"), 1)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


SERVED = """
[collection]
name = "served"
[[tables]]
name = "t"
rows = 50
dim = 3
"""


@pytest.mark.parametrize(("first", "second"), [(0, 2), (2, 0)])
def test_a_restarted_service_goes_on_where_it_left_at_another_world_size(
    tmp_path: Path, first: int, second: int
) -> None:
    with Service(SERVED, tmp_path, ranks=first) as service, Client(service.target) as client:
        version = client.update({"t": [49]}, gradients={"t": np.ones((1, 3))})
        before = client.lookup({"t": range(50)}, min_version=version)
        assert client.snapshot().version == version
    with Service(SERVED, tmp_path, ranks=second) as service, Client(service.target) as client:
        after = client.lookup({"t": range(50)}, with_provenance=True)
        assert after.version == version
        assert np.flatnonzero(after.provenance["t"] != 4).tolist() == [49]
        np.testing.assert_array_equal(after["t"], before["t"])


@pytest.mark.parametrize(
    ("ranks", "harm"),
    [
        (0, "truncated"),
        (0, "flipped"),
        (0, "other"),
        (2, "flipped"),
        pytest.param(2, "truncated", marks=pytest.mark.slow),
        pytest.param(2, "other", marks=pytest.mark.slow),
    ],
)
def test_a_service_refuses_to_start_from_a_bad_snapshot(tmp_path: Path, ranks: int, harm: str) -> None:
    subject = local(collection([{"name": "t", "rows": 50, "dim": 3}], seed=0))
    path = Path(subject.save(str(tmp_path / "snapshots"), 3))
    (rows,) = path.glob("*.safetensors")
    config = SERVED
    match harm:
        case "truncated":
            rows.write_bytes(rows.read_bytes()[:-10])
        case "flipped":
            flip(rows, 300)
        case "other":
            config = SERVED.replace("dim = 3", "dim = 4")
    service = Service(config, tmp_path, ranks=ranks)
    assert service.ended() != 0
    expected = {"truncated": "truncated or changed", "flipped": "checksum", "other": "tables.t.dim: 4 here, 3 there"}
    assert f"embershard: {path}: " in service.output
    assert expected[harm] in service.output
    assert "Traceback" not in service.output.partition("torch/distributed")[0]


@pytest.mark.parametrize("ranks", [0, 2], ids=["local", "torchrec-2"])
def test_a_full_disk_is_told_and_once_there_is_room_snapshots_are_written_again(tmp_path: Path, ranks: int) -> None:
    config = SERVED.replace("rows = 50", "rows = 5_000")
    with Service(config, tmp_path, ranks=ranks) as service, Client(service.target) as client:
        version = client.update({"t": [1]}, gradients={"t": np.ones((1, 3))})
        for pid in service.rank_pids():  # no file may grow beyond a few bytes: what a full disk says, too
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
        with pytest.raises(SnapshotError, match=r"a snapshot can't be written: .*File too large"):
            client.snapshot()
        assert list((tmp_path / "snapshots").iterdir()) == []
        assert client.lookup({"t": [1]}, min_version=version)["t"].shape == (1, 3)
        for pid in service.rank_pids():
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
        assert client.snapshot().version == version


def test_folders_that_are_no_snapshots_are_left_alone(tmp_path: Path) -> None:
    for name in ("5-before-migration", "notes", "00000000000x"):
        (tmp_path / name).mkdir()
    (tmp_path / ".partial-000000000001").mkdir()
    subject = local(CONFIG)
    subject.save(str(tmp_path), 4, 1)
    assert [path.name for path in list_snapshots(tmp_path)] == ["000000000004"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "000000000004",
        "00000000000x",
        "5-before-migration",
        "notes",
    ], "only what a killed save has left behind is removed"


@pytest.mark.parametrize("ranks", [0, 2], ids=["local", "torchrec-2"])
def test_a_snapshot_that_cannot_be_written_is_told_and_the_service_goes_on(tmp_path: Path, ranks: int) -> None:
    with Service(SERVED, tmp_path, ranks=ranks) as service, Client(service.target) as client:
        (tmp_path / "snapshots").rmdir()
        (tmp_path / "snapshots").write_text("in the way")
        with pytest.raises(SnapshotError, match=r"a snapshot can't be written: .*Not a directory"):
            client.snapshot()
        assert client.lookup({"t": [1]})["t"].shape == (1, 3)
        assert service.stop() != 0, "the last snapshot was lost, and the exit status says so"
        assert "the last snapshot failed" in service.output


@pytest.mark.parametrize(
    "ranks", [pytest.param(0, id="local"), pytest.param(2, id="torchrec-2", marks=pytest.mark.slow)]
)
def test_a_data_directory_is_held_by_one_server_and_tried_out_at_start(tmp_path: Path, ranks: int) -> None:
    with Service(SERVED, tmp_path / "one") as running:
        second = Service(SERVED, tmp_path / "one", ranks=ranks)
        assert second.ended() != 0
        assert f"is in use by process number {running.process.pid}" in second.output
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "snapshots").write_text("in the way")
    third = Service(SERVED, tmp_path / "two", ranks=ranks)
    assert third.ended() != 0
    assert f"--data-dir {tmp_path / 'two'}: can't be written: File exists; give another one" in third.output
