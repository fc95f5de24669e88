"""What is done to bytes and messages, by their descriptors, that nobody expects."""

from __future__ import annotations

from typing import Any

import numpy as np
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from fuzz.collection import DIMS

INTEGERS = (0, 1, 2, 7, 50, 2**31 - 1, 2**31, 2**32 - 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1)
STRINGS = (*DIMS, "", "nope", "<pad>", "w1", "ü" * 200, "\x00", "a" * 5000)
FLOATS = (0.0, -0.0, 1e-45, 1.0, -1.0, 7e4, 3.4e38, -3.4e38, np.inf, -np.inf, np.nan, 1e9, 2e9)
IDS = (0, 1, 1, 2, 3, -1, 19, 29, 49, 50, 2**31, 2**63 - 1, -(2**63))
LENGTHS = (0, 1, 1, 2, 4, -1, -(2**31), 2**31 - 1)
RARE = ("fingerprint", "pinned_version", "min_version")
"""Fields that have most requests refused, before anything else of them is seen."""


def mutated(random: np.random.Generator, data: bytes) -> bytes:
    """Bytes flipped, cut, put in, repeated or moved."""
    changed = bytearray(data)
    for _ in range(int(random.integers(1, 5))):
        at = int(random.integers(0, len(changed) + 1))
        match random.integers(5):
            case 0 if at < len(changed):
                changed[at] ^= 1 << int(random.integers(8))
            case 1:
                del changed[at : at + int(random.integers(1, 9))]
            case 2:
                changed[at:at] = random.bytes(int(random.integers(1, 9)))
            case 3:
                changed = changed[at:] + changed[:at]
            case _:
                changed += changed[at : at + 64]
    return bytes(changed)


def spoiled(random: np.random.Generator, message: Message) -> Message:
    """A message one of whose fields, however deep, has a value at its edges."""
    inside: list[Any] = [message]
    for part in inside:
        for field, value in part.ListFields():
            if field.type == FieldDescriptor.TYPE_MESSAGE:
                inside += value if field.is_repeated else [value]
    part = inside[int(random.integers(len(inside)))]
    fields = part.DESCRIPTOR.fields
    if fields:
        field = fields[int(random.integers(len(fields)))]
        part.ClearField(field.name)
        _fill(random, part, field)
    return message


def edged(random: np.random.Generator, kind: type[Message]) -> Message:
    """A message some of whose fields have values at their edges."""
    message = kind()
    for field in kind.DESCRIPTOR.fields:
        if random.random() < (0.08 if field.name in RARE else 0.7):
            _fill(random, message, field)
    return message


def _fill(random: np.random.Generator, message: Any, field: FieldDescriptor) -> None:
    count = int(random.integers(0, 4)) if field.is_repeated else 1
    if field.name == "keys" and random.random() < 0.01:
        count = 5_000  # more ids than one request may have
    for _ in range(count):
        if field.type == FieldDescriptor.TYPE_MESSAGE:
            made = edged(random, field.message_type._concrete_class)
            (getattr(message, field.name).add() if field.is_repeated else getattr(message, field.name)).CopyFrom(made)
        elif field.is_repeated:
            getattr(message, field.name).append("same" if count > 4 else _edge(random, field))
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
            return int(random.choice([0, 1, 2, 3, 99, -1, -(2**31), 2**31 - 1]))
        case FieldDescriptor.TYPE_UINT32:
            return int(random.choice([n for n in INTEGERS if n < 2**32]))
    return INTEGERS[int(random.integers(len(INTEGERS)))]


def _numbers(random: np.random.Generator, name: str) -> bytes:
    """Ids, lengths or floats; now and then too many, or bytes that are no whole numbers."""
    count = int(random.integers(0, 9)) if random.random() > 0.01 else 5_000
    match name:
        case "ids":
            data = random.choice(np.array(IDS, "<i8"), count).tobytes()
        case "lengths":
            data = random.choice(np.array(LENGTHS, "<i4"), count).tobytes()
        case _:
            data = random.choice(np.array(FLOATS, "<f4"), count * int(random.integers(1, 5))).tobytes()
    return data[: len(data) - int(random.integers(0, 2)) * int(random.integers(0, 4))]
