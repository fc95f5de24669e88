"""As much of protobuf's wire format as it takes to leave large fields where they are, instead of copying them.

https://protobuf.dev/programming-guides/encoding: a message is a row of fields, each a tag (number × 8 + type) and its
value; bytes and messages are a length and so many bytes.
"""

from __future__ import annotations

from collections.abc import Iterator


def tag(number: int) -> bytes:
    """What precedes a field of bytes."""
    return varint(number << 3 | 2)


def varint(number: int) -> bytes:
    """A whole number, seven bits a byte, the lowest first."""
    encoded = bytearray()
    while number > 0x7F:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def fields(data: memoryview) -> Iterator[tuple[int, memoryview, memoryview | None]]:
    """The fields of a message: number, all of the field, and the value of one that has bytes, as views.

    Raises:
        ValueError: these bytes are no message.
    """
    at, end = 0, len(data)
    while at < end:
        begin = at
        key, at = _varint_at(data, at)
        value = None
        match key & 7:
            case 0:
                _, at = _varint_at(data, at)
            case 1:
                at += 8
            case 2:
                size, at = _varint_at(data, at)
                value = data[at : at + size]
                at += size
            case 5:
                at += 4
            case kind:
                raise ValueError(f"a field of type {kind} at byte {begin}")
        if at > end:
            raise ValueError(f"the field at byte {begin} ends beyond the message")
        yield key >> 3, data[begin:at], value


def _varint_at(data: memoryview, at: int) -> tuple[int, int]:
    """A whole number, and where it ends."""
    number = shift = 0
    while shift < 70:
        if at == len(data):
            raise ValueError("the message ends in a number")
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return number, at
        shift += 7
    raise ValueError(f"a number of over ten bytes before byte {at}")
