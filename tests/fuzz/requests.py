"""Seeded requests: random bytes, valid messages mutated or spoiled, and messages with every field at its edges."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError, Message

from embershard.client.wire import freeze_request, grow_request, lookup_request, update_request
from embershard.v1 import embershard_pb2 as pb
from fuzz.collection import DIMS, NAMES, OWNING, WITH_STRINGS
from fuzz.edges import edged, mutated, spoiled

KINDS: dict[str, type[Message]] = {
    "EmbeddingService/Describe": pb.DescribeRequest,
    "EmbeddingService/Lookup": pb.LookupRequest,
    "EmbeddingService/LookupStream": pb.LookupRequest,
    "EmbeddingService/Update": pb.UpdateRequest,
    "EmbeddingService/UpdateStream": pb.UpdateRequest,
    "AdminService/Snapshot": pb.SnapshotRequest,
    "AdminService/Grow": pb.GrowRequest,
    "AdminService/Freeze": pb.FreezeRequest,
    "AdminService/ListVersions": pb.ListVersionsRequest,
    "AdminService/Load": pb.LoadRequest,
    "AdminService/Activate": pb.ActivateRequest,
    "AdminService/Rollback": pb.RollbackRequest,
    "AdminService/Stage": pb.StageRequest,
    "AdminService/Publish": pb.PublishRequest,
}
READING = ("Describe", "Lookup", "LookupStream", "ListVersions", "Snapshot", "Stage")
STREAMING = ("LookupStream", "UpdateStream", "Stage")
WEIGHTS = np.array([1, 6, 4, 10, 5, 0.5, 2, 3, 1, 1, 1, 1, 2, 2], float)
LAYOUT = '{"seed": 0, "tables": {}}'
"""Of another collection."""
HUGE = 140_000
"""Bytes of a message that is over `limits.message_bytes`."""
NO_MESSAGE = b"\x07"
"""A tag of a wire type that there isn't: what begins so is no message of any kind."""
SMALL, LARGE = 200, 2**40
"""A growth to rows between these might be done, and take all memory of this machine."""


@dataclass(frozen=True, slots=True)
class Request:
    """What is sent to one method: one message, or several on a stream."""

    method: str
    messages: tuple[bytes, ...]

    @property
    def kind(self) -> type[Message]:
        return KINDS[self.method]

    @property
    def changes(self) -> bool:
        """Whether the method may change what is served."""
        return self.method.split("/")[1] not in READING

    @property
    def streams(self) -> bool:
        return self.method.endswith(STREAMING)

    @property
    def waits(self) -> bool:
        """Whether it asks to wait for a version, which may never come."""
        return any(getattr(parsed(self.kind, data), "min_version", 0) for data in self.messages)

    def __str__(self) -> str:
        return f"{self.method} {' '.join(data.hex() for data in self.messages)}"


def request(random: np.random.Generator) -> Request:
    """Any method, and whatever is sent to it."""
    method = str(random.choice(list(KINDS), p=WEIGHTS / WEIGHTS.sum()))
    count = int(random.integers(1, 4)) if method.endswith(STREAMING) else 1
    return Request(method, tuple(_affordable(method, _data(random, method)) for _ in range(count)))


def parsed(kind: type[Message], data: bytes) -> Any:
    """The message, or None if it is none."""
    try:
        return kind.FromString(data)
    except DecodeError:
        return None


def _affordable(method: str, data: bytes) -> bytes:
    grow = parsed(pb.GrowRequest, data) if method.endswith("Grow") else None
    if grow is None or (size := grow.WhichOneof("size")) is None or not SMALL < getattr(grow, size) < LARGE:
        return data
    setattr(grow, size, LARGE + getattr(grow, size))
    return bytes(grow.SerializeToString())


def _data(random: np.random.Generator, method: str) -> bytes:
    kind = KINDS[method]
    if method.endswith("Snapshot"):  # one that is understood writes to the disk
        return NO_MESSAGE + random.bytes(int(random.integers(0, 50)))
    if random.random() < 0.0005:
        return random.bytes(HUGE)
    match random.integers(10):
        case 0:
            return random.bytes(int(random.integers(0, 200)))
        case 1 | 2 | 3:
            return mutated(random, _valid(random, method).SerializeToString())
        case 4 | 5 | 6:
            return spoiled(random, _valid(random, method)).SerializeToString()
        case 7:
            return _valid(random, method).SerializeToString()
    unknown = b"\xfa\x7f\x03abc" if random.random() < 0.1 else b""  # field 2047
    return bytes(edged(random, kind).SerializeToString()) + unknown


def _valid(random: np.random.Generator, method: str) -> Message:
    match method.split("/")[1]:
        case "Lookup" | "LookupStream":
            batches = {feature: (_ids(random, feature), [1, 0, 3]) for feature in _features(random)}
            told = {"with_provenance": bool(random.integers(2)), "with_counts": bool(random.integers(2))}
            return lookup_request(batches, dtype=str(random.choice(["float32", "float16"])), **told)
        case "Update" | "UpdateStream":
            return _valid_update(random)
        case "Grow":
            table = str(random.choice([feature for feature in DIMS if feature != "friend"]))
            return grow_request(table, rows=int(random.integers(1, 60)), capacity=None, mean=False, mean_of=None)
        case "Freeze":
            feature = str(random.choice(list(DIMS)))
            return freeze_request({feature: _ids(random, feature)}, thaw=bool(random.integers(2)))
        case "Stage":
            return pb.StageRequest(publisher="fuzz", number=1, file="file", data=random.bytes(9))
        case "Publish":
            file = pb.StagedFile(name="file", size=9, sha256=random.bytes(32))
            return pb.PublishRequest(
                publisher="fuzz", number=1, files=[file], delta=bool(random.integers(2)), layout=LAYOUT
            )
    return edged(random, KINDS[method])


def _valid_update(random: np.random.Generator) -> Message:
    """Gradients for some features, and values or parents for one more."""
    batches: dict[str, Any] = {}
    changes: dict[str, dict[str, Any]] = {"gradients": {}, "values": {}, "parents": {}}
    for feature in _features(random):
        batches[feature] = (_ids(random, feature), [1] * 4)
        changes["gradients"][feature] = random.normal(size=(4, DIMS[feature])).astype(np.float32)
    owning = str(random.choice(OWNING))
    if owning not in batches and random.random() < 0.4:
        batches[owning] = [f"w{n}" for n in range(4)] if owning == "query" else [1, 2, 3, 4]
        if random.random() < 0.5:
            changes["values"][owning] = random.normal(size=(4, DIMS[owning])).astype(np.float32)
        else:
            changes["parents"][owning] = (batches[owning], [1, 1, 1, 1])
    given = {what: arrays or None for what, arrays in changes.items()}
    known = random.random() < 0.25
    identity = (str(random.choice(["a", "b"])), int(random.integers(1, 9))) if known else None
    return update_request(batches, **given, identity=identity)


def _features(random: np.random.Generator) -> list[str]:
    return [str(name) for name in random.choice(list(DIMS), int(random.integers(1, 4)), replace=False)]


def _ids(random: np.random.Generator, feature: str) -> Any:
    if feature in WITH_STRINGS and random.random() < 0.5:
        return [str(name) for name in random.choice(NAMES, 4)]
    return random.integers(1, 9, 4)
