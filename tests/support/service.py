"""A real service: processes that listen on free ports, as an operator starts them."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

START_S = 90
STOP_S = 60


class Service:
    """`python -m embershard_server`, or torchrun with several ranks of it."""

    def __init__(
        self,
        config: str | Path,
        data_dir: Path,
        *,
        ranks: int = 0,
        listen: str = "127.0.0.1:0",
        launcher: Sequence[str] = (),
        meeting: Sequence[str] = ("--standalone",),
        program: Sequence[str] = ("-m", "embershard_server"),
        flags: Sequence[str | Path] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """`ranks` 0 is the local engine; `config` is a file, or its text; `launcher` has more flags for torchrun, and
        `flags` for the server.

        `meeting` says how the agents of several hosts find each other; this one's ranks are then some of the group's.
        """
        if isinstance(config, str):
            data_dir.mkdir(parents=True, exist_ok=True)
            (data_dir / "collection.toml").write_text(config)
            config = data_dir / "collection.toml"
        server = [*program, "--config", str(config), "--listen", listen, "--data-dir", str(data_dir)]
        server += map(str, flags)
        torchrun = ["-m", "torch.distributed.run", *meeting, "--nproc-per-node", str(ranks), *launcher]
        self._ranks, self.size = ranks, max(ranks, 1)
        self.lines: list[str] = []
        self._served: list[tuple[int, str]] = []
        self._ended, self._changed = False, threading.Condition()
        self.process = subprocess.Popen(
            [sys.executable, *(torchrun if ranks else []), *server],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"} | dict(environment or {}),
        )
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def __enter__(self) -> Service:
        return self.wait()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def wait(self, lives: int = 1) -> Service:
        """Until every rank serves, in its n-th life; a service that ends instead is an error with its output."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or len(self._served) >= lives * self.size, START_S * lives)
        if len(self._served) < lives * self.size:
            self.stop()
            raise AssertionError(f"the service doesn't serve:\n{self.output}")
        return self

    @property
    def announced(self) -> int:
        """How often a rank has begun to serve, in all lives."""
        return len(self._served)

    def wait_announced(self, count: int, timeout_s: float) -> int:
        """Until so many have, the last of them all ranks of one life; returns how many have."""
        with self._changed:
            self._changed.wait_for(
                lambda: self._ended or (len(self._served) >= count and len(self.addresses) == self.size), timeout_s
            )
        if self._ended or len(self._served) < count:
            raise AssertionError(f"the service doesn't serve:\n{self.output}")
        return len(self._served)

    @property
    def addresses(self) -> dict[int, str]:
        """The address of each rank, in its present life."""
        return dict(self._served[-self.size :])

    @property
    def target(self) -> str:
        """The address of rank 0."""
        return self.addresses[0]

    @property
    def metrics(self) -> dict[int, str]:
        """Where each rank has its metrics, if it has any."""
        found = re.findall(r"^rank (\d+) of \d+ \(\w+ engine\) has metrics on (\S+)$", self.output, re.MULTILINE)
        return {int(rank): url for rank, url in found}

    @property
    def output(self) -> str:
        return "".join(self.lines)

    def wait_said(self, text: str, times: int = 1) -> None:
        """Until so many lines of output have a text."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended or self.said(text) >= times, START_S)
        assert self.said(text) >= times, self.output

    def said(self, text: str) -> int:
        """How many lines of output have a text."""
        return sum(text in line for line in self.lines)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Sends a signal, waits for the end, and returns the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.ended()

    def ended(self) -> int:
        """Waits for the end, and returns the exit status."""
        try:
            status = self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._reader.join(STOP_S)
        return status

    def rank_pids(self) -> list[int]:
        """Process numbers of the ranks."""
        if not self._ranks:
            return [self.process.pid]
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text()
        return [int(pid) for pid in children.split()]

    def _read(self) -> None:
        assert self.process.stdout is not None
        with self.process.stdout as output:
            for line in output:
                with self._changed:
                    self.lines.append(line)
                    self._changed.notify_all()
                if match := re.search(r"rank (\d+) of \d+ \(\w+ engine\) serves ([^\s\"]+)", line):
                    self._note(served=(int(match[1]), match[2]))
        self._note(ended=True)

    def _note(self, *, served: tuple[int, str] | None = None, ended: bool = False) -> None:
        with self._changed:
            self._served += [served] if served else []
            self._ended = ended
            self._changed.notify_all()
