"""`embershard loadtest` refuses what can't be before it begins, and shows how far it is."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest
from support.command import call, refused
from support.fake_service import FakeService

from embershard.cli.loadtest import live
from embershard.loadtest.fleet import Measured
from embershard.loadtest.generator import Progress
from embershard.loadtest.plan import Demand
from embershard.loadtest.tally import add, encoded, new_histogram

ERRORS = [  # flags, a part of the message
    ("--rate 10 --target 127.0.0.1:1", "127.0.0.1:1: nothing answers there"),
    ("--rate 10 --features item,shoe", "unknown feature 'shoe'; the collection has item"),
    ("--rate 10 --ids 1001", "a request would have 1,001 ids; the service takes 1,000"),
    ("--rate 10 --replay ODD", "odd: line 2: is not the JSON of a request: Expecting value (column 11)"),
    ("--rate 10 --report nowhere/r.html", "nowhere/r.html: can't be written: No such file"),
    ("--rate 10 --output .", ".: is there already, and is no regular file"),
    (f"--rate 10 --output {'o' * 256}", "can't be written: File name too long"),
    ("--rate 10 --replay nowhere.jsonl", "nowhere.jsonl: can't be read: No such file"),
    ("--rate 10 --replay /dev/null", "/dev/null: is empty; give a request a line"),
    ("--rate 10 --compare nowhere.json", "nowhere.json: can't be read: No such file"),
]
WRONG_USAGE = """
--rate 10 --callers 2 | --seconds 5 | --ramp | --rate 10 --p99-ms 5 | --ramp --p99-ms 5 --callers 2 | --callers 0
--ramp --p99-ms 0 | --rate ten | --rate 10 --replay r.jsonl --ids 5 | --ramp --p99-ms inf | --rate 0 | --rate inf
--rate 10 --seconds 0 | --rate 10 --id-space 9999999999999999999 | --rate 10 --updates 2 | --callers 1 --processes 2
--callers 2001 | --callers 4001 --processes 2 | --rate 10 --features item,item | --rate 10 --features item,
--rate 10 --report same --output ./same | --rate 10 --replay r.jsonl --updates 1 | --rate 10 --zipf -1
"""
MESSAGES = [
    (["--ramp"], "--ramp needs a budget: give --p99-ms"),
    (["--callers", "100000"], "give up to 2,000 (2,000 a process)"),
    (["--rate", "10", "--report", ""], "an empty path names no file"),
    (["--rate", "inf"], "give a finite number above 0"),
]


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
def test_what_cannot_be_done_is_told_in_a_line(fake: FakeService, flags: str, message: str, tmp_path: Path) -> None:
    odd = tmp_path / "odd"
    odd.write_text('{"item": [1]}\n{"item": [}\n')
    before = fake.lookups
    assert message in refused("loadtest", "--target", fake.target, *flags.replace("ODD", str(odd)).split())
    assert fake.lookups == before


@pytest.mark.parametrize("flags", WRONG_USAGE.strip().replace("\n", "|").split("|"))
def test_flags_that_make_no_sense_are_wrong_usage(flags: str) -> None:
    status, output, errors = call("loadtest", *flags.split())
    assert (status, output) == (2, "")
    assert errors.startswith("usage: embershard loadtest")


@pytest.mark.parametrize(("flags", "message"), MESSAGES)
def test_wrong_usage_says_what_to_do(flags: list[str], message: str) -> None:
    status, _, errors = call("loadtest", *flags)
    assert status == 2
    assert message in " ".join(errors.split())


def test_what_cannot_be_written_after_all_costs_no_result(
    fake: FakeService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embershard.cli.loadtest.check_writable", lambda path: path.mkdir())  # it is taken meanwhile
    taken = tmp_path / "report.html"
    flags = f"--target {fake.target} --rate 50 --seconds 0.2 --warmup 0 --ids 2 --report {taken}"
    status, output, _ = call("loadtest", *flags.split())
    assert status == 1
    assert "lookups  10 asked: " in output
    assert f"warning: {taken}: is there already, and is no regular file" in output


@pytest.mark.parametrize("flags", ["--rate 50", "--callers 2", "--rate 6 --ramp --p99-ms 60000"])
def test_a_service_that_answers_nothing_is_told_and_fails(flags: str) -> None:
    def refuses(_: int, call: grpc.ServicerContext) -> None:
        call.abort(grpc.StatusCode.INVALID_ARGUMENT, "as the test says")

    with FakeService(refuses) as service:
        flags += f" --target {service.target} --seconds 0.5 --warmup 0 --ids 2"
        status, output, errors = call("loadtest", *flags.split())
    assert (status, errors) == (1, "")
    assert "lookups (100.0%) weren't answered: " in output
    assert "INVALID_ARGUMENT (as the test says)" in output


def test_ctrl_c_before_anything_is_measured_is_told_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("embershard.cli.loadtest.need_packages", interrupted)
    assert call("loadtest", "--rate", 1) == (130, "", "embershard: ended by Ctrl-C, and nothing was measured\n")


def test_so_is_ctrl_c_while_it_warms_up(fake: FakeService, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(_: object, demand: Demand) -> Measured:
        return Measured(demand=demand, seconds=0.0, tallies={}, cpus=[], interrupted=True)

    monkeypatch.setattr("embershard.cli.loadtest._run", ended)
    status, output, errors = call("loadtest", "--target", fake.target, "--rate", 1, "--ids", 2)
    assert (status, output) == (130, "")
    assert errors == "embershard: ended by Ctrl-C, and nothing was measured\n"


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embershard.cli.loadtest.PACKAGES", {"hdrhistogram": "no_such_module"})
    assert refused("loadtest", "--rate", 1) == (
        "embershard loadtest needs hdrhistogram: pip install 'embershard[loadtest]'"
    )
