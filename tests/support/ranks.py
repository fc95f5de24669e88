"""Real ranks: processes with a process group, that do together what a test tells them.

ranks = Ranks(3)
ranks.build(config)
ranks.each("lookup", [[batches_of_rank_0], [batches_of_rank_1], [batches_of_rank_2]])
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import traceback
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection, Listener
from typing import Any

from embershard.config import Config
from embershard.errors import EmbershardError

JOIN_S = 120


class RankError(Exception):
    """A rank failed in a way that embershard doesn't mean; its traceback."""


class Ranks:
    """A world of torchrec engines."""

    def __init__(self, size: int) -> None:
        self.size = size
        key = secrets.token_bytes(16)
        self._processes = []
        with Listener(("127.0.0.1", 0), authkey=key) as listener:
            listener._listener._socket.settimeout(JOIN_S)  # type: ignore[attr-defined]
            port = _free_port()
            for rank in range(size):
                environment = os.environ | {
                    "RANK": str(rank),
                    "LOCAL_RANK": str(rank),
                    "WORLD_SIZE": str(size),
                    "LOCAL_WORLD_SIZE": str(size),
                    "MASTER_ADDR": "127.0.0.1",
                    "MASTER_PORT": str(port),
                    "OMP_NUM_THREADS": "1",
                    "TEST_ADDRESS": f"127.0.0.1:{listener.address[1]}",
                    "TEST_KEY": key.hex(),
                    "PYTHONPATH": os.pathsep.join(sys.path),  # what this process imports
                }
                self._processes.append(subprocess.Popen([sys.executable, __file__], env=environment))
            connections = [listener.accept() for _ in range(size)]
        self._connections: list[Connection] = [
            connection for _, connection in sorted((c.recv(), c) for c in connections)
        ]

    @property
    def pids(self) -> list[int]:
        """Process numbers, by rank."""
        return [process.pid for process in self._processes]

    def build(self, config: Config) -> None:
        """A new engine on every rank."""
        self.each("build", [[config]] * self.size)

    def each(self, method: str, arguments: Sequence[Sequence[Any]] | None = None) -> list[Any]:
        """Calls a method of every rank's subject at once, each with its own arguments; returns what each answers."""
        for rank, connection in enumerate(self._connections):
            connection.send((method, [] if arguments is None else arguments[rank]))
        answers = [connection.recv() for connection in self._connections]
        for answer in answers:
            if isinstance(answer, (RankError, EmbershardError)):
                raise answer
        return answers

    def close(self) -> None:
        for connection in self._connections:
            connection.send(None)
        for process in self._processes:
            process.wait(JOIN_S)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """One rank: does what it is told until the connection says None."""
    host, port = os.environ["TEST_ADDRESS"].split(":")
    with Client((host, int(port)), authkey=bytes.fromhex(os.environ["TEST_KEY"])) as connection:
        from embershard.quiet import quieten

        quieten()
        from embershard.engine.torchrec import TorchRecEngine
        from embershard.engine.world import TorchWorld
        from support.jobs import run_job
        from support.ranks import RankError  # by the name that the test knows it by
        from support.subject import Subject

        world = TorchWorld(timeout_s=60)
        connection.send(world.rank)
        subject: Subject | None = None
        while (order := connection.recv()) is not None:
            method, arguments = order
            try:
                if method == "build":
                    subject, answer = Subject(TorchRecEngine(*arguments, world)), None
                elif method == "job":
                    answer = run_job(*arguments, world)
                else:
                    answer = getattr(subject, method)(*arguments)
            except EmbershardError as error:
                answer = error
            except Exception:
                answer = RankError(traceback.format_exc())
            connection.send(answer)
        world.leave()


if __name__ == "__main__":
    main()
