"""Work beside the tick gives way, rests, and frees what is large."""

from __future__ import annotations

import os
import sys
import threading
import weakref
from types import SimpleNamespace

import pytest

from embershard.engine import beside as module
from embershard.engine.beside import LONGEST_S, NICE, NICEST, REST, Rest, beside, freed, let_go, without_frames


@pytest.mark.skipif(sys.platform != "linux", reason="threads have no niceness of their own")
def test_what_is_done_beside_gives_way_and_nothing_else_does() -> None:
    before, told, done = os.getpriority(os.PRIO_PROCESS, 0), [], threading.Event()

    def work() -> None:
        told.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id()))
        done.set()

    beside("test", work)
    assert done.wait(30)
    assert told == [min(before + NICE, NICEST)]
    assert os.getpriority(os.PRIO_PROCESS, threading.get_native_id()) == before


def test_who_works_rests_for_as_long_as_that_took_several_times_and_not_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    waits: list[float] = []
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(module, "time", SimpleNamespace(thread_time=lambda: clock.now))
    rest = Rest(SimpleNamespace(wait=waits.append))  # type: ignore[arg-type]
    done = []
    for item in rest.between([0.001, 0.002, 10.0]):
        clock.now += item
        done.append(item)
    assert done == [0.001, 0.002, 10.0]
    assert waits == pytest.approx([0.001 * REST, 0.002 * REST, LONGEST_S])


def test_who_is_to_hurry_does_not_rest(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "REST", 1e9)
    monkeypatch.setattr(module, "LONGEST_S", 1e9)
    hurry, rested = threading.Event(), threading.Event()
    rest = Rest(hurry)

    def work() -> None:
        for _ in rest.between(range(3)):
            sum(range(1_000_000))
        rested.set()

    hurry.set()
    beside("test", work)
    assert rested.wait(30)


class Large:
    """Stands for a table."""


def test_what_is_let_go_is_freed_by_another_thread() -> None:
    by: list[str] = []
    holder = [Large()]
    weakref.finalize(holder[0], lambda: by.append(threading.current_thread().name))
    let_go(holder)
    freed()
    assert by == ["freeing"]


def test_an_error_without_frames_keeps_nothing_alive() -> None:
    def fail(holder: list[Large]) -> None:
        table = holder.pop()
        weakref.finalize(table, lambda: by.append("freed"))
        try:
            raise ValueError("inner")
        except ValueError as error:
            raise RuntimeError("outer") from error

    by: list[str] = []
    kept: BaseException | None = None
    try:
        fail([Large()])
    except RuntimeError as error:
        kept = without_frames(error)
    assert by == ["freed"]
    assert str(kept) == "outer"
    assert str(kept.__cause__) == "inner"
