"""Tables as messages."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from embershard.v1 import embershard_pb2 as pb

if TYPE_CHECKING:
    from embershard.config import TableSpec
    from embershard.engine.base import Engine


def describe_tables(engine: Engine) -> list[pb.Table]:
    """The tables of a collection as they are served."""
    sizes = engine.table_bytes()
    return [_table(engine, table, sizes[table.name]) for table in engine.config.tables]


def describe_published(engine: Engine) -> pb.Publication | None:
    """The last publication that the tables have."""
    last = engine.published
    return pb.Publication(publisher=last.publisher, number=last.number) if last.publisher else None


def _table(engine: Engine, table: TableSpec, size: int) -> pb.Table:
    optimizer = engine.config.optimizer_of(table)
    return pb.Table(
        name=table.name,
        rows=table.rows,
        dim=table.dim,
        features=table.features,
        pooling=f"POOLING_{table.pooling.upper()}",
        id_kind=table.ids.kind,
        dtype=table.dtype,
        optimizer=optimizer.kind,
        learning_rate=optimizer.learning_rate,
        bytes=size,
        factor=table.factor.kind if table.factor else "",
        scale=table.scale if table.scale != "none" else "",
        normalise=table.normalise if table.normalise != "none" else "",
        frozen=table.frozen,
        counts=table.counts,
        rank=getattr(table.factor, "rank", 0),
        remainders=table.remainders,
        numbers_per_id=table.numbers_per_id,
        parameters=table.parameters,
        vocabulary=_vocabulary(engine, table.name),
    )


def _vocabulary(engine: Engine, table: str) -> pb.Vocabulary | None:
    if (vocabulary := engine.vocabularies.get(table)) is None:
        return None
    return pb.Vocabulary(
        capacity=vocabulary.capacity, ids=len(vocabulary), bytes=vocabulary.bytes, **asdict(vocabulary.counts)
    )
