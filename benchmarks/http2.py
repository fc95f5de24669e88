"""gRPC calls over a bare socket: cheap enough to overload a server from the same machine, and as rude as need be.

It speaks just the HTTP/2 that gRPC servers require: what it sends is built beforehand, and of what it receives it reads
no more than where frames end, whether a call had an answer, and its status.
"""

from __future__ import annotations

import re
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0, 1, 3, 4, 6, 7, 8
_END_STREAM, _END_HEADERS, _ACK = 1, 4, 1
_INITIAL_WINDOW = 4
_LARGEST = 2**31 - 1
_REPLENISH = 2**28
_STATUS = re.compile(rb"grpc-status.(\d+)")
_PUSHBACK = re.compile(rb"grpc-retry-pushback-ms.(\d+)")
CANCELLED = 1
"""Status of a call that ended without saying why."""


class Ended(NamedTuple):
    """A call that is over."""

    stream: int
    """Which."""
    status: int
    """Number of its gRPC status."""
    received: int
    """Bytes of its answers."""
    pushback_ms: int | None
    """When it may be tried again, if the server told."""


class Connection:
    """One connection, which doesn't heed how many calls the server likes at once."""

    def __init__(self, target: str, *, window: int = _LARGEST) -> None:
        """`window` bytes of each answer are taken, and then no more."""
        host, _, port = target.rpartition(":")
        self.socket = socket.create_connection((host, int(port)))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._target, self._next, self._buffer = target, 1, b""
        self._received: dict[int, int] = {}
        # What may be sent: of each stream at first, on all of them now, and on each more than at first.
        self._first_window, self._window, self._windows = 65535, 65535, dict[int, int]()
        self._unacknowledged = 0
        # No table of headers, so that the server spells them out; and windows so that it needn't wait.
        settings = struct.pack(">HIHI", 1, 0, _INITIAL_WINDOW, window)
        self.socket.sendall(
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
            + _frame(_SETTINGS, 0, 0, settings)
            + _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _LARGEST - 65535))
        )

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):  # the server was first
            self.socket.shutdown(socket.SHUT_RDWR)  # which also wakes a thread that reads
        self.socket.close()

    def head(self, path: str, *, timeout_ms: int = 0) -> bytes:
        """The headers of a call."""
        block = b"\x83\x86" + _text(4, path) + _text(1, self._target)
        block += _header("te", "trailers") + _header("content-type", "application/grpc")
        return block + (_header("grpc-timeout", f"{timeout_ms}m") if timeout_ms else b"")

    def call(self, head: bytes, message: bytes) -> tuple[int, bytes]:
        """The number and the bytes of a call whose message is small."""
        stream, opening = self._open(head)
        return stream, opening + _frame(_DATA, _END_STREAM, stream, struct.pack(">BI", 0, len(message)) + message)

    def upload(self, head: bytes, message: bytes, *, announced: int) -> Iterator[Ended]:
        """Sends a part of a message of `announced` bytes, as fast as the server takes it; yields what ends."""
        stream, opening = self._open(head)
        self.socket.sendall(opening)
        left = memoryview(struct.pack(">BI", 0, announced) + message)
        while left and stream in self._received:
            size = min(16384, self._window, self._first_window + self._windows.get(stream, 0), len(left))
            if size <= 0:
                yield from self.receive()
                continue
            self.socket.sendall(_frame(_DATA, 0, stream, bytes(left[:size])))
            self._window -= size
            self._windows[stream] = self._windows.get(stream, 0) - size
            left = left[size:]

    def _open(self, head: bytes) -> tuple[int, bytes]:
        stream, self._next = self._next, self._next + 2
        self._received[stream] = 0
        return stream, _frame(_HEADERS, _END_HEADERS, stream, head)

    def receive(self) -> Iterator[Ended]:
        """Takes what has come, and waits for something if nothing has; ConnectionError at the end."""
        chunk = self.socket.recv(2**20)
        if not chunk:
            raise ConnectionError("the server has closed the connection")
        buffer, at, answers = self._buffer + chunk, 0, b""
        while len(buffer) - at >= 9:
            size, kind, flags = int.from_bytes(buffer[at : at + 3], "big"), buffer[at + 3], buffer[at + 4]
            if len(buffer) - at < 9 + size:
                break
            stream = int.from_bytes(buffer[at + 5 : at + 9], "big")
            start, at = at + 9, at + 9 + size
            if kind == _DATA:
                self._unacknowledged += size
                if stream in self._received:
                    self._received[stream] += size
                continue
            payload = buffer[start:at]
            if kind == _HEADERS and flags & _END_STREAM:
                yield from self._end(stream, payload)
            elif kind == _RST_STREAM:
                yield from self._end(stream, b"")
            elif kind == _GOAWAY and any(payload[4:8]):
                raise ConnectionError(f"the server ends the connection: {payload[8:].decode(errors='replace')}")
            elif kind == _WINDOW_UPDATE:
                self._widen(stream, int.from_bytes(payload, "big"))
            elif kind in (_SETTINGS, _PING) and not flags & _ACK:
                self._heed(payload if kind == _SETTINGS else b"")
                answers += _frame(kind, _ACK, 0, payload if kind == _PING else b"")
        self._buffer = buffer[at:]
        if self._unacknowledged > _REPLENISH:
            answers += _frame(_WINDOW_UPDATE, 0, 0, struct.pack(">I", self._unacknowledged))
            self._unacknowledged = 0
        if answers:
            self.socket.sendall(answers)

    def _widen(self, stream: int, size: int) -> None:
        if stream:
            self._windows[stream] = self._windows.get(stream, 0) + size
        else:
            self._window += size

    def _heed(self, settings: bytes) -> None:
        for name, value in struct.iter_unpack(">HI", settings):
            if name == _INITIAL_WINDOW:
                self._first_window = value

    def _end(self, stream: int, trailers: bytes) -> Iterator[Ended]:
        if (received := self._received.pop(stream, None)) is not None:
            status, pushback = _STATUS.search(trailers), _PUSHBACK.search(trailers)
            yield Ended(
                stream, int(status[1]) if status else CANCELLED, received, int(pushback[1]) if pushback else None
            )


def _frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + struct.pack(">BBI", kind, flags, stream) + payload


def _text(name: int, value: str) -> bytes:
    return bytes([name, len(value)]) + value.encode()


def _header(name: str, value: str) -> bytes:
    return bytes([0, len(name)]) + name.encode() + _text(len(value), value)[1:]
