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

import hiredis
import numpy as np
import psutil
from numpy.typing import NDArray
from serving import Server

Bytes = NDArray[np.uint8]

PROGRAMS: Final = {"redis": "redis-server", "memcached": "memcached"}
WITHOUT: Final = "BENCH_WITHOUT"
"""The environment names peers here that are left out, with commas between them."""
START_S: Final = 10.0
"""Longest that a peer may take until it can be connected to."""
RECEIVED: Final = 2**20
"""Bytes that are read at once, at most."""


def left_out() -> list[str]:
    """Peers that aren't to be compared with."""
    return [name for name in os.environ.get(WITHOUT, "").split(",") if name]


def check_there() -> None:
    """Ends the program if a peer is neither installed nor left out."""
    if missing := [name for name in PROGRAMS if name not in left_out() and not shutil.which(PROGRAMS[name])]:
        sys.exit(
            f"{' and '.join(PROGRAMS[name] for name in missing)}: not installed; apt-get install redis-server "
            f"memcached, or leave out what you don't want to compare with: --without {' '.join(missing)}"
        )


def versions() -> dict[str, str]:
    """Of peers, and of the libraries that ask them."""
    programs = [program for name, program in PROGRAMS.items() if name not in left_out()]
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
def echo_server(kind: str, sizes: Sequence[int], dim: int) -> Iterator[Server]:
    """The floor (`echo.py`), by asyncio or threads."""
    command = [sys.executable, str(Path(__file__).with_name("echo.py")), kind, str(dim), *map(str, sizes)]
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
    check_there()
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
    sys.exit(f"{process.args!r} didn't start; its own lines above say why")


class Connection:
    """A socket to Redis and hiredis' parser, which is the least that a client in Python can be."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader, self._buffer = hiredis.Reader(), bytearray(RECEIVED)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, commands: bytes, count: int) -> list[Any]:
        """Sends commands, so many, and returns their replies."""
        self._socket.sendall(commands)
        replies: list[Any] = []
        while len(replies) < count:
            if (reply := self._reader.gets()) is not False:
                replies.append(reply)
                continue
            received = self._socket.recv_into(self._buffer)
            if not received:
                raise ConnectionError("Redis has closed the connection")
            self._reader.feed(self._buffer, 0, received)  # type: ignore[arg-type]  # any buffer will do
        if errors := [reply for reply in replies if isinstance(reply, hiredis.HiredisError)]:
            raise errors[0]
        return replies


def framed(*parts: bytes | Bytes) -> bytes:
    """Lines that are alike but for some columns: parts are bytes that all have, or [lines, bytes] that differ."""
    lines = next(len(part) for part in parts if not isinstance(part, bytes))
    columns = [
        np.broadcast_to(np.frombuffer(part, np.uint8), (lines, len(part))) if isinstance(part, bytes) else part
        for part in parts
    ]
    return np.concatenate(columns, axis=1).tobytes()


def octets(numbers: NDArray[Any]) -> Bytes:
    """The bytes of each of the numbers, or rows of numbers: [n, bytes]."""
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), -1)
