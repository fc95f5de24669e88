"""From bytes to bytes: what surrounds the method of an RPC, for single calls and for streams.

gRPC has both kinds read their requests themselves, so that nothing is read of a call that is refused; on the wire a
single call is what it always was.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message

from embershard.errors import InvalidInput
from embershard_server.gate import Call, Gate
from embershard_server.status import Context, abort

Method = Callable[[Any, Call], Awaitable[Any]]
"""Answers one message, with a message or with bytes that are one."""


def single(gate: Gate, kind: type[Message], method: Method, check: Callable[[str], None] | None = None) -> Any:
    """An RPC of one message and one answer; `check` refuses callers before their message is read."""

    async def handle(requests: AsyncIterator[bytes], context: Context) -> bytes:
        try:
            call = gate.enter(context, single=True)
            if check:
                check(call.peer)
            if (request := await call.receive(requests)) is None:
                raise InvalidInput(f"the call ended without a {kind.DESCRIPTOR.name}")
            message = _parsed(kind, request)
            del request
            answer = _serialised(await method(message, call))
        except Exception as error:
            await abort(context, error)
        call.sends()
        return answer

    return grpc.stream_unary_rpc_method_handler(handle)


def stream(gate: Gate, kind: type[Message], method: Method) -> Any:
    """An RPC of many messages, each with its answer, in order.

    A message that is refused ends the stream, and the status names its place.
    """

    async def handle(requests: AsyncIterator[bytes], context: Context) -> AsyncIterator[bytes]:
        number = 0
        try:
            call = gate.enter(context, single=False)
            while (request := await call.receive(requests)) is not None:
                answer = _serialised(await method(_parsed(kind, request), call))
                call.sends()
                yield answer
                call.sent()
                number += 1
                del request, answer  # while it waits for the next one
        except Exception as error:
            await abort(context, error, prefix=f"message {number} of the stream: ")

    return grpc.stream_stream_rpc_method_handler(handle)


def _parsed(kind: type[Message], data: bytes) -> Any:
    """Bytes as a message of this kind; gRPC's own parsing would call bad bytes an internal error."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidInput(f"the request is no {kind.DESCRIPTOR.name}: {error}") from error


def _serialised(answer: Any) -> bytes:
    """Messages become bytes here, and what `codec` has made stays what it is."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()
