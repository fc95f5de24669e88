"""The address of a front end, and whether plaintext may be spoken there."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from itertools import combinations

from embershard.errors import ConfigError
from embershard.loopback import is_loopback


def of_rank(listen: str, local_rank: int, flag: str = "--listen") -> str:
    """A host's rank r, counted from 0, listens on port + r; on any free port if the port is 0.

    So hosts are alike, whatever ranks of the group torchrun gives them, and a balancer may ask any on the same ports.

    Raises:
        ConfigError: `listen` is no address, or has no port for this rank.
    """
    host, _, port = listen.rpartition(":")
    if not host or not (port.isascii() and port.isdigit()) or int(port) + local_rank > 65535:
        raise ConfigError(f"{flag} {listen!r}: is not HOST:PORT with a port from 0 to {65535 - local_rank}")
    return f"{host}:{int(port) + local_rank if int(port) else 0}"


def check_plaintext(address: str, *, flag: str, encrypted: bool, allowed: bool) -> None:
    """Whether what is said at an address is encrypted, or heard by nobody else, or that is `allowed` by name.

    Raises:
        ConfigError: it isn't; `flag` gave the address.
    """
    if not (encrypted or allowed or is_loopback(address)):
        raise ConfigError(
            f"{flag} {address}: others reach it, and plaintext would be read and changed by whoever is on the network: "
            "give --tls-cert and --tls-key (`embershard credentials` makes some for trials), or listen on 127.0.0.1, "
            "or ask for it by --plaintext, where something else encrypts"
        )


def check_apart(addresses: Mapping[str, str], ranks: int) -> None:
    """Whether the ports that so many ranks of a host take, from those of the first on, are apart.

    Args:
        addresses: {flag: the address of one of them}.
        ranks: how many there are.

    Raises:
        ConfigError: they aren't.
    """
    ports = {flag: int(address.rpartition(":")[2]) for flag, address in addresses.items()}
    for (one, first), (other, second) in combinations(ports.items(), 2):
        if first and second and abs(first - second) < ranks:
            raise ConfigError(
                f"{one} {addresses[one]} and {other} {addresses[other]}: a host's {ranks} rank(s) take as many ports "
                "from each on; keep them apart"
            )


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
