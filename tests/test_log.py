"""The update log: what was appended is there, in files that go once nobody needs them; or it is refused as a whole."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.logs import config, opened, records

from embershard.errors import Overloaded, Unavailable
from embershard.store import log as log_module
from embershard.store.log import checksum, segments
from embershard.store.replay import read


@given(
    steps=st.lists(st.one_of(st.integers(1, 5), st.sampled_from(["rotate", "reopen"])), max_size=12),
    after=st.integers(0, 30),
)
@settings(max_examples=25, deadline=None)
def test_what_was_appended_is_read_in_its_order(
    tmp_path_factory: pytest.TempPathFactory, steps: Sequence[int | str], after: int
) -> None:
    folder, last = tmp_path_factory.mktemp("log") / "log", 0
    log = opened(folder)
    for step in steps:
        if step == "rotate":
            log.rotate()
        elif step == "reopen":
            log.close()
            log = opened(folder, last=last)
        else:
            log.append(records(last + 1, int(step))).result(30)
            last += int(step)
    log.close()
    assert list(read(folder, min(after, last), config())) == records(1, last)[after:]


def test_a_snapshot_begins_a_file_and_old_files_go_once_no_snapshot_needs_them(tmp_path: Path) -> None:
    log = opened(tmp_path)
    for first, count in ((1, 3), (4, 2), (6, 4)):
        log.rotate()
        log.append(records(first, count)).result(30)
        log.rotate()
        log.rotate()  # with nothing between, it is the same file
    assert [path.name for path in segments(tmp_path)] == [f"{first:012d}.sqlite" for first in (1, 4, 6)]
    log.trim(2)
    log.append(records(10, 1)).result(30)
    assert [int(path.stem) for path in segments(tmp_path)] == [1, 4, 6, 10]
    log.trim(5)
    log.close()
    assert [int(path.stem) for path in segments(tmp_path)] == [6, 10]
    assert list(read(tmp_path, 5)) == records(6, 5)
    assert {path.suffix for path in tmp_path.iterdir()} == {".sqlite"}


def test_the_file_that_is_written_is_never_trimmed(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(records(1, 3)).result(30)
    log.trim(100)
    log.append(records(4, 1)).result(30)
    log.close()
    assert list(read(tmp_path, 0)) == records(1, 4)


def test_without_a_log_nothing_is_written_and_all_is_done_at_once(tmp_path: Path) -> None:
    log = opened(tmp_path / "log", mode="none")
    assert log.append(records(1, 3)).done()
    log.rotate()
    log.close()
    assert not (tmp_path / "log").exists()


def test_of_a_batch_that_does_not_fit_on_the_disk_nothing_is_kept_and_the_next_one_is_tried_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = opened(tmp_path)
    log.append(records(1, 2)).result(30)
    log.rotate()

    def small(path: Path, mode: str = "fsync") -> sqlite3.Connection:
        database = connect(path, mode)
        database.execute("PRAGMA max_page_count = 6")
        return database

    connect = log_module.connect
    with monkeypatch.context() as patched:
        patched.setattr(log_module, "connect", small)
        with pytest.raises(Overloaded, match=r"the disk is full: the update log can't be written.*lookups go on"):
            log.append(records(3, 50, size=4_000)).result(30)
    log.append(records(3, 1)).result(30)
    log.append(records(4, 50, size=4_000)).result(30)
    log.close()
    assert list(read(tmp_path, 0)) == records(1, 3) + records(4, 50, size=4_000)


def test_a_log_that_cannot_be_opened_refuses_until_it_can(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("in the way")
    log = opened(tmp_path / "log")
    with pytest.raises(Unavailable, match="updates are refused until it can; lookups go on; this update may be there"):
        log.append(records(1, 1)).result(30)
    (tmp_path / "log").unlink()
    log.append(records(1, 1)).result(30)
    log.close()
    assert list(read(tmp_path / "log", 0)) == records(1, 1)


def test_what_can_not_be_deleted_does_not_end_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = opened(tmp_path)
    log.append(records(1, 2)).result(30)

    def fail(_: Path) -> list[Path]:
        raise OSError("too many open files")

    with monkeypatch.context() as patched:
        patched.setattr("embershard.store.log.segments", fail)
        log.trim(2)
        log.append(records(3, 1)).result(30)
    log.close()
    assert [record.version for record in read(tmp_path, 0)] == [1, 2, 3]


def test_what_was_refused_and_yet_is_there_gives_way_to_what_was_acknowledged(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append(records(1, 3)).result(30)
    log.rotate()
    log.append(records(4, 2, size=70)).result(30)
    log.close()
    (stale,) = records(4, 1, size=10)
    with contextlib.closing(sqlite3.connect(segments(tmp_path)[0])) as database, database:
        row = (stale.version, stale.kind, stale.now_s, stale.request, checksum(stale))
        database.execute("INSERT INTO entries VALUES (?, ?, ?, ?, ?)", row)
    assert [len(record.request) for record in read(tmp_path, 0)] == [40, 40, 40, 70, 70]
