"""`embershard loadtest` refuses what can't be before it begins, and shows how far it is."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from support.command import call, refused
from support.fake_service import FakeService

from embershard.cli.loadtest import live
from embershard.loadtest.generator import Progress
from embershard.loadtest.plan import Demand
from embershard.loadtest.tally import add, encoded, new_histogram

ERRORS = [  # flags, a part of the message
    ("--rate 10 --target 127.0.0.1:1", "127.0.0.1:1: nothing answers there"),
    ("--rate 0", "a rate of 0 requests a second"),
    ("--rate 10 --seconds 0", "0 seconds after 2 of warm-up"),
    ("--rate 10 --features item,shoe", "unknown feature 'shoe'; the collection has item"),
    ("--rate 10 --ids 1001", "a request would have 1,001 ids; the service takes 1,000"),
    ("--rate 10 --id-space 9999999999999999999", "an id space of 9,999,999,999,999,999,999 is too large"),
    ("--rate 10 --updates 2", "give a share from 0 to 1"),
    ("--rate 10 --replay nowhere.jsonl", "nowhere.jsonl: can't be read: No such file"),
    ("--rate 10 --replay /dev/null", "/dev/null: is empty; give a request a line"),
    ("--rate 10 --compare nowhere.json", "nowhere.json: can't be read: No such file"),
    ("--callers 1 --processes 2", "1 callers: give 2 (one a process) to"),
]
WRONG_USAGE = """
--rate 10 --callers 2 | --seconds 5 | --ramp | --rate 10 --p99-ms 5 | --ramp --p99-ms 5 --callers 2 | --callers 0
--ramp --p99-ms 0 | --rate ten | --rate 10 --replay r.jsonl --ids 5 | --rate 10 --report nowhere/r.html
--rate 10 --output . | --ramp --p99-ms inf
"""


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_a_line_on_a_terminal_and_nothing_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    latency = new_histogram()
    add(latency, 0.02)
    part = Progress(seconds=2.0, asked=200, answered=190, ended=3, latency=(encoded(latency),))
    for stderr, shown in (
        (Terminal(), "4/12 s, asked 200/s, answered 190/s, p50 20.0 ms, p99 20.0 ms, not answered 6"),
        (io.StringIO(), ""),
    ):
        monkeypatch.setattr("sys.stderr", stderr)
        with live(Demand(seconds=10, warmup_s=2, rate=200)) as told:
            told([replace(part, seconds=-1.0)])
            told([part, part])
        assert shown in stderr.getvalue()
        assert bool(shown) == bool(stderr.getvalue())


@pytest.fixture(scope="module")
def fake() -> Any:
    with FakeService() as service:
        yield service


@pytest.mark.parametrize(("flags", "message"), ERRORS)
def test_what_cannot_be_done_is_told_in_a_line(fake: FakeService, flags: str, message: str) -> None:
    assert message in refused("loadtest", "--target", fake.target, *flags.split())
    assert fake.lookups == 0


@pytest.mark.parametrize("flags", WRONG_USAGE.strip().replace("\n", "|").split("|"))
def test_flags_that_make_no_sense_are_wrong_usage(flags: str) -> None:
    status, output, errors = call("loadtest", *flags.split())
    assert (status, output) == (2, "")
    assert errors.startswith("usage: embershard loadtest")


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embershard.cli.loadtest.PACKAGES", {"hdrhistogram": "no_such_module"})
    assert refused("loadtest", "--rate", 1) == (
        "embershard loadtest needs hdrhistogram: pip install 'embershard[loadtest]'"
    )
