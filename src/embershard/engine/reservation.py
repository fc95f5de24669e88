"""Joint: whether an entry can be done, which is decided before it is logged: no log knows how much memory there was.

Of entries on their way that replace what is served, there is one at a time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from embershard.engine import freezing
from embershard.engine.entries import Entry, Kind
from embershard.engine.growth import Growth, check_room
from embershard.errors import InvalidInput, Overloaded

if TYPE_CHECKING:
    from embershard.engine.publication import Publication
    from embershard.engine.replica import Replica

SOON_S = 0.5
"""When to try again what can't be done at once with a publication that is on its way."""


def reserve(replica: Replica, entry: Entry) -> None:
    """Joint: an entry is about to be logged.

    Raises:
        EmbershardError: on every rank: it can't be done, as far as can be told.
    """
    match entry.kind:
        case Kind.GROW:
            _check_growth(replica, entry.body)
        case Kind.FREEZE:
            freezing.check(replica.engine, entry.body[0])
        case Kind.ACTIVATE | Kind.ROLLBACK:
            _check_activation(replica, entry.body, back=entry.kind is Kind.ROLLBACK)
            replica.activating = entry.body
        case Kind.PUBLISH:
            _check_publication(replica, entry.body)
            assert replica.staged
            replica.staged.on_its_way = True


def release(replica: Replica, entry: Entry) -> None:
    """Joint: it couldn't be logged."""
    if entry.kind in (Kind.ACTIVATE, Kind.ROLLBACK):
        replica.activating = 0
    elif entry.kind is Kind.PUBLISH and replica.staged:
        replica.staged.on_its_way = False


def _check_growth(replica: Replica, growth: Growth) -> None:
    _check_not_replaced(replica)
    if replica.activating or (replica.growing and not replica.growing.is_of(replica.engine, growth)):
        raise Overloaded(f"other tables were activated while {growth.table!r} was made ready to grow; try again")
    if not replica.growing:
        check_room(replica.engine, growth)


def _check_activation(replica: Replica, version: int, *, back: bool) -> None:
    if replica.activating:
        raise Overloaded(f"version {replica.activating:,} is being activated; try again once it is")
    _check_not_replaced(replica)
    if version not in replica.loaded:
        raise InvalidInput(f"version {version:,} isn't loaded; load it first")
    if back and version != replica.before:
        raise InvalidInput(f"version {version:,} isn't what was served before the last activation any more")


def _check_publication(replica: Replica, publication: Publication) -> None:
    if replica.activating:
        raise _soon(f"version {replica.activating:,} is being activated; try again once it is")
    if publication.follows(replica.engine.published) and publication.delta:
        publication.check_rows(replica.engine.config)


def _check_not_replaced(replica: Replica) -> None:
    if (staged := replica.staged) and staged.replaces:
        raise _soon(f"{staged.publication} is about to be served in full; try again once it is")


def _soon(reason: str) -> Overloaded:
    refusal = Overloaded(reason)
    refusal.retry_after_s, refusal.reason = SOON_S, "busy"
    return refusal
