"""What each RPC does: decode, check, queue for the tick, encode."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any, TypeVar

import grpc
import numpy as np

import embershard
from embershard import codec
from embershard.collection import Collection, Read
from embershard.engine.growth import Growth
from embershard.engine.jobs import ActionJob, Answer, Job, LookupJob, UpdateJob
from embershard.errors import FingerprintMismatch, InvalidInput
from embershard.v1 import embershard_pb2 as pb
from embershard_server.describe import describe_tables
from embershard_server.status import Context, unary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from embershard.change import Change
    from embershard.collection import IdCounts
    from embershard.engine.base import Engine
    from embershard.engine.tick import Ticker
    from embershard.store.manifest import Snapshot
    from embershard.types import FeatureBatch
    from embershard_server.streams import Streams

SMALL = 20_000
"""Requests with fewer ids are prepared where they arrive: that takes less than changing threads for long."""

_Work = TypeVar("_Work")


class Servicers:
    """The RPCs of one front end."""

    def __init__(self, engine: Engine, ticker: Ticker, streams: Streams) -> None:
        self._engine, self._ticker, self._streams = engine, ticker, streams
        self.adopt()
        self._fingerprint = self._config.fingerprint()
        self._dims = {feature: table.dim for feature, table in self._collection.table_of.items()}

    def adopt(self) -> None:
        """Takes over the engine's tables, which may have grown."""
        self._config, self._collection = self._engine.config, Collection(self._engine.config)

    def handlers(self) -> tuple[grpc.GenericRpcHandler, ...]:
        """For a gRPC server; not the generated ones, as `codec` serialises lookups and `status` parses requests."""
        return (
            grpc.method_handlers_generic_handler(
                "embershard.v1.EmbeddingService",
                {
                    "Describe": _single(unary(pb.DescribeRequest, self.describe)),
                    "Lookup": _single(unary(pb.LookupRequest, self.lookup)),
                    "LookupStream": _stream(self._streams.of(pb.LookupRequest, self.lookup)),
                    "Update": _single(unary(pb.UpdateRequest, self.update)),
                    "UpdateStream": _stream(self._streams.of(pb.UpdateRequest, self.update)),
                },
            ),
            grpc.method_handlers_generic_handler(
                "embershard.v1.AdminService",
                {
                    "Snapshot": _single(unary(pb.SnapshotRequest, self.snapshot)),
                    "Grow": _single(unary(pb.GrowRequest, self.grow)),
                    "Freeze": _single(unary(pb.FreezeRequest, self.freeze)),
                },
            ),
        )

    async def describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:
        """The collection as it is served."""
        limits, world = self._config.limits, self._engine.world
        return pb.DescribeResponse(
            name=self._config.collection.name,
            fingerprint=self._fingerprint,
            version=self._ticker.version,
            engine=self._engine.name,
            world_size=world.size,
            rank=world.rank,
            tables=describe_tables(self._engine),
            limits=pb.Limits(
                message_bytes=limits.message_bytes,
                ids_per_request=limits.ids_per_request,
                numbers_per_request=limits.numbers_per_request,
            ),
            server_version=embershard.__version__,
        )

    async def lookup(self, request: pb.LookupRequest, context: Context) -> bytes:
        """Vectors for ids; returns a serialised LookupResponse."""
        self._check_fingerprint(request.fingerprint)
        if request.dtype not in codec.DTYPES:
            raise InvalidInput(f"dtype {request.dtype} is unknown to this server; it has FLOAT32 and FLOAT16")
        self._check_features(len(request.features))
        if request.min_version > self._ticker.version:
            # What is asked for may be known only then: a table may have grown.
            await self._do(LookupJob(read=Read.of([], 0), min_version=request.min_version), context)
        read = await self._prepared(self._read, request, request.features)
        job = LookupJob(
            read=read,
            numbers=read.numbers,
            min_version=request.min_version,
            with_counts=request.with_provenance or request.with_counts,
        )
        answer: Answer = await self._do(job, context)
        return codec.encode_answer(
            [part.batch.feature for part in read.parts],
            [_array(vectors, request.dtype) for vectors in answer.vectors],
            [_known(counts, request) for counts in answer.counts],
            answer.version,
        )

    async def update(self, request: pb.UpdateRequest, context: Context) -> pb.UpdateResponse:
        """Gradients or values for ids."""
        self._check_fingerprint(request.fingerprint)
        self._check_features(len(request.updates))
        named = [features for update in request.updates for features in (update.batch, update.parents)]
        change = await self._prepared(self._change, request, named)
        job = UpdateJob(change=change, numbers=change.numbers)
        return pb.UpdateResponse(version=await self._do(job, context))

    async def snapshot(self, request: pb.SnapshotRequest, context: Context) -> pb.SnapshotResponse:
        """A snapshot on the server's disk."""
        made: Snapshot
        made, _ = await self._do(ActionJob(action="snapshot"), context)
        return pb.SnapshotResponse(version=made.version, path=str(made.path), bytes=made.bytes)

    async def grow(self, request: pb.GrowRequest, context: Context) -> pb.GrowResponse:
        """More rows for a table."""
        self._check_fingerprint(request.fingerprint)
        growth = await self._prepared(self._growth, request, [request.mean_of])
        (pause_ms, rows), version = await self._do(ActionJob(action="grow", request=growth), context)
        return pb.GrowResponse(version=version, rows=rows, pause_ms=pause_ms)

    async def freeze(self, request: pb.FreezeRequest, context: Context) -> pb.FreezeResponse:
        """Rows that stay as they are."""
        self._check_fingerprint(request.fingerprint)
        batch = await self._prepared(lambda asked: self._ids(asked.batch), request, [request.batch])
        rows, version = await self._do(ActionJob(action="freeze", request=(batch, not request.thaw)), context)
        return pb.FreezeResponse(version=version, rows=rows)

    async def _do(self, job: Job, context: Context) -> Any:
        """Queues a job, with the caller's deadline or the configured wait; a caller that goes away cancels it."""
        remaining_s = context.time_remaining()
        wait_s = self._config.limits.wait_ms / 1000 if remaining_s is None else remaining_s
        job.deadline = time.monotonic() + wait_s
        return await asyncio.wrap_future(self._ticker.submit(job))

    def _check_features(self, count: int) -> None:
        """Before anything is made of a request: a few bytes can name millions of features."""
        if count > len(self._dims):
            raise InvalidInput(f"{count:,} features are more than the collection's {len(self._dims):,}")

    def _check_fingerprint(self, expected: str) -> None:
        if expected and expected != self._fingerprint:
            raise FingerprintMismatch(
                f"this is collection {self._config.collection.name!r} with fingerprint {self._fingerprint}, and the "
                f"request expects {expected!r}: the tables, id kinds or seeds differ; Describe tells what is here"
            )

    async def _prepared(
        self, prepare: Callable[[Any], _Work], request: Any, features: Sequence[pb.FeatureIds]
    ) -> _Work:
        """Decodes and checks a request; a large one on another thread, so that small ones needn't wait."""
        ids = sum(len(feature.ids) // 8 + len(feature.keys) for feature in features)
        self._collection.check_ids(ids)
        return prepare(request) if ids < SMALL else await asyncio.to_thread(prepare, request)

    def _read(self, request: pb.LookupRequest) -> Read:
        read = self._collection.read([codec.decode_batch(feature) for feature in request.features])
        size = codec.answer_bytes([(part.outputs, part.table.dim) for part in read.parts], request.dtype)
        told = 1 * request.with_provenance + 8 * request.with_counts
        size += told * sum(len(part.batch.ids) for part in read.parts)
        most = self._config.limits.message_bytes
        if size > most:
            raise InvalidInput(
                f"the answer would have {size:,} bytes, more than limits.message_bytes = {most:,}; ask for fewer ids "
                "at once"
            )
        return read

    def _change(self, request: pb.UpdateRequest) -> Change:
        return self._collection.change([codec.decode_update(update, self._dims) for update in request.updates])

    def _growth(self, request: pb.GrowRequest) -> Growth:
        table, size = self._config.table(request.table), request.WhichOneof("size")
        if size is None:
            raise InvalidInput(f"table {table.name!r}: say how many rows, or which capacity, it is to have")
        rows = request.rows if size == "rows" else request.capacity + table.rows - table.capacity
        mean_of = self._ids(request.mean_of) if request.WhichOneof("start") == "mean_of" else None
        return Growth(table=table.name, rows=rows, mean=request.mean, mean_of=mean_of)

    def _ids(self, message: pb.FeatureIds) -> FeatureBatch:
        """Ids of a table, nothing else being said of them; what is wrong with them, no rank needs to hear of."""
        batch = codec.decode_batch(message)
        if batch.lengths is not None or batch.weights is not None:
            raise InvalidInput(f"feature {batch.feature!r}: these are single ids; leave out lengths and weights")
        self._collection.read([batch])
        return batch


def _known(counts: IdCounts, request: pb.LookupRequest) -> dict[str, Any]:
    """What the caller wants to know of ids, by the field that tells it."""
    provenance = {"provenance": counts.provenance_N} if request.with_provenance else {}
    return provenance | ({"updates": counts.updates_N, "sightings": counts.sightings_N} if request.with_counts else {})


def _array(vectors_ND: Any, dtype: int) -> Any:
    # A float16 has no number above 65,504: larger ones become infinite, as IEEE 754 says.
    with np.errstate(over="ignore"):
        return vectors_ND.cpu().numpy().astype(codec.DTYPES[dtype], copy=False)


def _serialise(answer: Any) -> bytes:
    """Messages become bytes here, and what `codec` has made stays what it is."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()


def _single(handler: Any) -> Any:
    return grpc.unary_unary_rpc_method_handler(handler, None, _serialise)


def _stream(handler: Any) -> Any:
    return grpc.stream_stream_rpc_method_handler(handler, None, _serialise)
