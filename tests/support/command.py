"""The command line as a test calls it: as a process of its own, or in this one, where torch is imported already."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from embershard.cli import main

COMMAND = Path(sys.executable).with_name("embershard")


def run(*arguments: object, given: str = "", start: tuple[Any, ...] = (COMMAND,)) -> subprocess.CompletedProcess[str]:
    call = [*map(str, start), *map(str, arguments)]
    return subprocess.run(call, input=given, capture_output=True, text=True, timeout=120)


def answer(*arguments: object, given: str = "") -> Any:
    """The one JSON document of a command that goes well."""
    (line,) = lines(*arguments, "--json", given=given)
    return document(line)


def lines(*arguments: object, given: str = "") -> list[str]:
    """What a command that goes well prints."""
    done = run(*arguments, given=given)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.splitlines()


def told(*arguments: object) -> Any:
    """As `answer`, in this process."""
    (line,) = shown(*arguments, "--json")
    return document(line)


def shown(*arguments: object) -> list[str]:
    """As `lines`, in this process."""
    status, output, errors = call(*arguments)
    assert (status, errors) == (0, "")
    return output.splitlines()


def refused(*arguments: object) -> str:
    """The message of a command that fails, in this process."""
    status, output, errors = call(*arguments)
    assert (status, output) == (1, "")
    (line,) = errors.splitlines()
    assert line.startswith("embershard: ")
    return line.removeprefix("embershard: ")


def call(*arguments: object, given: str = "") -> tuple[int, str, str]:
    """Exit status, output and errors of a command in this process; `given` is what is piped in."""
    output, errors, before = io.StringIO(), io.StringIO(), sys.stdin
    with redirect_stdout(output), redirect_stderr(errors):
        sys.stdin = io.TextIOWrapper(io.BytesIO(given.encode()))
        try:
            status = main([*map(str, arguments)])
        except SystemExit as end:
            status = int(end.code or 0)
        finally:
            sys.stdin = before
    return status, output.getvalue(), errors.getvalue()


def document(line: str) -> Any:
    return json.loads(line, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))
