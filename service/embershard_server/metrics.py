"""What Prometheus is told of a rank: all of it is read when it asks, and nothing of it costs a call anything."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from shutil import disk_usage
from typing import TYPE_CHECKING, Any

import torch
from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

import embershard
from embershard.engine.memory import memory_of_host
from embershard.types import Provenance
from embershard_server.families import Histograms, counter, gauge, histogram
from embershard_server.protection import PLAIN, Protection

if TYPE_CHECKING:
    from prometheus_client.core import Metric

    from embershard_server.readiness import Readiness
    from embershard_server.sources import Sources

Metrics = Iterator["Metric"]


SHARE = 10
"""Making metrics takes this part of the time at most, however often they are asked for: lookups need the rest."""


class Exporter(Collector):
    """Makes the metrics of a rank, from when it starts on; all of them once it has `sources`."""

    def __init__(self, readiness: Readiness, protection: Protection = PLAIN) -> None:
        self._readiness, self._protection = readiness, protection
        self.sources: Sources | None = None
        self._lock, self._next_s = threading.Lock(), 0.0
        self._registry = CollectorRegistry()
        self._registry.register(self)
        ProcessCollector(registry=self._registry)

    def __call__(self, accept: str) -> tuple[str, bytes]:
        """Content type and bytes, in a format that fits an Accept header."""
        try:
            encode, kind = choose_encoder(accept)
        except (TypeError, ValueError):  # it is no such header
            encode, kind = choose_encoder("")
        with self._lock:
            time.sleep(max(0.0, self._next_s - time.monotonic()))
            begin = time.monotonic()
            told = encode(self._registry)
            self._next_s = (end := time.monotonic()) + (SHARE - 1) * (end - begin)
        return kind, told

    def collect(self) -> Metrics:
        """As prometheus_client asks for them."""
        ready = not self._readiness.hindrance
        yield gauge("ready", "Whether lookups are answered, 1 or 0.", [], {(): ready})
        used, there = memory_of_host()
        yield gauge("memory_used_bytes", "Memory that is used on this host or in this container.", [], {(): used})
        yield gauge("memory_limit_bytes", "Memory that this host or container has.", [], {(): there})
        yield from self._secrets()
        if (sources := self.sources) is not None:
            sources.front.settle()
            for of_part in (_about, _calls, _lookups, _queue, _engine, _tables, _vocabularies, _log, _snapshots):
                yield from of_part(sources)

    def _secrets(self) -> Metrics:
        certificates, access = self._protection.certificates, self._protection.access
        if certificates:
            text = "When the server's own certificate expires, in seconds since 1970."
            yield gauge("certificate_expiry_timestamp_seconds", text, [], {(): certificates.expires_s})
        kept = {("certificates",): certificates, ("tokens",): access}
        stale = {files: bool(of_it.problem) for files, of_it in kept.items() if of_it}
        text = "Whether files have changed and can't be used, so that what they had before holds, 1 or 0."
        yield gauge("stale_files", text, ["files"], stale)


def _about(sources: Sources) -> Metrics:
    engine = sources.replica.engine
    about = {
        "version": embershard.__version__,
        "collection": engine.config.collection.name,
        "fingerprint": engine.config.fingerprint(),
        "engine": engine.name,
        "rank": str(engine.world.rank),
        "world_size": str(engine.world.size),
    }
    yield gauge("build_info", "What serves what, as labels; always 1.", [*about], {tuple(about.values()): 1})
    yield gauge("version", "The version that lookups read.", [], {(): sources.ticker.version})
    if engine.world.device.type == "cuda":
        free, there = torch.cuda.mem_get_info(engine.world.device)
        yield gauge("device_memory_used_bytes", "Memory that is used on the rank's GPU.", [], {(): there - free})
        yield gauge("device_memory_limit_bytes", "Memory that the rank's GPU has.", [], {(): there})


def _calls(sources: Sources) -> Metrics:
    rpcs, gate, limits = sources.front.rpcs, sources.gate, sources.replica.engine.config.limits
    calls = {(rpc, *key): count for rpc, of_it in rpcs.items() for key, count in [*of_it.calls.items()]}
    labels = ["rpc", "code", "identity"]
    yield counter("calls", "Calls that have ended, by gRPC status and who called; a stream is one.", labels, calls)
    waits = {(rpc,): of_it.waits for rpc, of_it in rpcs.items()}
    yield histogram(
        "call_wait_seconds",
        "From a single call's start until its message was there; answered ones only.",
        ["rpc"],
        waits,
    )
    seconds = {(rpc,): of_it.seconds for rpc, of_it in rpcs.items()}
    yield histogram("call_seconds", "From when a message was there until its answer was made.", ["rpc"], seconds)
    received = {(rpc,): of_it.received for rpc, of_it in rpcs.items()}
    yield counter("received_bytes", "Bytes of messages that have come.", ["rpc"], received)
    sent = {(rpc,): of_it.sent for rpc, of_it in rpcs.items()}
    yield counter("sent_bytes", "Bytes of answers.", ["rpc"], sent)
    refused = {(reason,): count for reason, count in [*sources.front.refused.items()]}
    yield counter("refused_calls", "Calls that were refused as a bound was reached, by which.", ["reason"], refused)
    yield gauge("calls_in_flight", "Calls that there are now.", [], {(): gate.calls})
    yield gauge("calls_limit", "Calls that there may be at once: limits.calls.", [], {(): limits.calls})
    yield gauge("held_bytes", "Memory that requests and answers hold now.", [], {(): gate.held})
    most = limits.in_flight_messages * limits.message_bytes
    yield gauge("held_limit_bytes", "Memory that requests and answers may hold at once.", [], {(): most})


def _lookups(sources: Sources) -> Metrics:
    front = sources.front
    stages: Histograms = {(stage,): seconds for stage, seconds in front.stages.items()}
    yield histogram("lookup_stage_seconds", "Stages of lookups; without a tick there is no queue.", ["stage"], stages)
    ids = {(rpc, feature): count for rpc, of_it in front.rpcs.items() for feature, count in [*of_it.ids.items()]}
    yield counter("ids", "Ids that were looked up or updated.", ["rpc", "feature"], ids)
    rows = {(rpc,): of_it.rows for rpc, of_it in front.rpcs.items() if rpc.startswith("Lookup")}
    yield counter("rows", "Vectors that were answered.", ["rpc"], rows)
    examined = {
        (feature, kind.name.lower()): counts[kind]
        for feature, counts in [*front.examined.items()]
        for kind in Provenance
    }
    yield counter(
        "examined_ids",
        "Ids of the lookups that were examined, one in --provenance-every, by where their vectors came from.",
        ["feature", "provenance"],
        examined,
    )
    yield histogram("pulse_seconds", "Lookups of nothing by which readiness is told.", [], {(): front.pulses})


def _queue(sources: Sources) -> Metrics:
    waiting, limits = sources.ticker.queue.waiting, sources.replica.engine.config.limits
    requests = {(lane,): count for lane, (count, _) in waiting.items()}
    yield gauge("queued_requests", "Requests that wait for a tick now.", ["lane"], requests)
    numbers = {(lane,): count for lane, (_, count) in waiting.items()}
    yield gauge("queued_numbers", "Numbers that the requests touch that wait now.", ["lane"], numbers)
    yield gauge("queued_requests_limit", "Requests that may wait in a lane.", [], {(): limits.queued_requests})
    yield gauge("queued_numbers_limit", "Numbers that those in a lane may touch.", [], {(): limits.queued_numbers})


def _engine(sources: Sources) -> Metrics:
    meters = sources.replica.meters
    yield histogram("tick_seconds", "Ticks of the engine.", [], {(): meters.ticks})
    stages: Histograms = {("queue",): meters.queued, ("log",): meters.logged, ("apply",): meters.applied}
    yield histogram("update_stage_seconds", "Stages of whatever changes tables.", ["stage"], stages)
    entries = {(kind,): count for kind, count in [*meters.entries.items()]}
    yield counter("entries", "Changes of all ranks that were applied, by kind.", ["kind"], entries)


def _tables(sources: Sources) -> Metrics:
    engine = sources.replica.engine
    sizes = {(table, "rows"): size / engine.world.size for table, size in engine.table_bytes().items()}
    sizes |= {(table, "vocabulary"): vocabulary.bytes for table, vocabulary in engine.vocabularies.items()}
    text = "Memory of a table on this rank: its rows with optimizer state, and its vocabulary, strings aside."
    yield gauge("table_bytes", text, ["table", "part"], sizes)
    rows = {(table.name,): table.rows for table in engine.config.tables}
    yield gauge("table_rows", "Rows of a table, over all ranks.", ["table"], rows)


def _vocabularies(sources: Sources) -> Metrics:
    vocabularies = sources.replica.engine.vocabularies
    texts = {
        "admitted": "Times that an id was given a row of its own, ever.",
        "evicted": "Times that an id lost its row to one that was sighted more often, ever.",
        "expired": "Times that an id lost its row because its time to live was over, ever.",
        "rejected": "Times that an update named an id that was sighted often enough, and there was no room, ever.",
    }
    counts: dict[str, dict[str, Any]] = {table: asdict(of_it.counts) for table, of_it in vocabularies.items()}
    for name, text in texts.items():
        found = {(table,): of_it[name] for table, of_it in counts.items()}
        yield counter(f"vocabulary_{name}", text, ["table"], found)
    answered = {(table, kind): of_it[kind] for table, of_it in counts.items() for kind in ("own", "fallback")}
    text = "Ids that lookups found in a row of their own, or that were answered by hashing."
    yield counter("vocabulary_answered_ids", text, ["table", "row"], answered)
    ids = {(table,): len(vocabulary) for table, vocabulary in vocabularies.items()}
    yield gauge("vocabulary_ids", "Ids that own a row.", ["table"], ids)
    capacity = {(table,): vocabulary.capacity for table, vocabulary in vocabularies.items()}
    yield gauge("vocabulary_capacity_ids", "Ids that may own a row.", ["table"], capacity)


def _log(sources: Sources) -> Metrics:
    limit_s = sources.replica.engine.config.durability.replay_s
    replay_s = max(sources.versions.replay_s, 0.0)
    yield gauge("replay_seconds", "How long a start now would take for the update log, about.", [], {(): replay_s})
    yield gauge("replay_limit_seconds", "From where on a snapshot is written: durability.replay_s.", [], {(): limit_s})
    if (log := sources.log) is None:
        return
    yield histogram("log_append_seconds", "Batches that were written to the update log.", [], {(): log.meters.appends})
    yield counter("log_appended_bytes", "Bytes of requests in the update log.", [], {(): log.meters.bytes})
    yield counter("log_failures", "Batches that couldn't be written to the update log.", [], {(): log.meters.failures})
    yield gauge("log_bytes", "What the update log takes on the disk.", [], {(): log.size()})
    free = disk_usage(log.folder.parent).free
    yield gauge("data_dir_free_bytes", "What is free on the disk of the data directory.", [], {(): free})


def _snapshots(sources: Sources) -> Metrics:
    written, loads, published = sources.versions.meters, sources.loads.meters, sources.publications.meters
    yield histogram("snapshot_seconds", "Snapshots that were written.", [], {(): written.seconds})
    yield counter("snapshot_failures", "Snapshots that couldn't be written.", [], {(): written.failures})
    yield gauge("snapshot_bytes", "The newest snapshot, on the disk.", [], {(): written.bytes})
    yield gauge("snapshot_version", "Version of the newest snapshot; 0: there is none.", [], {(): written.version})
    text = "When the newest snapshot was complete, in seconds since 1970; 0: there is none."
    yield gauge("snapshot_last_success_timestamp_seconds", text, [], {(): written.last_s})
    yield histogram("load_seconds", "Snapshots that were loaded beside what is served.", [], {(): loads.seconds})
    yield counter("load_failures", "Snapshots that couldn't be loaded.", [], {(): loads.failures})
    loaded = len(sources.replica.loaded)
    yield gauge("loaded_snapshots", "Snapshots in memory beside what is served.", [], {(): loaded})
    text = "Publications that this rank was asked to serve, until they were."
    yield histogram("publication_seconds", text, [], {(): published.seconds})
    yield counter("publication_failures", "Publications that couldn't be served.", [], {(): published.failures})
