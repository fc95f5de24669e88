"""What each RPC does: decode, check, look up at once or queue for the tick, encode."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any, TypeVar

import embershard
from embershard import codec
from embershard.collection import Collection, Read
from embershard.engine.clients import check_identity
from embershard.engine.entries import Kind, activation_entry, freeze_entry, growth_entry, update_entry
from embershard.engine.jobs import Answer, EntryJob, Job, LookupJob
from embershard.errors import FingerprintMismatch, InvalidInput, SequenceGap
from embershard.v1 import embershard_pb2 as pb
from embershard_server.answers import answer_bytes, encoded
from embershard_server.call import ANSWER_COPIES
from embershard_server.describe import describe_published, describe_tables

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from embershard.engine.entries import Entry
    from embershard.engine.replica import Activation, Grown, Outcome, Replica
    from embershard.engine.tick import Ticker
    from embershard.meters import FrontMeters
    from embershard_server.call import Call
    from embershard_server.gate import Gate
    from embershard_server.growths import Growths
    from embershard_server.loads import Loads
    from embershard_server.publications import Publications
    from embershard_server.versions import Versions

SMALL = 20_000
"""Requests with fewer ids are prepared where they arrive: that takes less than changing threads for long."""

FEW, LITTLE = 32, 2**20
"""While there are so few calls, lookups of so few numbers are answered where they arrive: changing threads is dearer.
Others wait in the queue: there, callers take turns, and what would wait for too long is refused."""

_Work = TypeVar("_Work")


class Servicers:
    """The RPCs of one front end."""

    def __init__(
        self,
        replica: Replica,
        ticker: Ticker,
        versions: Versions,
        loads: Loads,
        growths: Growths,
        publications: Publications,
        gate: Gate,
        meters: FrontMeters,
    ) -> None:
        self._replica, self._ticker, self._gate, self._meters = replica, ticker, gate, meters
        self._versions, self._loads, self._growths, self._publications = versions, loads, growths, publications
        self._limits = replica.engine.config.limits
        self._fingerprint = replica.engine.config.fingerprint()

    async def describe(self, request: pb.DescribeRequest, call: Call) -> pb.DescribeResponse:
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
            published=describe_published(engine),
        )

    async def lookup(self, request: pb.LookupRequest, call: Call) -> bytes:
        """Vectors for ids; returns a serialised LookupResponse."""
        self._check_fingerprint(request.fingerprint)
        if request.dtype not in codec.DTYPES:
            raise InvalidInput(f"dtype {request.dtype} is unknown to this server; it has FLOAT32, FLOAT16 and INT8")
        self._check_features(len(request.features))
        if request.pinned_version and request.min_version:
            raise InvalidInput("a pinned version never changes: leave min_version out, or pinned_version")
        if request.min_version > self._ticker.version:
            # What is asked for may be known only then: a table may have grown.
            await self._do(LookupJob(read=Read(parts=[], numbers=0), min_version=request.min_version), call)
        collection = self._collection_of(request.pinned_version)
        batches = [codec.decode_batch(feature) for feature in request.features]
        ids = sum([len(batch.ids) for batch in batches])
        options = {"as_stored": request.dtype == pb.D_TYPE_INT8, "with_counts": request.with_counts}
        read = await self._prepared(ids, lambda: collection.read(batches, **options), call)
        call.spend(max(0, sum([part.outputs for part in read.parts]) - ids))  # of bags without ids
        call.hold(ANSWER_COPIES * self._checked_size(read, request))
        prepared_s, examined = time.monotonic(), not request.pinned_version and self._meters.examines()
        answer, begun_s = await self._answer(read, request, call, with_counts=examined)
        call.watch.looked_up(read, answer.counts if examined else None, prepared_s, begun_s)
        return encoded(read, answer, request)

    async def _answer(
        self, read: Read, request: pb.LookupRequest, call: Call, *, with_counts: bool
    ) -> tuple[Answer, float]:
        """Looks up at once if that can be, and else in a tick; also tells when that began it, in `time.monotonic()`
        seconds, or 0."""
        min_version, with_counts = request.min_version, with_counts or request.with_provenance or request.with_counts
        if not request.pinned_version and self._gate.calls <= FEW and read.numbers <= LITTLE:
            at_once = self._ticker.answer(read, min_version=min_version, with_counts=with_counts)
            if at_once is not None:
                return at_once, 0.0
        job = LookupJob(
            read=read,
            numbers=read.numbers,
            min_version=min_version,
            with_counts=with_counts,
            pinned=request.pinned_version,
        )
        answer: Answer = await self._do(job, call)
        return answer, job.begun_s

    async def update(self, request: pb.UpdateRequest, call: Call) -> pb.UpdateResponse:
        """Gradients or values for ids."""
        self._check_fingerprint(request.fingerprint)
        self._check_features(len(request.updates))
        if (version := self._repeated(request)) is not None:
            return pb.UpdateResponse(version=version, duplicate=True)
        named = [features for update in request.updates for features in (update.batch, update.parents)]
        entry = await self._prepared(_ids(named), lambda: update_entry(self._ticker.collection, request), call)
        outcome = await self._apply(entry, call)
        call.watch.updated({update.batch.feature: _ids([update.batch]) for update in request.updates})
        return pb.UpdateResponse(version=outcome.version, duplicate=outcome.duplicate)

    async def snapshot(self, request: pb.SnapshotRequest, call: Call) -> pb.SnapshotResponse:
        """A snapshot on the server's disk."""
        made = await self._versions.snapshot()
        return pb.SnapshotResponse(version=made.version, path=str(made.path), bytes=made.bytes)

    async def grow(self, request: pb.GrowRequest, call: Call) -> pb.GrowResponse:
        """More rows for a table."""
        self._check_fingerprint(request.fingerprint)
        entry = await self._prepared(
            _ids([request.mean_of]), lambda: growth_entry(self._ticker.collection, request), call
        )
        outcome = await self._growths.grow(entry.body, lambda: self._apply(entry, call))
        grown: Grown = outcome.value
        return pb.GrowResponse(version=outcome.version, rows=grown.rows, pause_ms=grown.pause_ms)

    async def freeze(self, request: pb.FreezeRequest, call: Call) -> pb.FreezeResponse:
        """Rows that stay as they are."""
        self._check_fingerprint(request.fingerprint)
        entry = await self._prepared(
            _ids([request.batch]), lambda: freeze_entry(self._ticker.collection, request), call
        )
        outcome = await self._apply(entry, call)
        return pb.FreezeResponse(version=outcome.version, rows=outcome.value)

    async def list_versions(self, request: pb.ListVersionsRequest, call: Call) -> pb.ListVersionsResponse:
        """What may be activated or pinned."""
        return pb.ListVersionsResponse(versions=await asyncio.to_thread(self._versions.versions))

    async def load(self, request: pb.LoadRequest, call: Call) -> pb.LoadResponse:
        """A snapshot in memory, or out of it."""
        await (self._loads.unload if request.unload else self._loads.load)(request.version)
        return pb.LoadResponse(version=request.version)

    async def activate(self, request: pb.ActivateRequest, call: Call) -> pb.ActivateResponse:
        """The tables of a snapshot."""
        self._check_fingerprint(request.fingerprint)
        return await self._activate(Kind.ACTIVATE, request.version, call)

    async def rollback(self, request: pb.RollbackRequest, call: Call) -> pb.ActivateResponse:
        """What was served before."""
        self._check_fingerprint(request.fingerprint)
        if not (before := self._replica.before):
            raise InvalidInput(
                "there is nothing to roll back to: nothing was activated or published in full since the last rollback"
            )
        return await self._activate(Kind.ROLLBACK, before, call)

    async def stage(self, request: pb.StageRequest, call: Call) -> pb.StageResponse:
        """A piece of a file of a publication."""
        return pb.StageResponse(bytes=await self._publications.stage(request))

    async def publish(self, request: pb.PublishRequest, call: Call) -> pb.PublishResponse:
        """What a training job has made."""
        return await self._publications.publish(request, lambda entry: self._apply(entry, call))

    async def _activate(self, kind: Kind, version: int, call: Call) -> pb.ActivateResponse:
        await self._loads.load(version)
        outcome = await self._apply(activation_entry(kind, version), call)
        activation: Activation = outcome.value
        return pb.ActivateResponse(version=outcome.version, activated=version, before=activation.before)

    async def _apply(self, entry: Entry, call: Call) -> Outcome:
        outcome: Outcome = await self._do(EntryJob(entry=entry, numbers=entry.numbers), call)
        return outcome

    async def _do(self, job: Job, call: Call) -> Any:
        """Queues a job, with the caller's deadline or the configured wait; a caller that goes away cancels it."""
        job.deadline, job.caller = call.deadline, call.peer
        return await asyncio.wrap_future(self._ticker.submit(job))

    def _repeated(self, request: pb.UpdateRequest) -> int | None:
        """The version that has an update already, whatever the tables are now; that it can't come yet, others tell."""
        check_identity(request.client_id, request.sequence)
        with suppress(SequenceGap):
            return self._replica.clients.version_of(request.client_id, request.sequence)
        return None

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
            raise InvalidInput(
                f"version {pinned:,} isn't loaded (what is activated isn't any more); `embershard load {pinned}` does "
                f"that; loaded: {loaded}"
            )
        return Collection(engine.config)

    async def _prepared(self, ids: int, prepare: Callable[[], _Work], call: Call) -> _Work:
        """Checks a request of so many ids; a large one on another thread, so that small ones needn't wait."""
        self._ticker.collection.check_ids(ids)
        call.spend(ids)
        return prepare() if ids < SMALL else await asyncio.to_thread(prepare)

    def _checked_size(self, read: Read, request: pb.LookupRequest) -> int:
        """Bytes of the answer, if they aren't too many."""
        size, most = answer_bytes(read, request), self._limits.message_bytes
        if size > most:
            raise InvalidInput(
                f"the answer would have {size:,} bytes, more than limits.message_bytes = {most:,}; ask for fewer ids "
                "at once"
            )
        return size


def _ids(features: Sequence[pb.FeatureIds]) -> int:
    """How many ids there are."""
    return sum(len(feature.ids) // 8 + len(feature.keys) for feature in features)
