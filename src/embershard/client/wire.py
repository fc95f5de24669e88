"""What both clients share, which is everything but the waiting: requests, channel options, errors."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, BinaryIO

import grpc
import grpc.aio

from embershard import codec
from embershard.client.connecting import explained
from embershard.errors import ERROR_BY_STATUS, InternalError, InvalidInput, Overloaded, Unavailable
from embershard.types import FeatureBatch, check_mapping, updates_of
from embershard.v1 import embershard_pb2 as pb
from embershard.v1 import embershard_pb2_grpc as rpc

Features = Mapping[str, object]
"""{feature: ids}, {feature: (ids, lengths)} or {feature: (ids, lengths, weights)}; see `FeatureBatch.of`."""

KEEPALIVE_S = 30
"""How often a connection with calls in flight is checked; the server allows it."""
TIMEOUT_S = 10.0
"""Deadline of a call that doesn't give its own."""

PIECE_BYTES = 2**18
"""Of a file that is staged, in one message: lookups wait behind each."""

_RETRY = {
    "maxAttempts": 5,
    "initialBackoff": "0.1s",
    "maxBackoff": "2s",
    "backoffMultiplier": 2,
    "retryableStatusCodes": ["UNAVAILABLE"],
}
_PLAIN = {"Deadline Exceeded": "no answer came within the deadline"}
"""What gRPC says by itself, in plainer words."""
_REPEATABLE = ("Describe", "Lookup")
"""Calls that gRPC repeats with backoff while the service is unavailable: they change nothing. An Update is repeated by
`delivery`."""


def checked_target(target: str) -> str:
    """The address of a front end, HOST:PORT (or any name that gRPC resolves, such as unix:PATH and dns:///HOST:PORT)."""
    _, colon, port = target.rpartition(":")
    if (
        "http" in target.partition("://")[0]
        or not colon
        or not port.isascii()
        or (port.isdigit() and not 0 < int(port) < 65536)
    ):
        raise InvalidInput(f"target {target!r} is not HOST:PORT, with a port from 1 to 65535")
    return target


def embedding_stub(channel: Any) -> Any:
    """The calls of a channel, of either kind; answers of lookups stay bytes, which `codec` views."""
    stub = rpc.EmbeddingServiceStub(channel)
    for name, kind in (("Lookup", channel.unary_unary), ("LookupStream", channel.stream_stream)):
        path = f"/embershard.v1.EmbeddingService/{name}"
        setattr(stub, name, kind(path, request_serializer=pb.LookupRequest.SerializeToString))
    return stub


def channel_options() -> list[tuple[str, Any]]:
    """Options of a channel to the service; how large a message may be is the server's to say."""
    names = [{"service": "embershard.v1.EmbeddingService", "method": method} for method in _REPEATABLE]
    return [
        ("grpc.max_receive_message_length", -1),
        ("grpc.max_send_message_length", -1),
        # What is larger than the buffer isn't repeated, and gRPC's own is 256 KiB: 32,000 ids.
        ("grpc.per_rpc_retry_buffer_size", 64 * 2**20),
        # A server that has gone without a word is noticed, also by a stream that has no deadline.
        ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
        ("grpc.keepalive_timeout_ms", 10_000),
        # A server that starts again is found within a second; gRPC's own would not look for up to two minutes.
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 1000),
        ("grpc.service_config", json.dumps({"methodConfig": [{"name": names, "retryPolicy": _RETRY}]})),
    ]


def lookup_request(
    features: Features,
    *,
    dtype: str = "float32",
    min_version: int = 0,
    fingerprint: str = "",
    with_provenance: bool = False,
    with_counts: bool = False,
    pinned_version: int = 0,
) -> pb.LookupRequest:
    """Checks what the user gave, and builds the message.

    Raises:
        InvalidInput: before anything is sent.
    """
    if dtype not in codec.DTYPE_BY_NAME:
        raise InvalidInput(f"dtype {dtype!r} is not one of {', '.join(codec.DTYPE_BY_NAME)}")
    check_mapping(features, "features")
    batches = [codec.encode_batch(FeatureBatch.of(feature, ids)) for feature, ids in features.items()]
    with _sendable(f"min_version {min_version!r}, pinned_version {pinned_version!r} or fingerprint {fingerprint!r}"):
        return pb.LookupRequest(
            features=batches,
            dtype=codec.DTYPE_BY_NAME[dtype],
            min_version=min_version,
            fingerprint=fingerprint,
            with_provenance=with_provenance,
            with_counts=with_counts,
            pinned_version=pinned_version,
        )


def update_request(
    features: Features,
    *,
    gradients: Mapping[str, object] | None = None,
    values: Mapping[str, object] | None = None,
    parents: Mapping[str, object] | None = None,
    fingerprint: str = "",
    identity: tuple[str, int] | None = None,
) -> pb.UpdateRequest:
    """Checks what the user gave, and builds the message.

    Raises:
        InvalidInput: before anything is sent.
    """
    updates = updates_of(features, gradients=gradients, values=values, parents=parents)
    messages = [codec.encode_update(update) for update in updates]
    client_id, sequence = identity or ("", 0)
    with _sendable(f"identity {identity!r} or fingerprint {fingerprint!r}"):
        return pb.UpdateRequest(updates=messages, fingerprint=fingerprint, client_id=client_id, sequence=sequence)


def grow_request(
    table: str, *, rows: int | None, capacity: int | None, mean: bool, mean_of: Features | None
) -> pb.GrowRequest:
    """Checks what the user gave, and builds the message.

    Raises:
        InvalidInput: before anything is sent.
    """
    if (rows is None) == (capacity is None):
        raise InvalidInput("say how many rows the table is to have, or which capacity: one of the two")
    size = {"rows": rows} if capacity is None else {"capacity": capacity}
    if mean_of is not None and len(mean_of) != 1:
        raise InvalidInput("mean_of is {feature: ids} with one feature of the table")
    if mean and mean_of:
        raise InvalidInput("new rows start as the mean of all rows, or of those of some ids, not both")
    batches = [codec.encode_batch(FeatureBatch.of(feature, ids)) for feature, ids in (mean_of or {}).items()]
    start = {"mean": True} if mean else {"mean_of": batches[0]} if batches else {}
    with _sendable(str(size)):
        return pb.GrowRequest(table=table, **start, **size)


def freeze_request(features: Features, *, thaw: bool) -> pb.FreezeRequest:
    """Checks what the user gave, and builds the message.

    Raises:
        InvalidInput: before anything is sent.
    """
    check_mapping(features, "features")
    if len(features) != 1:
        raise InvalidInput("freeze the ids of one feature at a time: {feature: ids}")
    ((feature, ids),) = features.items()
    return pb.FreezeRequest(batch=codec.encode_batch(FeatureBatch.of(feature, ids)), thaw=thaw)


def load_request(version: int, *, unload: bool) -> pb.LoadRequest:
    """Checks what the user gave, and builds the message.

    Raises:
        InvalidInput: before anything is sent.
    """
    with _sendable(f"version {version!r}"):
        return pb.LoadRequest(version=version, unload=unload)


def activate_request(version: int, *, fingerprint: str) -> pb.ActivateRequest:
    """Likewise."""
    with _sendable(f"version {version!r} or fingerprint {fingerprint!r}"):
        return pb.ActivateRequest(version=version, fingerprint=fingerprint)


def stage_requests(
    publisher: str,
    number: int,
    file: str,
    source: BinaryIO | None = None,
    there: int = 0,
    piece_bytes: int = PIECE_BYTES,
) -> Iterator[pb.StageRequest]:
    """What is left of a file after what is there, in pieces, and then the question how much of it is.

    Raises:
        InvalidInput: before anything is sent.
    """
    with _sendable(f"publisher {publisher!r}, number {number!r} or file {file!r}"):
        asked = pb.StageRequest(publisher=publisher, number=number, file=file)
    return _pieces(asked, source, there, piece_bytes)


def _pieces(asked: pb.StageRequest, source: BinaryIO | None, there: int, size: int) -> Iterator[pb.StageRequest]:
    if source is not None:
        if there > source.seek(0, os.SEEK_END):  # it is of another file: begin anew
            there = 0
        source.seek(there)
        while data := source.read(size):
            piece = pb.StageRequest(offset=there, data=data)
            piece.MergeFrom(asked)
            yield piece
            there += len(data)
    yield asked


@contextmanager
def _sendable(what: str) -> Iterator[None]:
    """Raises InvalidInput where a message can't hold what it is given."""
    try:
        yield
    except (TypeError, ValueError) as error:
        raise InvalidInput(f"{what} can't be sent: {error}") from error


@contextmanager
def translated_errors(target: str) -> Iterator[None]:
    """Raises an error of `embershard.errors` for every status that a call may end with."""
    try:
        yield
    except (ValueError, grpc.aio.UsageError) as error:  # what gRPC says of a channel that is closed
        raise Unavailable(f"{target}: {error}") from error
    except grpc.RpcError as error:
        status = error.code().name
        details = explained(_PLAIN.get(error.details() or "", error.details() or status))
        kind = ERROR_BY_STATUS.get(status, Unavailable if status == "CANCELLED" else InternalError)
        told = kind(f"{target}: {details}")
        trailing: Any = error.trailing_metadata() or ()
        metadata = dict(trailing)
        told.request_id = str(metadata.get("x-request-id", ""))
        if isinstance(told, Overloaded):
            told.retry_after_s = _pushback_s(metadata)
        raise told from error


def _pushback_s(metadata: Mapping[str, Any]) -> float | None:
    """How long the server asks to wait, in gRPC's own words (gRFC A6)."""
    value = str(metadata.get("grpc-retry-pushback-ms", ""))
    return int(value) / 1000 if value.isdecimal() else None
