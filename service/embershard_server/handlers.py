"""From bytes to bytes: what surrounds the method of an RPC, for single calls and for streams.

gRPC has both kinds read their requests themselves, so that nothing is read of a call that is refused; on the wire a
single call is what it always was.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from embershard.errors import InvalidInput
from embershard_server.access import Role
from embershard_server.gate import Call, Gate
from embershard_server.status import Context, abort

logger = logging.getLogger(__name__)

Method = Callable[[Any, Call], Awaitable[Any]]
"""Answers one message, with a message or with bytes that are one."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rpc:
    """One RPC of a service."""

    name: str
    """As the proto has it."""
    request: type[Message]
    """What it is asked with."""
    method: Method
    """What answers it."""
    needs: Role
    """Who may call it."""
    streams: bool = False
    """Whether it takes many messages, each with its answer, in order."""
    check: Callable[[str], None] | None = None
    """Refuses callers before their message is read."""


def service(name: str, rpcs: Sequence[Rpc], gate: Gate) -> grpc.GenericRpcHandler:
    """The RPCs of a service, for a gRPC server."""
    made = {rpc.name: _stream(rpc, gate) if rpc.streams else _single(rpc, gate) for rpc in rpcs}
    return grpc.method_handlers_generic_handler(name, made)


def _single(rpc: Rpc, gate: Gate) -> Any:
    """An RPC of one message and one answer."""

    async def handle(requests: AsyncIterator[bytes], context: Context) -> bytes:
        try:
            call = _enter(rpc, gate, context)
            if rpc.check:
                rpc.check(call.peer)
            if (request := await call.receive(requests)) is None:
                raise InvalidInput(f"the call ended without a {rpc.request.DESCRIPTOR.name}")
            message = _parsed(rpc.request, request)
            del request
            answer = _serialised(await rpc.method(message, call))
        except Exception as error:
            await abort(context, error)
        call.sends()
        return answer

    return grpc.stream_unary_rpc_method_handler(handle)


def _stream(rpc: Rpc, gate: Gate) -> Any:
    """An RPC of many messages: one that is refused ends the stream, and the status names its place."""

    async def handle(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        number = 0
        try:
            call = _enter(rpc, gate, context)
            while (request := await call.receive(requests)) is not None:
                answer = _serialised(await rpc.method(_parsed(rpc.request, request), call))
                call.sends()
                yield answer
                call.sent()
                number += 1
                del request, answer  # while it waits for the next one
        except Exception as error:
            await abort(context, error, prefix=f"message {number} of the stream: ")

    return grpc.stream_stream_rpc_method_handler(handle)


def _enter(rpc: Rpc, gate: Gate, context: Context) -> Call:
    """Lets a call in if its caller may make it; what operators do is logged."""
    call = gate.enter(context, needs=rpc.needs, single=not rpc.streams)
    if rpc.needs is Role.ADMIN:
        logger.info("%s calls %s", call.identity, rpc.name)
    return call


def _parsed(kind: type[Message], data: bytes) -> Any:
    """Bytes as a message of this kind; gRPC's own parsing would call bad bytes an internal error."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidInput(f"the request is no {kind.DESCRIPTOR.name}: {error}") from error


def _serialised(answer: Any) -> bytes:
    """Messages become bytes here, and what `codec` has made stays what it is."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()
