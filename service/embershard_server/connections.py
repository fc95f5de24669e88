"""What the kernel knows of this process's connections, and an end to some of them.

gRPC tells of a message only once all of it has come, and in Python it can't end a call whose answer isn't taken. The
process's own sockets tell how much has come, and can be shut.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from urllib.parse import unquote

_BYTES_RECEIVED = 128
"""Where Linux's tcp_info has tcpi_bytes_received, of 64 bits."""


def address_of(peer: str) -> str:
    """HOST:PORT of what gRPC calls a peer."""
    return unquote(peer).partition(":")[2]


def received() -> tuple[dict[str, int], float]:
    """Bytes that have come on each connection, by the address of the peer; and the CPU time in seconds that it took
    to ask."""
    begin = time.thread_time()
    bytes_by_address = {
        address: struct.unpack_from(
            "=Q", connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256), _BYTES_RECEIVED
        )[0]
        for address, connection in _connections()
    }
    return bytes_by_address, time.thread_time() - begin


def shut(addresses: Collection[str]) -> None:
    """Ends the connections with these peers."""
    for address, connection in _connections():
        if address in addresses:
            with suppress(OSError):  # it has just ended
                connection.shutdown(socket.SHUT_RDWR)


def _connections() -> Iterator[tuple[str, socket.socket]]:
    for entry in Path("/proc/self/fd").iterdir():
        try:
            connection = _socket(entry)
        except OSError:  # it has just ended
            continue
        if connection is None:
            continue
        with connection:
            if connection.family in (socket.AF_INET, socket.AF_INET6) and connection.type == socket.SOCK_STREAM:
                try:
                    host, port, *_ = connection.getpeername()
                except OSError:  # it listens
                    continue
                host = host.removeprefix("::ffff:")
                yield f"[{host}]:{port}" if ":" in host else f"{host}:{port}", connection


def _socket(entry: Path) -> socket.socket | None:
    """A second handle of a socket of this process."""
    if not str(entry.readlink()).startswith("socket:"):
        return None
    handle = os.dup(int(entry.name))
    try:
        return socket.socket(fileno=handle)
    except OSError:  # it was closed, and the number is another file's now
        os.close(handle)
        raise
