"""Redis' protocol by a socket, hiredis and numpy, which is the least that a client in Python can cost."""

from __future__ import annotations

import socket
from typing import Any, Final

import hiredis
import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]

RECEIVED: Final = 2**20
"""Bytes that are read at once, at most."""


class Connection:
    """A socket to Redis, and a parser of its replies."""

    def __init__(self, target: str) -> None:
        host, _, port = target.rpartition(":")
        self._socket = socket.create_connection((host, int(port)))
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._reader, self._buffer = hiredis.Reader(), bytearray(RECEIVED)

    def __enter__(self) -> Connection:
        return self

    def __exit__(self, *_: object) -> None:
        self._socket.close()

    def ask(self, commands: bytes, count: int) -> list[Any]:
        """Sends commands, so many, and returns their replies."""
        self._socket.sendall(commands)
        replies: list[Any] = []
        while len(replies) < count:
            if (reply := self._reader.gets()) is not False:
                replies.append(reply)
                continue
            received = self._socket.recv_into(self._buffer)
            if not received:
                raise ConnectionError("Redis has closed the connection")
            self._reader.feed(self._buffer, 0, received)
        if errors := [reply for reply in replies if isinstance(reply, hiredis.HiredisError)]:
            raise errors[0]
        return replies


def framed(*parts: bytes | Bytes) -> bytes:
    """Lines that are alike but for some columns: parts are bytes that all have, or [lines, bytes] that differ."""
    lines = next(len(part) for part in parts if not isinstance(part, bytes))
    columns = [
        np.broadcast_to(np.frombuffer(part, np.uint8), (lines, len(part))) if isinstance(part, bytes) else part
        for part in parts
    ]
    return np.concatenate(columns, axis=1).tobytes()


def octets(numbers: NDArray[Any]) -> Bytes:
    """The bytes of each of the numbers, or rows of numbers: [n, bytes]."""
    return np.ascontiguousarray(numbers).view(np.uint8).reshape(len(numbers), -1)
