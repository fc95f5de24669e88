"""Whatever changes what is served, as *entries*: requests that are logged, numbered and applied one after the other.

An entry is logged as the request that its caller sent, so that what replays a log is what answers calls. One rank
brings it; the others know enough to take part.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from embershard import codec
from embershard.engine.clients import check_identity
from embershard.engine.growth import Growth
from embershard.engine.publication import publication_of
from embershard.engine.work import Work, work_of_change
from embershard.errors import InvalidInput
from embershard.v1 import embershard_pb2 as pb

if TYPE_CHECKING:
    from embershard.collection import Collection, Read
    from embershard.types import FeatureBatch


class Kind(IntEnum):
    """What an entry does, and the message that says so; these numbers are in logs."""

    UPDATE = 1
    """UpdateRequest."""
    SIGHT = 2
    """LookupRequest: ids that lookups have named, of tables that count lookups."""
    GROW = 3
    """GrowRequest."""
    FREEZE = 4
    """FreezeRequest."""
    ACTIVATE = 5
    """ActivateRequest: what is served until then is kept as a snapshot."""
    ROLLBACK = 6
    """ActivateRequest: what is served until then is dropped."""
    PUBLISH = 7
    """PublishRequest: its files are in the data directory."""


_PRIVATE = (Kind.UPDATE, Kind.SIGHT)
"""Kinds that need no more than the work of the ranks that don't bring them."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Entry:
    """One change, ready to be applied."""

    kind: Kind
    """What it does."""
    request: bytes
    """What is logged."""
    body: Any
    """A Change, a Read, a Growth, (ids, frozen), the version of a snapshot or a Publication; None where only the rank
    that brings it needs it."""
    work: Work = field(default_factory=Work)
    """What all ranks take part in."""
    client: str = ""
    """Who sent it."""
    sequence: int = 0
    """Its number among its sender's."""
    numbers: int = 0
    """What it costs: numbers of all rows that are touched."""
    generation: int = 0
    """Of the tables for which it was prepared."""

    def told(self) -> Entry:
        """What the ranks that don't bring it know of it."""
        return replace(self, body=None) if self.kind in _PRIVATE else self


def entry_of(kind: Kind, request: bytes, collection: Collection) -> Entry:
    """An entry as it was logged.

    Raises:
        InvalidInput: it doesn't fit the tables.
    """
    match kind:
        case Kind.UPDATE:
            return update_entry(collection, pb.UpdateRequest.FromString(request))
        case Kind.SIGHT:
            message = pb.LookupRequest.FromString(request)
            return _sighted(collection, request, [codec.decode_batch(feature) for feature in message.features])
        case Kind.GROW:
            return growth_entry(collection, pb.GrowRequest.FromString(request))
        case Kind.FREEZE:
            return freeze_entry(collection, pb.FreezeRequest.FromString(request))
        case Kind.PUBLISH:
            return publication_entry(pb.PublishRequest.FromString(request))
    return activation_entry(kind, pb.ActivateRequest.FromString(request).version)


def update_entry(collection: Collection, request: pb.UpdateRequest) -> Entry:
    """Gradients, values and parents.

    Raises:
        InvalidInput: as `Collection.change`, or an identity that is half given.
    """
    check_identity(request.client_id, request.sequence)
    dims = {feature: table.dim for feature, table in collection.table_of.items()}
    change = collection.change([codec.decode_update(update, dims) for update in request.updates])
    return Entry(
        kind=Kind.UPDATE,
        request=request.SerializeToString(),
        body=change,
        work=work_of_change(change),
        client=request.client_id,
        sequence=request.sequence,
        numbers=change.numbers,
        generation=collection.generation,
    )


def sightings_entry(collection: Collection, reads: Iterable[Read]) -> Entry:
    """What lookups have named of tables that count lookups."""
    batches = [part.batch for read in reads for part in read.parts if part.table.counts_lookups]
    request = pb.LookupRequest(features=[codec.encode_batch(batch) for batch in batches])
    return _sighted(collection, request.SerializeToString(), batches)


def _sighted(collection: Collection, request: bytes, batches: Iterable[FeatureBatch]) -> Entry:
    """One read a batch, as several of them may be of one feature."""
    reads = [collection.read([batch]) for batch in batches]
    return Entry(
        kind=Kind.SIGHT,
        request=request,
        body=reads,
        work=Work(sight=frozenset(part.table.name for read in reads for part in read.parts)),
        numbers=sum(read.numbers for read in reads),
        generation=collection.generation,
    )


def growth_entry(collection: Collection, request: pb.GrowRequest) -> Entry:
    """More rows for a table.

    Raises:
        InvalidInput: no size, or no such table or ids.
    """
    table, size = collection.config.table(request.table), request.WhichOneof("size")
    if size is None:
        raise InvalidInput(f"table {table.name!r}: say how many rows, or which capacity, it is to have")
    rows = request.rows if size == "rows" else request.capacity + table.rows - table.capacity
    mean_of = single_ids(collection, request.mean_of) if request.WhichOneof("start") == "mean_of" else None
    growth = Growth(table=table.name, rows=rows, mean=request.mean, mean_of=mean_of)
    return Entry(kind=Kind.GROW, request=request.SerializeToString(), body=growth)


def freeze_entry(collection: Collection, request: pb.FreezeRequest) -> Entry:
    """Rows that stay as they are, or move again.

    Raises:
        InvalidInput: ids that no table has.
    """
    body = (single_ids(collection, request.batch), not request.thaw)
    return Entry(kind=Kind.FREEZE, request=request.SerializeToString(), body=body)


def activation_entry(kind: Kind, version: int) -> Entry:
    """The tables of a snapshot, in place of those that are served."""
    return Entry(kind=kind, request=pb.ActivateRequest(version=version).SerializeToString(), body=version)


def publication_entry(request: pb.PublishRequest) -> Entry:
    """What a training job has made.

    Raises:
        InvalidInput: a name, number or checksum that can't be.
    """
    return Entry(kind=Kind.PUBLISH, request=request.SerializeToString(), body=publication_of(request))


def single_ids(collection: Collection, message: pb.FeatureIds) -> FeatureBatch:
    """Ids of a table, nothing else being said of them; what is wrong with them, no rank needs to hear of."""
    batch = codec.decode_batch(message)
    if batch.lengths is not None or batch.weights is not None:
        raise InvalidInput(f"feature {batch.feature!r}: these are single ids; leave out lengths and weights")
    collection.read([batch])
    return batch
