"""Seeded requests: random bytes, mutated valid messages, and messages with every field at its edges."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import DecodeError, Message

from embershard.client.wire import freeze_request, grow_request, lookup_request, update_request
from embershard.v1 import embershard_pb2 as pb

CONFIG = """
[collection]
name = "fuzz"
[limits]
message_bytes = 1_048_576
ids_per_request = 4_096
[[tables]]
name = "user"
rows = 50
dim = 3
ids = { kind = "direct", padding = 0 }
[[tables]]
name = "zip"
rows = 40
dim = 4
pooling = "mean"
ids = { kind = "hashed", hashes = 2, signed = true, padding = "<pad>" }
[[tables]]
name = "query"
rows = 30
dim = 4
dtype = "float16"
ids = { kind = "vocabulary", fallback_rows = 8, admit_after = 2 }
[[tables]]
name = "low"
rows = 30
dim = 6
factor = { kind = "low_rank", rank = 2 }
normalise = "l2"
[[tables]]
name = "pair"
rows = 30
dim = 4
pooling = "sum"
factor = { kind = "quotient_remainder" }
[[tables]]
name = "still"
rows = 9
dim = 2
frozen = true
"""
DIMS = {"user": 3, "zip": 4, "query": 4, "low": 6, "pair": 4, "still": 2}
KINDS: dict[str, type[Message]] = {
    "EmbeddingService/Describe": pb.DescribeRequest,
    "EmbeddingService/Lookup": pb.LookupRequest,
    "EmbeddingService/LookupStream": pb.LookupRequest,
    "EmbeddingService/Update": pb.UpdateRequest,
    "EmbeddingService/UpdateStream": pb.UpdateRequest,
    "AdminService/Grow": pb.GrowRequest,
    "AdminService/Freeze": pb.FreezeRequest,
    "AdminService/ListVersions": pb.ListVersionsRequest,
    "AdminService/Load": pb.LoadRequest,
    "AdminService/Activate": pb.ActivateRequest,
    "AdminService/Rollback": pb.RollbackRequest,
}
CHANGING = ("Update", "UpdateStream", "Grow", "Freeze", "Load", "Activate", "Rollback")
WEIGHTS = np.array([1, 6, 4, 10, 5, 2, 2, 1, 1, 1, 1], float)
INTEGERS = (0, 1, 2, 7, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1)
STRINGS = ("", "user", "zip", "query", "low", "pair", "still", "nope", "<pad>", "ü" * 200, "\x00", "a" * 5000)
FLOATS = (0.0, -0.0, 1e-45, 1.0, -1.0, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 1e9, 2e9)
IDS = (0, 1, -1, 29, 49, 50, 2**31, 2**63 - 1, -(2**63))


def request(random: np.random.Generator, *, sealed: bool) -> tuple[str, bytes]:
    """A method, and what it is sent; `sealed`, it names another collection wherever it could change anything."""
    method = str(random.choice(list(KINDS), p=WEIGHTS / WEIGHTS.sum()))
    match random.integers(5):
        case 0:
            data = random.bytes(int(random.integers(0, 200)))
        case 1 | 2:
            data = _mutated(random, _valid(random, method).SerializeToString())
        case _:
            data = _edged(random, KINDS[method]).SerializeToString()
    if not sealed or method.split("/")[1] not in CHANGING:
        return method, data
    return (method, _sealed(KINDS[method], data)) if "Load" not in method else ("EmbeddingService/Lookup", data)


def _sealed(kind: type[Message], data: bytes) -> bytes:
    """With a fingerprint that isn't the collection's, if it is a message at all."""
    try:
        message: Any = kind.FromString(data)
    except DecodeError:
        return data
    message.fingerprint = "sealed"
    return bytes(message.SerializeToString())


def _valid(random: np.random.Generator, method: str) -> Message:
    feature = str(random.choice(list(DIMS)))
    ids = random.integers(1, 9, 4)
    match method.split("/")[1]:
        case "Lookup" | "LookupStream":
            return lookup_request({feature: (ids, [1, 3])}, with_provenance=True)
        case "Update" | "UpdateStream":
            identity = (str(random.choice(["a", "b"])), int(random.integers(1, 5)))
            gradients = random.normal(size=(4, DIMS[feature]))
            return update_request({feature: (ids, [1] * 4)}, gradients={feature: gradients}, identity=identity)
        case "Grow":
            return grow_request(feature, rows=int(random.integers(1, 60)), capacity=None, mean=False, mean_of=None)
        case "Freeze":
            return freeze_request({feature: ids}, thaw=bool(random.integers(2)))
    return _edged(random, KINDS[method])


def _mutated(random: np.random.Generator, data: bytes) -> bytes:
    """Bytes flipped, cut, repeated or put in."""
    changed = bytearray(data)
    for _ in range(int(random.integers(1, 6))):
        at = int(random.integers(0, len(changed) + 1))
        match random.integers(4):
            case 0 if at < len(changed):
                changed[at] ^= 1 << int(random.integers(8))
            case 1:
                del changed[at : at + int(random.integers(1, 9))]
            case 2:
                changed[at:at] = random.bytes(int(random.integers(1, 9)))
            case _:
                changed += changed[at : at + 64]
    return bytes(changed)


def _edged(random: np.random.Generator, kind: type[Message]) -> Message:
    """A message some of whose fields have values at their edges."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if random.random() < 0.7:
            _fill(random, message, field)
    return message


def _fill(random: np.random.Generator, message: Any, field: FieldDescriptor) -> None:
    count = int(random.integers(0, 4)) if field.is_repeated else 1
    for _ in range(count):
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            made = _edged(random, field.message_type._concrete_class)
            (getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)).CopyFrom(made)
        elif field.is_repeated:
            getattr(message, field.name).append(_edge(random, field))
        else:
            setattr(message, field.name, _edge(random, field))


def _edge(random: np.random.Generator, field: FieldDescriptor) -> Any:
    match field.type:
        case FieldDescriptor.TYPE_BOOL:
            return bool(random.integers(2))
        case FieldDescriptor.TYPE_STRING:
            return str(random.choice(STRINGS))
        case FieldDescriptor.TYPE_BYTES:
            return _numbers(random, field.name)
        case FieldDescriptor.TYPE_ENUM:
            return int(random.choice([0, 1, 2, 3, 99, 2**31 - 1]))
        case FieldDescriptor.TYPE_UINT32:
            return random.choice([n for n in INTEGERS if n < 2**32])
    return int(np.array(INTEGERS, np.uint64)[random.integers(len(INTEGERS))])


def _numbers(random: np.random.Generator, name: str) -> bytes:
    """Ids, lengths or floats; now and then bytes that are no whole numbers."""
    count = int(random.integers(0, 9))
    match name:
        case "ids":
            data = random.choice(np.array(IDS, "<i8"), count).tobytes()
        case "lengths":
            data = random.choice(np.array([0, 1, 2, -1, 2**31 - 1], "<i4"), count).tobytes()
        case _:
            data = random.choice(np.array(FLOATS, "<f4"), count * int(random.integers(1, 5))).tobytes()
    return data[: len(data) - int(random.integers(0, 2)) * int(random.integers(0, 4))]
