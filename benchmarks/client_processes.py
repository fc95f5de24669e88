"""Client processes, apart from everything else: they ask, one request of a caller after the other, for a short time."""

from __future__ import annotations

import multiprocessing
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import lru_cache
from multiprocessing.process import BaseProcess
from typing import Any, Final

import numpy as np
import psutil
from numpy.typing import NDArray
from our_clients import Ask, Connect

from embershard import keep_freed_memory
from embershard.zipf import scattered, zipf

END_S: Final = 5.0
"""Longest that a client process may take to end."""
POOL: Final = 2**20
"""Ids that are drawn for each size; requests take them in turns, so that caches don't learn them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ids:
    """What requests ask for."""

    shape: tuple[int, ...]
    """Of the ids of a request."""
    rows: int
    """Of the table: ids are below."""
    zipf: float = 0.0
    """Exponent of Zipf's law; 0: all are as likely."""
    seed: int = 7

    def requests(self) -> NDArray[np.int64]:
        """[requests, *shape]."""
        count = max(1, POOL // int(np.prod(self.shape)))
        random = np.random.default_rng(self.seed)
        if not self.zipf:
            return random.integers(0, self.rows, (count, *self.shape))
        ranks_N = zipf(random, self.rows, self.zipf, count * int(np.prod(self.shape))) - 1
        return scattered(ranks_N, self.rows, random).reshape(count, *self.shape)


_requests = lru_cache(maxsize=8)(Ids.requests)


@dataclass(frozen=True, kw_only=True, slots=True)
class Callers:
    """Who asks at once."""

    name: str
    """As tables say it."""
    processes: int = 1
    """Client processes."""
    threads: int = 1
    """Of each; each has a connection of its own, if its library has it so."""


ONE: Final = Callers(name="1 caller")
FOUR_THREADS: Final = Callers(name="4 callers, threads of one process", threads=4)
FOUR_PROCESSES: Final = Callers(name="4 callers, a process each", processes=4)


@dataclass(frozen=True, kw_only=True, slots=True)
class Slice:
    """What came of a short time."""

    rate: float
    """Requests a second, of all callers together."""
    latencies_s: NDArray[np.float64]
    """Of each request."""
    client_s: float
    """CPU time of the client processes."""
    server_s: float = 0.0
    """CPU time of the server."""


class Clients:
    """Client processes that wait for orders; `started` makes them."""

    def __init__(self, pipes: Sequence[Any]) -> None:
        self._pipes = pipes

    def ask(self, name: str, ids: Ids, callers: Callers, seconds: float, server: psutil.Process) -> Slice:
        """Has so many callers ask one of the contestants."""
        before = _cpu_s(server)
        for number, pipe in enumerate(self._pipes[: callers.processes]):
            pipe.send((name, ids, callers.threads, number / callers.processes, seconds))
        slices: list[Slice] = [pipe.recv() for pipe in self._pipes[: callers.processes]]
        return Slice(
            rate=sum(part.rate for part in slices),
            latencies_s=np.concatenate([part.latencies_s for part in slices]),
            client_s=sum(part.client_s for part in slices),
            server_s=_cpu_s(server) - before,
        )


@contextmanager
def started(contestants: Mapping[str, Connect], processes: int) -> Iterator[Clients]:
    """So many client processes, each of which can ask all of the contestants."""
    context = multiprocessing.get_context("spawn")
    with ExitStack() as stack:
        pipes = []
        for _ in range(processes):
            pipe, theirs = context.Pipe()
            process = context.Process(target=_obey, args=(theirs, dict(contestants)), daemon=True)
            process.start()
            theirs.close()
            stack.callback(_end, process)
            stack.callback(pipe.close)
            pipes.append(pipe)
        yield Clients(pipes)


def _end(process: BaseProcess) -> None:
    """Once its pipe is closed; a client whose server has died may hang in gRPC for ever."""
    process.join(END_S)
    process.kill()
    process.join()


def _obey(pipe: Any, contestants: dict[str, Connect]) -> None:
    """A client process: connections stay open, one a thread and contestant. Whoever is asked, memory is kept, as the
    README advises for large answers."""
    keep_freed_memory()
    asks: dict[tuple[str, int], Ask] = {}
    with ExitStack() as stack, ThreadPoolExecutor(8) as pool:
        while True:
            try:
                name, ids, threads, part, seconds = pipe.recv()
            except EOFError:
                return
            for thread in range(threads):
                if (name, thread) not in asks:
                    asks[name, thread] = stack.enter_context(contestants[name]())
            requests = _requests(ids)
            starts = [int(len(requests) * (part + thread / threads / 4)) for thread in range(threads)]
            pipe.send(_slice([asks[name, thread] for thread in range(threads)], requests, starts, seconds, pool))


def _slice(
    asks: Sequence[Ask], requests: NDArray[np.int64], starts: Sequence[int], seconds: float, pool: ThreadPoolExecutor
) -> Slice:
    together = threading.Barrier(len(asks))

    def ask_on(ask: Ask, at: int) -> list[float]:
        together.wait()
        return _latencies(ask, requests, at, seconds)

    cpu = time.process_time()
    latencies = list(pool.map(ask_on, asks, starts)) if len(asks) > 1 else [ask_on(asks[0], starts[0])]
    cpu = time.process_time() - cpu
    return Slice(
        rate=sum(len(part) / sum(part) for part in latencies),
        latencies_s=np.concatenate(latencies),
        client_s=cpu,
    )


def _latencies(ask: Callable[[Any], object], requests: NDArray[np.int64], at: int, seconds: float) -> list[float]:
    """Of requests one after the other; each begins when the one before has ended."""
    taken: list[float] = []
    now = time.perf_counter()
    end = now + seconds
    while now < end or not taken:
        ask(requests[at % len(requests)])
        before, now = now, time.perf_counter()
        taken.append(now - before)
        at += 1
    return taken


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system
