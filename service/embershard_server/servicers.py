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
from embershard.engine.entries import Kind, activation_entry, freeze_entry, growth_entry, update_entry
from embershard.engine.jobs import Answer, EntryJob, Job, LookupJob
from embershard.errors import FingerprintMismatch, InvalidInput
from embershard.v1 import embershard_pb2 as pb
from embershard_server.describe import describe_tables
from embershard_server.status import Context, unary

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from embershard.collection import IdCounts
    from embershard.engine.entries import Entry
    from embershard.engine.replica import Activation, Grown, Outcome, Replica
    from embershard.engine.tick import Ticker
    from embershard_server.streams import Streams
    from embershard_server.versions import Versions

SMALL = 20_000
"""Requests with fewer ids are prepared where they arrive: that takes less than changing threads for long."""

_Work = TypeVar("_Work")


class Servicers:
    """The RPCs of one front end."""

    def __init__(self, replica: Replica, ticker: Ticker, versions: Versions, streams: Streams) -> None:
        self._replica, self._ticker, self._versions, self._streams = replica, ticker, versions, streams
        self._limits = replica.engine.config.limits
        self._fingerprint = replica.engine.config.fingerprint()

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
                    "ListVersions": _single(unary(pb.ListVersionsRequest, self.list_versions)),
                    "Load": _single(unary(pb.LoadRequest, self.load)),
                    "Activate": _single(unary(pb.ActivateRequest, self.activate)),
                    "Rollback": _single(unary(pb.RollbackRequest, self.rollback)),
                },
            ),
        )

    async def describe(self, request: pb.DescribeRequest, context: Context) -> pb.DescribeResponse:
        """The collection as it is served."""
        engine, limits = self._replica.engine, self._limits
        return pb.DescribeResponse(
            name=engine.config.collection.name,
            fingerprint=self._fingerprint,
            version=self._ticker.version,
            engine=engine.name,
            world_size=engine.world.size,
            rank=engine.world.rank,
            tables=describe_tables(engine),
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
        if request.pinned_version and request.min_version:
            raise InvalidInput("a pinned version never changes: leave min_version out, or pinned_version")
        if request.min_version > self._ticker.version:
            # What is asked for may be known only then: a table may have grown.
            await self._do(LookupJob(read=Read.of([], 0), min_version=request.min_version), context)
        collection = self._collection_of(request.pinned_version)
        read = await self._prepared(lambda: self._read(collection, request), request.features)
        job = LookupJob(
            read=read,
            numbers=read.numbers,
            min_version=request.min_version,
            with_counts=request.with_provenance or request.with_counts,
            pinned=request.pinned_version,
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
        entry = await self._prepared(lambda: update_entry(self._ticker.collection, request), named)
        outcome = await self._apply(entry, context)
        return pb.UpdateResponse(version=outcome.version, duplicate=outcome.duplicate)

    async def snapshot(self, request: pb.SnapshotRequest, context: Context) -> pb.SnapshotResponse:
        """A snapshot on the server's disk."""
        made = await self._versions.snapshot()
        return pb.SnapshotResponse(version=made.version, path=str(made.path), bytes=made.bytes)

    async def grow(self, request: pb.GrowRequest, context: Context) -> pb.GrowResponse:
        """More rows for a table."""
        self._check_fingerprint(request.fingerprint)
        entry = await self._prepared(lambda: growth_entry(self._ticker.collection, request), [request.mean_of])
        outcome = await self._apply(entry, context)
        grown: Grown = outcome.value
        return pb.GrowResponse(version=outcome.version, rows=grown.rows, pause_ms=grown.pause_ms)

    async def freeze(self, request: pb.FreezeRequest, context: Context) -> pb.FreezeResponse:
        """Rows that stay as they are."""
        self._check_fingerprint(request.fingerprint)
        entry = await self._prepared(lambda: freeze_entry(self._ticker.collection, request), [request.batch])
        outcome = await self._apply(entry, context)
        return pb.FreezeResponse(version=outcome.version, rows=outcome.value)

    async def list_versions(self, request: pb.ListVersionsRequest, context: Context) -> pb.ListVersionsResponse:
        """What may be activated or pinned."""
        return pb.ListVersionsResponse(versions=await asyncio.to_thread(self._versions.versions))

    async def load(self, request: pb.LoadRequest, context: Context) -> pb.LoadResponse:
        """A snapshot in memory, or out of it."""
        await (self._versions.unload if request.unload else self._versions.load)(request.version)
        return pb.LoadResponse(version=request.version)

    async def activate(self, request: pb.ActivateRequest, context: Context) -> pb.ActivateResponse:
        """The tables of a snapshot."""
        self._check_fingerprint(request.fingerprint)
        return await self._activate(Kind.ACTIVATE, request.version, context)

    async def rollback(self, request: pb.RollbackRequest, context: Context) -> pb.ActivateResponse:
        """What was served before."""
        self._check_fingerprint(request.fingerprint)
        if not (before := self._replica.before):
            raise InvalidInput("there is nothing to roll back to: no snapshot was activated since the last rollback")
        return await self._activate(Kind.ROLLBACK, before, context)

    async def _activate(self, kind: Kind, version: int, context: Context) -> pb.ActivateResponse:
        await self._versions.load(version)
        outcome = await self._apply(activation_entry(kind, version), context)
        activation: Activation = outcome.value
        return pb.ActivateResponse(version=outcome.version, activated=version, before=activation.before)

    async def _apply(self, entry: Entry, context: Context) -> Outcome:
        outcome: Outcome = await self._do(EntryJob(entry=entry, numbers=entry.numbers), context)
        return outcome

    async def _do(self, job: Job, context: Context) -> Any:
        """Queues a job, with the caller's deadline or the configured wait; a caller that goes away cancels it."""
        remaining_s = context.time_remaining()
        wait_s = self._limits.wait_ms / 1000 if remaining_s is None else remaining_s
        job.deadline = time.monotonic() + wait_s
        return await asyncio.wrap_future(self._ticker.submit(job))

    def _check_features(self, count: int) -> None:
        """Before anything is made of a request: a few bytes can name millions of features."""
        features = self._ticker.collection.table_of
        if count > len(features):
            raise InvalidInput(f"{count:,} features are more than the collection's {len(features):,}")

    def _check_fingerprint(self, expected: str) -> None:
        if expected and expected != self._fingerprint:
            name = self._replica.engine.config.collection.name
            raise FingerprintMismatch(
                f"this is collection {name!r} with fingerprint {self._fingerprint}, and the request expects "
                f"{expected!r}: the tables, id kinds or seeds differ; Describe tells what is here"
            )

    def _collection_of(self, pinned: int) -> Collection:
        """What a lookup is checked against: the tables that are served, or those of a loaded snapshot."""
        if not pinned:
            return self._ticker.collection
        if (engine := self._replica.loaded.get(pinned)) is None:
            loaded = ", ".join(f"{version:,}" for version in sorted(self._replica.loaded)) or "none"
            raise InvalidInput(f"version {pinned:,} isn't loaded; AdminService.Load does that; loaded: {loaded}")
        return Collection(engine.config)

    async def _prepared(self, prepare: Callable[[], _Work], features: Sequence[pb.FeatureIds]) -> _Work:
        """Decodes and checks a request; a large one on another thread, so that small ones needn't wait."""
        ids = sum(len(feature.ids) // 8 + len(feature.keys) for feature in features)
        self._ticker.collection.check_ids(ids)
        return prepare() if ids < SMALL else await asyncio.to_thread(prepare)

    def _read(self, collection: Collection, request: pb.LookupRequest) -> Read:
        read = collection.read([codec.decode_batch(feature) for feature in request.features])
        size = codec.answer_bytes([(part.outputs, part.table.dim) for part in read.parts], request.dtype)
        told = 1 * request.with_provenance + 8 * request.with_counts
        size += told * sum(len(part.batch.ids) for part in read.parts)
        most = self._limits.message_bytes
        if size > most:
            raise InvalidInput(
                f"the answer would have {size:,} bytes, more than limits.message_bytes = {most:,}; ask for fewer ids "
                "at once"
            )
        return read


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
