"""The address of a front end."""

from __future__ import annotations

import socket

from embershard.errors import ConfigError


def of_rank(listen: str, rank: int, flag: str = "--listen") -> str:
    """Rank r listens on port + r; on any free port if the port is 0.

    Raises:
        ConfigError: `listen` is no address, or has no port for this rank.
    """
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) + rank > 65535:
        raise ConfigError(f"{flag} {listen!r}: is not HOST:PORT with a port from 0 to {65535 - rank}")
    return f"{host}:{int(port) + rank if int(port) else 0}"


def check_free(address: str) -> None:
    """Tries the address out, which costs nothing, before anything that takes minutes.

    Raises:
        ConfigError: it can't be listened on.
    """
    host, _, port = address.rpartition(":")
    try:
        family, kind, _, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(where)
    except OSError as error:
        raise ConfigError(f"can't listen on {address}: {error.strerror}; give another --listen HOST:PORT") from error
