"""Connections that can't be made: what gRPC says of them, and what that means."""

from __future__ import annotations

from typing import Any

import grpc

_SAID = "failed to connect"
_MEANINGS = {
    "WRONG_VERSION_NUMBER": "what answers there speaks no TLS: leave --tls and --ca out, or give another address",
    "certificate has expired": "the server's certificate has expired: renew it",
    "CERTIFICATE_VERIFY_FAILED": "the server's certificate is of no authority that is known here: give the file of its "
    "authority (--ca FILE, EMBERSHARD_CA, Security(ca=…))",
    "Hostname Verification": "the server's certificate is for another name: use that, or give it (--server-name NAME, "
    "EMBERSHARD_SERVER_NAME, Security(server_name=…))",
    "Socket closed": "the server closed the connection at once: it speaks TLS, perhaps (--ca FILE or --tls), or wants "
    "another certificate of the client (--client-cert and --client-key FILE)",
    "": "nothing answers there: start `embershard serve`, or give another address (a name may have several, of which "
    "this is the last that was tried; GRPC_VERBOSITY=INFO tells of each)",
}
"""{what gRPC says: what it means, and what to do}; the first that fits."""
_PROBE, _PROBE_S = "/grpc.health.v1.Health/Check", 2.0
"""What is asked to learn why there is no connection, as gRPC doesn't repeat it; and for how long, in seconds."""


def explained(details: str) -> str:
    """What gRPC says of a call, with what it means where no connection could be made."""
    if not details.startswith(_SAID):
        return details
    meaning = next(meaning for said, meaning in _MEANINGS.items() if said in details)
    return f"{meaning} ({details})"


def why(channel: Any) -> str:
    """Why a call has waited for a connection in vain; nothing, if there is one."""
    try:
        channel.unary_unary(_PROBE)(b"", timeout=_PROBE_S)
    except grpc.RpcError as error:
        return _reason(error)
    return ""


async def why_async(channel: Any) -> str:
    """The same for a channel of asyncio."""
    try:
        await channel.unary_unary(_PROBE)(b"", timeout=_PROBE_S)
    except grpc.RpcError as error:
        return _reason(error)
    return ""


def _reason(error: Any) -> str:
    return f": {explained(error.details())}" if error.code() is grpc.StatusCode.UNAVAILABLE else ""
