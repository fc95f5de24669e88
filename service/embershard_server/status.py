"""Errors become gRPC status at the edge: here, and nowhere else."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable
from typing import Any, NoReturn

import grpc
import grpc.aio
from google.protobuf.message import DecodeError, Message

from embershard.errors import STATUS_BY_ERROR, EmbershardError, InvalidInput

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
"""What gRPC knows of a call."""

LONGEST = 1_000
"""Characters of a message: gRPC puts it into a header, and drops the call if that is too large."""
DEFECT = "a defect of embershard, logged on the server; nothing more is known to be wrong with the request"


Handler = Callable[[Any, Context], Awaitable[Any]]
"""Answers one message."""


def parsed(kind: type[Message], data: bytes) -> Any:
    """Bytes as a message of this kind; gRPC's own parsing would call bad bytes an internal error."""
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise InvalidInput(f"the request is no {kind.DESCRIPTOR.name}: {error}") from error


def unary(kind: type[Message], method: Handler) -> Handler:
    """Wraps a handler of single messages of a kind, which arrive as bytes."""

    async def handle(request: bytes, context: Context) -> Any:
        try:
            return await method(parsed(kind, request), context)
        except Exception as error:
            await abort(context, error)

    return handle


async def abort(context: Context, error: Exception, prefix: str = "") -> NoReturn:
    """Ends a call with the status of an error; what isn't one of ours is logged, and told as a defect."""
    if isinstance(error, grpc.aio.AbortError):
        raise error
    if isinstance(error, EmbershardError):
        code, details = grpc.StatusCode[STATUS_BY_ERROR.get(type(error), "INTERNAL")], str(error)
    else:
        logger.error("a request met a defect", exc_info=error)
        code, details = grpc.StatusCode.INTERNAL, DEFECT
    details = prefix + details
    await context.abort(code, details if len(details) <= LONGEST else f"{details[:LONGEST]} …")
    raise AssertionError("abort raises")
