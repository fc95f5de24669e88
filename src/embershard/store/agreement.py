"""How ranks agree that something went well, so that none goes on alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from embershard.errors import EmbershardError, SnapshotError

if TYPE_CHECKING:
    from embershard.engine.world import World

Agree = Callable[[Any], list[Any]]
"""Joint: every rank's item, on every rank; `World.gather` for the thread that ticks, `meeting` for any other."""

PATIENCE_S = 3600
"""Longest that ranks wait for each other beside the tick: a disk may be much slower than another, and a rank that dies
takes the tick, and so all ranks, with it."""


def meeting(world: World, key: str) -> Agree:
    """For a thread beside the tick; all that happens under one key happens on every rank in one order."""
    return lambda item: world.meet(key, item, timeout_s=PATIENCE_S)


def alone(item: Any) -> list[Any]:
    """Agrees with nobody else: for whoever has no other ranks."""
    return [item]


@contextmanager
def everywhere(agree: Agree, what: str, kind: type[EmbershardError] = SnapshotError) -> Iterator[None]:
    """Joint: if the body fails on any rank, raises an error of this kind on every rank: `what`, and why."""
    failure: Exception | None = None
    try:
        yield
    except Exception as error:
        failure = error
    if reports := [report for report in agree(failure and _told(failure, what, kind)) if report]:
        raise kind(reports[0]) from failure


def _told(failure: Exception, what: str, kind: type[EmbershardError]) -> str:
    if isinstance(failure, kind):
        return str(failure)
    plain = isinstance(failure, (OSError, EmbershardError))
    return f"{what}: {failure if plain else f'{type(failure).__name__}: {failure}'}"
