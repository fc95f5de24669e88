"""Joint: rows that stay bit for bit as they are, optimizer state too."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from embershard.collection import Collection
from embershard.errors import InvalidInput

if TYPE_CHECKING:
    from embershard.compose import RowBatch
    from embershard.engine.base import Engine
    from embershard.types import FeatureBatch


def freeze(engine: Engine, batch: FeatureBatch, *, frozen: bool) -> int:
    """Joint: freezes the rows of ids, or thaws them; every rank brings the same ids. Returns how many rows these are.

    Gradients have no effect on a frozen row, values are refused, and its id keeps it.

    Raises:
        InvalidInput: on every rank, if an id owns no row, or its vector is made of more than its row.
    """
    part = check(engine, batch)
    table = part.table
    mine = part.rows[0][engine.world.rank :: engine.world.size]
    engine.freeze({table.name: mine}, {table.name}, frozen=frozen)
    if table.name in engine.vocabularies:
        vocabulary = engine.vocabularies[table.name]
        vocabulary.pin(part.ids.rows_M - vocabulary.first_row, frozen)
    return len(np.unique(part.ids.rows_M))


def check(engine: Engine, batch: FeatureBatch) -> RowBatch:
    """The rows of these ids, if they can be frozen.

    Raises:
        InvalidInput: as `freeze`.
    """
    part = engine.settle(Collection(engine.config).read([batch]).parts[0])
    table, where = part.table, f"feature {part.batch.feature!r}"
    if table.factor is not None or not table.capacity:
        shared = (
            "hashed ids share rows" if table.factor is None else f"its rows are made of factors ({table.factor.kind})"
        )
        raise InvalidInput(
            f"{where}: ids of table {table.name!r} can't be frozen one by one, as {shared}; `frozen = true` in the "
            "configuration freezes all of it"
        )
    if part.ids.kept_N is not None:
        raise InvalidInput(f"{where}: ids[{int(np.argmin(part.ids.kept_N))}] is the padding id, which never moves")
    own_n = np.broadcast_to(np.asarray(part.ids.own), len(part.batch.ids))
    if not own_n.all():
        at = int(np.argmin(own_n))
        raise InvalidInput(
            f"{where}: ids[{at}] = {part.batch.shown(at)} owns no row in table {table.name!r}; an id does once "
            "updates have admitted it, or it was assigned"
        )
    return part
