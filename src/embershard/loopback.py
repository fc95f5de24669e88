"""Whether an address can be reached from its own machine alone."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import unquote

_NUMERIC = re.compile(r"ipv[46]:(?://)?")


def is_loopback(address: str) -> bool:
    """Whether nobody on a network hears what goes to HOST:PORT, or to another name that gRPC resolves.

    127.0.0.0/8, ::1, localhost, and unix sockets; of a list of addresses all must be.
    """
    if address.startswith(("unix:", "unix-abstract:")):
        return True
    if _NUMERIC.match(address):
        return all(_is_loopback(place) for place in _NUMERIC.sub("", address, count=1).split(","))
    # dns:///HOST:PORT, or dns://RESOLVER/HOST:PORT
    return _is_loopback(re.sub(r"^dns:(//[^/]*/)?", "", address))


def _is_loopback(place: str) -> bool:
    host, _, port = unquote(place).rpartition(":")
    # An IPv6 address without a port has colons, too: [::1].
    host = (host if host and not port.endswith("]") else unquote(place)).removeprefix("[").removesuffix("]")
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host.lower() == "localhost"
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return (mapped or found).is_loopback
