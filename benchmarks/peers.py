"""The servers that ours is compared with: real ones on a free port, which keep nothing and end with the block."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import psutil
from serving import Server

PROGRAMS: Final = {"redis": "redis-server", "memcached": "memcached"}
WITHOUT: Final = "BENCH_WITHOUT"
"""The environment names peers here that are left out, with commas between them."""
START_S: Final = 10.0
"""Longest that a peer may take until it can be connected to."""


def left_out() -> list[str]:
    """Peers that aren't to be compared with."""
    return [name for name in os.environ.get(WITHOUT, "").split(",") if name]


def check_there(*names: str) -> None:
    """Ends the program if one of these peers is neither installed nor left out."""
    if missing := [name for name in names if name not in left_out() and not shutil.which(PROGRAMS[name])]:
        sys.exit(
            f"not installed: {', '.join(PROGRAMS[name] for name in missing)}; apt-get install redis-server memcached, "
            f"or leave out what you don't want to compare with: --without {' '.join(missing)}"
        )


def versions(*names: str) -> dict[str, str]:
    """Of these peers, and of the libraries that ask them."""
    programs = [PROGRAMS[name] for name in names if name not in left_out()]
    told = {
        program: subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        for program in programs
    }
    return told | {f"{name} (Python)": version(name) for name in ("hiredis", "redis", "pymemcache")}


@contextmanager
def redis_server(folder: Path) -> Iterator[Server]:
    """Debian's own settings, but for persistence, of which there is none."""
    options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--loglevel", "warning"]
    with _started("redis", [*options, "--dir", str(folder), "--port"]) as server:
        yield server


@contextmanager
def memcached_server(mebibytes: int) -> Iterator[Server]:
    """With room for all rows, so that it evicts none."""
    options = ["-l", "127.0.0.1", "-U", "0", "-u", getpass.getuser(), "-m", str(mebibytes), "-p"]
    with _started("memcached", options) as server:
        yield server


@contextmanager
def echo_server(kind: str, sizes: Sequence[int], dim: int, port: str = "0") -> Iterator[Server]:
    """The floor (`echo.py`), by asyncio or threads."""
    command = [sys.executable, str(Path(__file__).with_name("echo.py")), kind, port, str(dim), *map(str, sizes)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            if not (target := process.stdout.readline().strip()):
                sys.exit("the echo server didn't start; its own lines above say why")
            yield Server(target=target, process=psutil.Process(process.pid))
        finally:
            process.terminate()


@contextmanager
def _started(name: str, options: Sequence[str]) -> Iterator[Server]:
    """Options end with that of the port."""
    check_there(name)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    with subprocess.Popen([PROGRAMS[name], *options, str(port)], stdout=subprocess.DEVNULL) as process:
        try:
            _wait(port, process)
            yield Server(target=f"127.0.0.1:{port}", process=psutil.Process(process.pid))
        finally:
            process.terminate()


def _wait(port: int, process: subprocess.Popen[Any]) -> None:
    end = time.monotonic() + START_S
    while time.monotonic() < end and process.poll() is None:
        with suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port)):
            return
        time.sleep(0.02)
    sys.exit(f"{process.args!r} didn't start; run it by hand to see why")
