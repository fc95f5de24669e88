"""Tables and growth as messages."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from embershard import codec
from embershard.engine.growth import Fill, Growth
from embershard.errors import InvalidInput
from embershard.v1 import embershard_pb2 as pb

if TYPE_CHECKING:
    from embershard.config import Config, TableSpec
    from embershard.engine.base import Engine


def describe_tables(engine: Engine) -> list[pb.Table]:
    """The tables of a collection as they are served."""
    sizes = engine.table_bytes()
    return [_table(engine, table, sizes[table.name]) for table in engine.config.tables]


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
        parameters=table.parameters,
        vocabulary=_vocabulary(engine, table.name),
    )


def _vocabulary(engine: Engine, table: str) -> pb.Vocabulary | None:
    if (vocabulary := engine.vocabularies.get(table)) is None:
        return None
    return pb.Vocabulary(
        capacity=vocabulary.capacity, ids=len(vocabulary), bytes=vocabulary.bytes, **asdict(vocabulary.counts)
    )


def growth_of(request: pb.GrowRequest, config: Config) -> Growth:
    """What is to grow, and how.

    Raises:
        InvalidInput: no table of the collection, or no size.
    """
    tables = {table.name: table for table in config.tables}
    if request.table not in tables:
        raise InvalidInput(f"there is no table {request.table!r}; the collection has {', '.join(tables)}")
    size = request.WhichOneof("size")
    if size is None:
        raise InvalidInput(f"table {request.table!r}: say how many rows, or which capacity, it is to have")
    table = tables[request.table]
    rows = request.rows if size == "rows" else request.capacity + table.rows - table.capacity
    if request.mean and request.HasField("mean_of"):
        raise InvalidInput("new rows start as the mean of all rows, or of those of some ids, not both")
    of = codec.decode_batch(request.mean_of) if request.HasField("mean_of") else None
    return Growth(table=request.table, rows=rows, fill=Fill(mean=request.mean, of=of))
