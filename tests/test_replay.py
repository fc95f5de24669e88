"""The update log is read as it was written, and whatever is wrong with it is found."""

from __future__ import annotations

import contextlib
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.logs import config, killed, opened, records, spoil, written
from support.raw import float32, int64, update
from support.subject import Subject

from embershard.config import Config, parse_config
from embershard.engine.clients import Clients
from embershard.engine.entries import entry_of, update_entry
from embershard.engine.local import LocalEngine
from embershard.engine.pipeline import Record
from embershard.engine.replica import Replica
from embershard.engine.world import SoloWorld
from embershard.errors import LogError
from embershard.store import snapshot
from embershard.store.log import UpdateLog, segments
from embershard.store.replay import layout_of_log, read, replay
from embershard.store.wal import lost_commits


def read_or_refused(folder: Path) -> list[Record] | None:
    try:
        return list(read(folder, 0))
    except LogError:
        return None


@given(cut=st.integers(1, 30_000), garbage=st.binary(max_size=5_000))
@settings(max_examples=40, deadline=None)
def test_an_end_that_a_crash_has_torn_costs_at_most_the_batches_in_it(
    tmp_path_factory: pytest.TempPathFactory, cut: int, garbage: bytes
) -> None:
    folder = tmp_path_factory.mktemp("log") / "log"
    expected = killed(folder, 2, 3, 1)
    (wal,) = folder.glob("*-wal")
    data = wal.read_bytes()
    wal.write_bytes(data[: max(len(data) - cut, 0)] + garbage)
    found = read_or_refused(folder)
    assert found is not None
    assert found == expected[: len(found)]
    if cut < 2_000:
        assert len(found) >= 5, "only the last batch is torn"


@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_one_wrong_bit_in_what_a_crash_has_left_is_found_or_costs_the_last_batch_alone(
    tmp_path_factory: pytest.TempPathFactory, at: float, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("log") / "log"
    expected = killed(folder, 2, 3, 1)
    (wal,) = folder.glob("*-wal")
    spoil(wal, int(at * wal.stat().st_size), 1 << bit)
    assert read_or_refused(folder) in (None, expected[:5], expected)


@pytest.mark.parametrize("at", [*range(0, 32, 4), *range(32, 56, 4)], ids=str)
def test_a_wrong_header_or_frame_is_no_end_of_the_log(tmp_path: Path, at: int) -> None:
    expected = killed(tmp_path / "log", 2, 3, 1)
    (wal,) = (tmp_path / "log").glob("*-wal")
    spoil(wal, at, 8)
    assert read_or_refused(tmp_path / "log") in (None, expected)


@given(at=st.floats(0, 1, exclude_max=True), bit=st.integers(0, 7))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_one_wrong_bit_in_a_whole_file_is_found_or_does_not_matter(
    tmp_path_factory: pytest.TempPathFactory, at: float, bit: int
) -> None:
    folder = tmp_path_factory.mktemp("log") / "log"
    expected = written(folder, 2, 3, 1, size=400)
    (path,) = segments(folder)
    spoil(path, int(at * path.stat().st_size), 1 << bit)
    assert read_or_refused(folder) in (None, expected)


def test_commits_that_are_lost_are_counted_and_the_last_may_be_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    killed(tmp_path / "log", 2, 3, 1)
    (path,) = segments(tmp_path / "log")
    wal = path.with_name(path.name + "-wal")
    assert lost_commits(path) == 0
    size = 24 + 4096
    frames = (wal.stat().st_size - 32) // size
    spoil(wal, 32 + (frames - 1) * size + 100, 1)
    assert lost_commits(path) == 1
    shutil.copytree(tmp_path / "log", tmp_path / "copy")  # what is read is mended
    list(read(tmp_path / "copy", 0))
    assert "the last batch isn't whole, and is left out" in caplog.text
    spoil(wal, 32 + (frames - 3) * size + 100, 1)
    assert lost_commits(path) > 1
    with pytest.raises(LogError, match=rf"{wal.name} is damaged: \d acknowledged batches can't be read; restore it"):
        list(read(tmp_path / "log", 0))
    wal.unlink()
    assert lost_commits(path) == 0


def test_a_file_that_is_missing_is_told_with_its_versions(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for first in (1, 4, 7):
        log.rotate()
        log.append(records(first, 3)).result(30)
    log.close()
    segments(tmp_path)[1].unlink()
    assert list(read(tmp_path, 6)) == records(7, 3), "what is after it needs it not"
    with pytest.raises(LogError, match="the updates of versions 4 to 6 are missing: the log goes on with 000000000007"):
        list(read(tmp_path, 0))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("DELETE FROM entries WHERE version = 3", "version 3 is missing, 4 follows"),
        ("UPDATE entries SET now_s = now_s + 1 WHERE version = 3", "the update of version 3 is damaged: its checksum"),
        ("UPDATE entries SET request = 'text' WHERE version = 3", "version 3 is damaged"),
        ("UPDATE entries SET kind = 99 WHERE version = 3", "kind 99, which this release doesn't know"),
        ("UPDATE about SET value = '{'", "is damaged"),
        ("UPDATE about SET value = '[]'", "is damaged"),
        ("""UPDATE about SET value = '{"format": 2}'""", "has format 2, and this release reads 1"),
        ("DROP TABLE entries", "is damaged: no such table"),
    ],
)
def test_what_no_process_has_written_is_refused(tmp_path: Path, change: str, message: str) -> None:
    written(tmp_path, 5)
    (path,) = segments(tmp_path)
    with contextlib.closing(sqlite3.connect(path)) as database, database:
        database.execute(change)
    with pytest.raises(LogError, match=message):
        list(read(tmp_path, 0))


def test_updates_that_were_acknowledged_under_other_settings_are_refused_with_the_difference(tmp_path: Path) -> None:
    written(tmp_path, 2)
    with pytest.raises(LogError, match=r"other settings: .*learning_rate.*0\.1.*start once with the old configuration"):
        list(read(tmp_path, 0, config(learning_rate=0.2)))
    assert list(read(tmp_path, 2, config(learning_rate=0.2))) == [], "what a snapshot has needs no log"


def test_whoever_opens_a_damaged_log_for_anything_leaves_the_damage_to_be_found(tmp_path: Path) -> None:
    killed(tmp_path / "log", 2, 3, 1)
    (wal,) = (tmp_path / "log").glob("*-wal")
    spoil(wal, 32 + 2 * (24 + 4096) + 100, 1)
    for _ in range(2):
        with pytest.raises(LogError, match="acknowledged batches can't be read"):
            layout_of_log(tmp_path / "log")
        with pytest.raises(LogError, match="acknowledged batches can't be read"):
            replay(timed_replica(config()), tmp_path / "log", config())


TIMED = {"kind": "vocabulary", "fallback_rows": 2, "evict": "ttl", "ttl_s": 10}
TIMES_S = [1_000, 1_001, 5_000, 900, 905, 2_000, 2_500, 100, 111, 10**9, 10**9 + 1, 5]
"""The clock of a host that is set, and set back."""


def timed_replica(config: Config) -> Replica:
    return Replica(
        LocalEngine(config, SoloWorld()),
        version=0,
        clients=Clients(9),
        load=lambda _: pytest.fail("loads"),
        fetch=lambda *_: pytest.fail("fetches"),
    )


def test_a_clock_that_jumps_is_replayed_as_it_was(tmp_path: Path) -> None:
    config = parse_config(
        {"collection": {"name": "timed"}, "tables": [{"name": "t", "rows": 5, "dim": 2, "ids": TIMED}]}
    )
    replica = timed_replica(config)
    log = UpdateLog(tmp_path / "log", mode="fsync", about=lambda: {"settings": config.settings()}, last=0)
    for number, now_s in enumerate(TIMES_S):
        request = update({"feature": "t", "ids": int64(number % 4, 100 + number)}, gradients=float32(1, 2, 3, 4))
        entry = update_entry(replica.collection, request)
        record = Record(version=number + 1, kind=entry.kind, now_s=now_s, request=entry.request)
        log.append([record]).result(30)
        replica.apply(entry_of(record.kind, record.request, replica.collection), now_s, mine=True)
        if number == 5:
            snapshot.save(
                replica.engine,
                replica.clients,
                replica.version,
                tmp_path / "snapshots",
                keeping=snapshot.Keeping(kept=1),
            )
    log.close()
    assert replica.engine.vocabularies["t"].counts.expired > 0
    again, later = timed_replica(config), timed_replica(config)
    later.version = Subject(later.engine).load(str(tmp_path / "snapshots" / f"{6:012d}"))
    for one in (again, later):
        replay(one, tmp_path / "log", config)
        assert one.version == len(TIMES_S)
        for name, view in replica.engine.tensors().items():
            np.testing.assert_array_equal(one.engine.tensors()[name].numpy(), view.numpy(), strict=True)
        mine, theirs = (engine.vocabularies["t"].state() for engine in (one.engine, replica.engine))
        for name in ("slots", "keys", "counts", "seen_s", "totals"):
            np.testing.assert_array_equal(mine[name], theirs[name])
