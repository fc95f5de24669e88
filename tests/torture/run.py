"""All of it together: lives and deaths of a service, one after the other, in bounded time."""

from __future__ import annotations

import tempfile
import threading
import tomllib
import traceback
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from embershard.config import parse_config
from torture import requests
from torture.callers import Caller
from torture.fleet import Fleet
from torture.history import History
from torture.operator import Operator
from torture.verdict import Verdict

CALLERS = 3
_LEAVE_S = 120
_SHOWN = 10


class Found(Exception):
    """Something was not as it must be; says what, and how to see it again."""


@contextmanager
def _one_thread() -> Iterator[None]:
    """Of torch, whose threads would take the cores from the service."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@_one_thread()
def torture(*, kills: int, seed: int, ranks: int = 0, quiet: bool = False) -> Counter[str]:
    """Kills a service so often, and returns what was counted.

    Raises:
        Found: what was told and what is there differ.
    """
    random = np.random.default_rng(seed)
    text = requests.config(random)
    with tempfile.TemporaryDirectory(prefix="torture-") as folder:
        history = History(Path(folder))
        fleet = Fleet(text, Path(folder) / "data", ranks)
        callers = [Caller(fleet, history, number, seed) for number in range(CALLERS)]
        verdict = Verdict(parse_config(tomllib.loads(text)), history, Path(folder) / "model", ranks)
        try:
            _lives(fleet, history, callers, verdict, random, kills, quiet)
        except Exception as error:
            history.fail("".join(traceback.format_exception(error)))
        finally:
            for caller in callers:
                caller.leave()
            fleet.close()
            for caller in callers:
                if caller.ident:
                    caller.join()
        if history.failures:
            raise Found(_told(history, fleet, f"make torture KILLS={kills} SEED={seed} RANKS={ranks}"))
    return history.counts


def _lives(
    fleet: Fleet,
    history: History,
    callers: list[Caller],
    verdict: Verdict,
    random: np.random.Generator,
    kills: int,
    quiet: bool,
) -> None:
    operator = Operator(fleet, history, callers, random)
    fleet.begin()
    fleet.wait()
    operator.begin()
    for caller in callers:
        caller.start()
    with tqdm(total=kills, unit="kills", disable=quiet) as progress:
        while history.counts["kills"] < kills and not history.failures:
            before = history.last
            operator.live(random.uniform(0.3, 2.0))
            history.counts["kills"] += 1
            fleet.begin()
            verdict.follow(before)
            if random.random() < 0.25 and history.counts["kills"] < kills:
                threading.Event().wait(random.uniform(0, 3))  # it starts, or replays the log, or serves already
                fleet.kill(random)
                history.counts["kills"] += 1
                fleet.begin()
            fleet.wait()
            progress.update(history.counts["kills"] - progress.n)
            progress.set_postfix(acknowledged=history.counts["acknowledged"], refresh=False)
    if not history.failures:
        _end(fleet, history, callers, verdict)


def _end(fleet: Fleet, history: History, callers: list[Caller], verdict: Verdict) -> None:
    """Everybody is answered, and the last snapshot is compared, too."""
    for caller in callers:
        caller.leave()
    for caller in callers:
        caller.join(_LEAVE_S)
        if caller.is_alive():
            history.fail(f"{caller.name} isn't answered")
    with fleet.halted():
        history.look(fleet.data)
    status = fleet.stop()
    history.look(fleet.data)
    if status and not fleet.ranks:  # torchrun ends with 1 whenever it is sent a signal
        history.fail(f"the service ends with status {status}")
    verdict.follow(history.last)
    verdict.end()


def _told(history: History, fleet: Fleet, command: str) -> str:
    failures = history.failures
    lines = [*failures[:_SHOWN], *([f"and {len(failures) - _SHOWN} more"] if len(failures) > _SHOWN else [])]
    said = "".join(fleet.output.splitlines(keepends=True)[-40:])
    return "\n".join([*lines, "", f"To see it again: {command}", "", "What the service said last:", said])
