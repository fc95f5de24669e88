"""Errors become gRPC status at the edge: here, and nowhere else."""

from __future__ import annotations

import logging
from typing import Any, NoReturn

import grpc
import grpc.aio

from embershard.errors import STATUS_BY_ERROR, EmbershardError, Overloaded

logger = logging.getLogger(__name__)

Context = grpc.aio.ServicerContext[Any, Any]
"""What gRPC knows of a call."""

LONGEST = 1_000
"""Characters of a message: gRPC puts it into a header, and drops the call if that is too large."""
DEFECT = "a defect of embershard, logged on the server; nothing more is known to be wrong with the request"
PUSHBACK = "grpc-retry-pushback-ms"
"""Metadata that tells a client when to try again; gRPC's own retries heed it in every language."""


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
    metadata: tuple[tuple[str, str], ...] = ()
    if isinstance(error, Overloaded) and error.retry_after_s is not None:
        metadata = ((PUSHBACK, str(round(error.retry_after_s * 1000))),)
    await context.abort(code, details if len(details) <= LONGEST else f"{details[:LONGEST]} …", metadata)
    raise AssertionError("abort raises")
