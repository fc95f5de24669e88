"""Snapshots that are written while rows change: what there was when they began, or nothing at all."""

from __future__ import annotations

import errno
import resource
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.implementation import Implementation
from support.ranks import Ranks
from support.scenario import collection, everything, random_updates
from support.subject import Subject, local

from embershard import SnapshotError
from embershard.config import Config
from embershard.engine.clients import Clients
from embershard.errors import Unavailable
from embershard.store import snapshot
from embershard.store.manifest import list_snapshots, open_snapshot
from embershard.store.row_files import RowFile
from embershard.types import FeatureBatch, FeatureUpdate

CONFIG = everything("adagrad", "none", "vocabulary")
PLAIN = collection([{"name": "t", "rows": 200, "dim": 4}, {"name": "u", "rows": 3, "dim": 4}])


@pytest.fixture(params=["local", "torchrec-2"])
def implementation(request: pytest.FixtureRequest, world: Callable[[int], Ranks]) -> Implementation:
    return Implementation(world(2) if request.param == "torchrec-2" else None)


def update(implementation: Implementation, config: Config, random: np.random.Generator) -> None:
    implementation.update([random_updates(random, config) for _ in range(implementation.size)])


def assign(implementation: Implementation, feature: str, dim: int, ids: list[int]) -> None:
    change = FeatureUpdate(batch=FeatureBatch.of(feature, ids), values=np.full((len(ids), dim), 7, np.float32))
    implementation.update(implementation.on_first([change]))


def assert_loads_as(implementation: Implementation, path: str, config: Config, expected: dict[str, Any]) -> None:
    implementation.build(config)
    implementation.load(path)
    found = implementation.state()
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, strict=True, err_msg=name)


def test_a_snapshot_holds_what_there_was_when_it_began(implementation: Implementation, tmp_path: Path) -> None:
    random = np.random.default_rng(3)
    implementation.build(CONFIG)
    update(implementation, CONFIG, random)
    expected, owners = implementation.state(), implementation.vocabularies()[0]["wide"]
    implementation.begin(tmp_path, 5)
    update(implementation, CONFIG, random)
    for number in range(12):
        implementation.step()
        update(implementation, CONFIG, random)
        assign(implementation, "single", 4, [0])
        implementation.freeze(FeatureBatch.of("single", [0]))
        implementation.freeze(FeatureBatch.of("single", [0]), frozen=False)
        if number == 6:
            implementation.grow("thin", 80)
    path = implementation.saved()
    assert_loads_as(implementation, path, CONFIG, expected)
    found = implementation.vocabularies()[0]["wide"]
    assert set(zip(found["slots"], found["keys"], strict=True)) == set(
        zip(owners["slots"], owners["keys"], strict=True)
    )
    assert (found["totals"] == owners["totals"]).all()


def test_a_snapshot_loads_beside_the_thread_that_ticks(implementation: Implementation, tmp_path: Path) -> None:
    implementation.build(CONFIG)
    update(implementation, CONFIG, np.random.default_rng(4))
    expected, path = implementation.state(), implementation.save(tmp_path, 2)
    batches = [[FeatureBatch.of("low_rank", [1, 2])]] * implementation.size
    vectors = implementation.lookup(batches)[0][0]
    implementation.build(CONFIG)
    assert implementation.load(path, beside="second") == 2
    np.testing.assert_array_equal(implementation.lookup(batches)[0][0], vectors)
    for name, array in implementation.state().items():
        np.testing.assert_array_equal(array, expected[name], strict=True)


def test_an_engine_that_is_to_be_filled_need_not_be_seeded(tmp_path: Path) -> None:
    subject = local(CONFIG)
    expected, path = subject.state(), subject.save(str(tmp_path), 1)
    bare = Subject(type(subject.engine)(CONFIG, subject.engine.world, seeded=False))
    assert not any(array.any() for array in bare.state().values())
    bare.load(path)
    for name, array in bare.state().items():
        np.testing.assert_array_equal(array, expected[name], strict=True)
    batches = [FeatureBatch.of("low_rank", [1, 2])]
    np.testing.assert_array_equal(bare.lookup(batches)[0], subject.lookup(batches)[0])


@contextmanager
def full_disk(implementation: Implementation, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of the last rank alone, if there are several."""
    if implementation.local:
        with monkeypatch.context() as patched:

            def refuse(*_: object) -> None:
                raise OSError(errno.ENOSPC, "No space left on device")

            patched.setattr(RowFile, "add", refuse)
            yield
    else:
        pid, unlimited = implementation.pids()[-1], resource.RLIM_INFINITY
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (3000, unlimited))
        yield
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (unlimited, unlimited))


def test_a_full_disk_ends_the_saving_alone_and_the_next_one_succeeds(
    implementation: Implementation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    random = np.random.default_rng(6)
    implementation.build(CONFIG)
    with full_disk(implementation, monkeypatch):
        implementation.begin(tmp_path, 1)
        implementation.step()
        with pytest.raises(SnapshotError, match=r"a snapshot can't be written: .*(No space left|File too large)"):
            implementation.saved()
        assert list(tmp_path.iterdir()) == []
    update(implementation, CONFIG, random)
    assert implementation.step() == [False] * implementation.size
    expected = implementation.state()
    implementation.begin(tmp_path, 1)
    assert_loads_as(implementation, implementation.saved(), CONFIG, expected)


def test_a_folder_that_cannot_be_made_is_told_on_every_rank(implementation: Implementation, tmp_path: Path) -> None:
    implementation.build(PLAIN)
    (tmp_path / "file").write_text("in the way")
    implementation.begin(tmp_path / "file", 1)
    with pytest.raises(SnapshotError, match=r"a snapshot can't be written: .*Not a directory"):
        implementation.saved()
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    with pytest.raises(SnapshotError, match="Not a directory"):
        implementation.save(tmp_path / "file", 1)
    assert not any(implementation.watched())


def test_whoever_copies_is_woken_whenever_the_queue_has_room_and_at_the_end(tmp_path: Path) -> None:
    woken, subject = threading.Event(), local(CONFIG)
    saving = snapshot.begin(subject.engine, None, 1, tmp_path, keeping=snapshot.Keeping(kept=1), wake=woken.set)
    steps = 0
    while not saving.done.done():
        if not saving.step():
            assert woken.wait(60)
            woken.clear()
        steps += 1
    assert saving.done.result().version == 1
    assert steps > len(subject.state()), "a slice a step"
    assert not saving.step()


@pytest.mark.parametrize("lacking", ["_Watched.rows", "_Watched._put_aside"])
def test_no_memory_for_a_copy_ends_the_saving_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    def refuse(*_: object) -> None:
        raise MemoryError

    subject = local(PLAIN)
    subject.begin(str(tmp_path), 1)
    with monkeypatch.context() as patched:
        patched.setattr(f"embershard.engine.capture.{lacking}", refuse)
        subject.update([FeatureUpdate(batch=FeatureBatch.of("t", [1]), values=np.ones((1, 4), np.float32))])
        assert subject.step()
        with pytest.raises(SnapshotError, match="can't be written: MemoryError"):
            subject.saved()
    assert list(tmp_path.iterdir()) == []
    assert (subject.lookup([FeatureBatch.of("t", [1])])[0] == 1).all()
    assert not subject.watched()
    subject.save(str(tmp_path), 1)


def test_a_version_that_is_there_is_done_at_once(implementation: Implementation, tmp_path: Path) -> None:
    implementation.build(PLAIN)
    path = implementation.save(tmp_path, 1)
    implementation.begin(tmp_path, 1)
    assert implementation.step() == [False] * implementation.size
    assert implementation.saved() == path
    assert [there.name for there in list_snapshots(tmp_path)] == ["000000000001"]


def test_what_clients_have_sent_comes_back(tmp_path: Path) -> None:
    engine, clients = local(PLAIN).engine, Clients(10)
    for client, sequence, version in (("ü", 1, 4), ("trainer", 1, 5), ("ü", 2, 6)):
        clients.note(client, sequence, version)
    saved = snapshot.save(engine, clients, 6, tmp_path, keeping=snapshot.Keeping(kept=1))
    restored = Clients(10)
    assert snapshot.load(engine, saved, restored) == 6
    assert restored.version_of("ü", 1) == 4
    assert restored.version_of("trainer", 2) is None
    unknown = snapshot.save(engine, None, 7, tmp_path, keeping=snapshot.Keeping(kept=2))
    snapshot.load(engine, unknown, restored)
    assert len(restored) == 0


def test_ranks_meet_beside_the_tick_and_miss_those_who_do_not_come(world: Callable[[int], Ranks]) -> None:
    ranks = world(2)
    ranks.build(PLAIN)
    for item in ("first", "second"):
        assert (
            ranks.each("meet", [["key", f"{item} {rank}", 60] for rank in (0, 1)]) == [[f"{item} 0", f"{item} 1"]] * 2
        )
    with pytest.raises(Unavailable, match="rank 1 hasn't come to meet for left"):
        ranks.each("meet", [["left", 0, 0.1], ["right", 1, 0.1]])
    assert ranks.each("meet", [["key", rank, 60] for rank in (0, 1)]) == [[0, 1]] * 2


def test_a_snapshot_tells_who_wrote_it_and_what_its_rows_add_up_to(
    implementation: Implementation, tmp_path: Path
) -> None:
    implementation.build(PLAIN)
    found = open_snapshot(Path(implementation.save(tmp_path, 1)))
    assert found.world_size == implementation.size
    assert found.tensors["t.weight"]["shape"] == [200, 4]
    assert found.tensors["t.weight"]["dtype"] == "float32"
    assert len(list(found.path.glob("*.safetensors"))) == implementation.size
