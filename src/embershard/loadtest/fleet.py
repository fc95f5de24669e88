"""Several client processes, which begin together and whose tallies are added up."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import connection, get_context
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, TypeVar

from embershard.errors import InternalError
from embershard.loadtest import generator
from embershard.loadtest.generator import Finished, Progress
from embershard.loadtest.plan import CONNECTING_S
from embershard.loadtest.tally import Tally

if TYPE_CHECKING:
    from embershard.loadtest.plan import Demand, Plan

LEAD_S: Final = 0.1
"""From when all are ready to when they begin."""
STARTING_S: Final = 60.0
"""For a process to start and to make its requests."""
SLACK_S: Final = 15.0
"""Beyond the time by which a process must have ended."""
STOPPING_S: Final = 2.0
_VERBOSITY: Final = "GRPC_VERBOSITY"

_Said = TypeVar("_Said")


@dataclass(frozen=True, kw_only=True, slots=True)
class Measured:
    """What a demand has shown."""

    demand: Demand
    """What was asked for."""
    seconds: float
    """How long it was measured; less than asked for if it was ended early."""
    tallies: dict[str, Tally]
    """{lookup or update: of all processes}."""
    cpus: list[float]
    """CPU time by time, of each process."""
    interrupted: bool
    """Whether it was ended early."""


class Fleet:
    """Client processes; within `with` they are there."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._processes: list[Any] = []
        self._pipes: list[connection.Connection] = []

    def __enter__(self) -> Fleet:
        """Starts them, and waits until they are connected.

        Raises:
            Unavailable: nothing answers.
        """
        try:
            for number in range(self._plan.processes):
                self._start(number)
            self._hear(str, CONNECTING_S + STARTING_S)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def run(self, demand: Demand, told: Callable[[list[Progress]], object] = lambda _: None) -> Measured:
        """Asks the service for so much; `told` hears of progress about each second.

        Ctrl-C ends it early, with what there is by then; a second one, or one before it begins, ends all.

        Raises:
            InternalError: an answer isn't what was asked for, or a process has died.
        """
        self._tell(demand)
        self._hear(str, STARTING_S)
        self._tell(time.monotonic() + LEAD_S)
        longest_s = demand.whole_s + self._plan.timeout_s + SLACK_S
        interrupted = False
        try:
            finished = self._hear(Finished, longest_s, told)
        except KeyboardInterrupt:
            interrupted = True
            self._tell(generator.STOP)
            finished = self._hear(Finished, longest_s)
        kinds = finished[0].tallies
        tallies = {kind: Tally.merged([part.tallies[kind] for part in finished]) for kind in kinds}
        return Measured(
            demand=demand,
            seconds=max(tally.seconds for tally in tallies.values()),
            tallies=tallies,
            cpus=[part.cpu for part in finished],
            interrupted=interrupted,
        )

    def close(self) -> None:
        """Ends them."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(STOPPING_S)
            if process.is_alive():
                process.kill()
                process.join()

    def _start(self, number: int) -> None:
        context = get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=generator.main, args=(theirs, self._plan, number), daemon=True)
        with _quietly():
            process.start()
        theirs.close()
        self._pipes.append(ours)
        self._processes.append(process)

    def _tell(self, message: object) -> None:
        for number, pipe in enumerate(self._pipes):
            try:
                pipe.send(message)
            except BrokenPipeError as error:
                raise self._dead(number) from error

    def _hear(
        self, kind: type[_Said], timeout_s: float, told: Callable[[list[Progress]], object] = lambda _: None
    ) -> list[_Said]:
        """What each process says, once all have; meanwhile their progress is told."""
        end, said = time.monotonic() + timeout_s, dict[int, _Said]()
        progress: dict[int, Progress] = {}
        while len(said) < len(self._pipes):
            waiting = [pipe for number, pipe in enumerate(self._pipes) if number not in said]
            ready = connection.wait(waiting, end - time.monotonic())
            if not ready:
                raise InternalError(f"client processes that haven't answered for {timeout_s:.0f} s: {len(waiting):,}")
            for pipe in ready:
                number = self._pipes.index(pipe)  # type: ignore[arg-type]  # pipes are all that is waited for
                message = self._receive(number)
                if isinstance(message, kind):
                    said[number] = message
                elif isinstance(message, Progress):
                    progress[number] = message
            if len(progress) == len(self._pipes):
                told(list(progress.values()))
                progress.clear()
        return [said[number] for number in range(len(self._pipes))]

    def _receive(self, number: int) -> object:
        try:
            message = self._pipes[number].recv()
        except (EOFError, ConnectionError) as error:
            raise self._dead(number) from error
        if isinstance(message, Exception):
            raise message
        return message

    def _dead(self, number: int) -> InternalError:
        self._processes[number].join(STOPPING_S)
        return InternalError(f"client process {number} has died (status {self._processes[number].exitcode})")


@contextmanager
def _quietly() -> Iterator[None]:
    """Processes that are started here ignore the Ctrl-C that is meant for this one, as they do what it tells them; and
    their gRPC, which reads its environment once, has nothing to add to how requests end."""
    handler, verbosity = signal.signal(signal.SIGINT, signal.SIG_IGN), os.environ.get(_VERBOSITY)
    os.environ.setdefault(_VERBOSITY, "NONE")
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, handler)
        if verbosity is None:
            del os.environ[_VERBOSITY]
