"""From bytes to bytes: what surrounds the method of an RPC, for single calls and for streams.

gRPC has both kinds read their requests themselves, so that nothing is read of a call that is refused; on the wire a
single call is what it always was.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import grpc
from google.protobuf.message import DecodeError, Message

from embershard.errors import InvalidInput
from embershard.meters import FrontMeters, RpcMeters
from embershard_server.access import Role, name_in_certificate
from embershard_server.call import Call
from embershard_server.gate import Gate
from embershard_server.status import abort
from embershard_server.watch import Context, Watch

if TYPE_CHECKING:
    from embershard_server.spans import Tracing

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
    needs: Role | None
    """Who may call it; None: whoever can connect."""
    streams: bool = False
    """Whether it takes many messages, each with its answer, in order."""
    check: Callable[[str], None] | None = None
    """Refuses callers before their message is read."""


def service(
    name: str,
    rpcs: Sequence[Rpc],
    gate: Gate,
    meters: FrontMeters,
    tracing: Tracing | None,
    others: Mapping[str, grpc.RpcMethodHandler[Any, Any]] = MappingProxyType({}),
) -> grpc.GenericRpcHandler:
    """The RPCs of a service, and others that are neither kind, for a gRPC server."""
    meters.rpcs |= {rpc.name: RpcMeters() for rpc in rpcs}
    made = {**others}
    for rpc in rpcs:
        path = f"/{name}/{rpc.name}"
        if rpc.streams:
            made[rpc.name] = grpc.stream_stream_rpc_method_handler(_stream(rpc, path, gate, meters, tracing))
        else:
            made[rpc.name] = grpc.stream_unary_rpc_method_handler(_single(rpc, path, gate, meters, tracing))
    return grpc.method_handlers_generic_handler(name, made)


def _single(rpc: Rpc, path: str, gate: Gate, meters: FrontMeters, tracing: Tracing | None) -> Any:
    """An RPC of one message and one answer."""

    async def answered(call: Call, requests: AsyncIterator[bytes], context: Context) -> bytes:
        watch = call.watch
        try:
            if rpc.check:
                rpc.check(call.peer)
            request = await call.receive(requests)
            watch.received(len(request or b""))
            message = parsed(rpc.request, request)
            del request
            answer = _serialised(await rpc.method(message, call))
            watch.answered(len(answer))
            watch.code = "OK"
        except Exception as error:
            await abort(context, error, watch)
        return answer

    async def handle(requests: AsyncIterator[bytes], context: Context) -> bytes:
        watch = Watch(rpc.name, meters, context, single=True)
        try:
            call = await _enter(rpc, gate, context, watch)
            if tracing and (trace := tracing.trace(path, context)):
                watch.trace = trace
                answer = await trace.single(partial(answered, call), requests, context)
            else:
                answer = await answered(call, requests, context)
        finally:
            watch.end()
        call.sends()
        return answer

    return handle


def _stream(rpc: Rpc, path: str, gate: Gate, meters: FrontMeters, tracing: Tracing | None) -> Any:
    """An RPC of many messages: one that is refused ends the stream, and the status names its place."""

    async def answered(call: Call, requests: AsyncIterator[bytes], context: Context) -> AsyncGenerator[bytes]:
        number, watch = 0, call.watch
        try:
            while (request := await call.receive(requests)) is not None:
                watch.received(len(request))
                answer = _serialised(await rpc.method(parsed(rpc.request, request), call))
                watch.answered(len(answer))
                call.sends()
                yield answer
                call.sent()
                number += 1
                del request, answer  # while it waits for the next one
            watch.code = "OK"
        except Exception as error:
            await abort(context, error, watch, prefix=f"message {number} of the stream: ")

    async def handle(requests: AsyncIterator[bytes], context: Context) -> AsyncGenerator[bytes]:
        watch = Watch(rpc.name, meters, context, single=False)
        try:
            call = await _enter(rpc, gate, context, watch)
            if tracing and (trace := tracing.trace(path, context)):
                watch.trace = trace
                answers = await trace.stream(partial(answered, call), requests, context)
            else:
                answers = answered(call, requests, context)
            async with aclosing(answers):
                async for answer in answers:
                    yield answer
        finally:
            watch.end()

    return handle


async def _enter(rpc: Rpc, gate: Gate, context: Context, watch: Watch) -> Call:
    """Lets a call in if its caller may make it, or ends it; what operators do is logged."""
    try:
        call = gate.enter(context, watch, needs=rpc.needs, single=not rpc.streams)
    except Exception as error:
        await abort(context, error, watch)
    if rpc.needs in (Role.UPDATE, Role.ADMIN):
        watch.lead()
    if rpc.needs is Role.ADMIN:
        logger.info("%s calls %s", _who(watch, context, call), rpc.name)
    return call


def _who(watch: Watch, context: Context, call: Call) -> str:
    """For people: a token's name, else what is in the client's certificate, else where the call comes from."""
    certificate = name_in_certificate(context)
    return watch.identity or (f"certificate {certificate!r}" if certificate else call.peer)


def parsed(kind: type[Message], data: bytes | None) -> Any:
    """Bytes as a message of this kind; gRPC's own parsing would call bad bytes an internal error."""
    if data is None:
        raise InvalidInput(f"the call ended without a {kind.DESCRIPTOR.name}")
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidInput(f"the request is no {kind.DESCRIPTOR.name}: {error}") from error


def _serialised(answer: Any) -> bytes:
    """Messages become bytes here, and what `codec` has made stays what it is."""
    return answer if isinstance(answer, bytes) else answer.SerializeToString()
