"""Errors become gRPC status at the edge: here, and nowhere else."""

from __future__ import annotations

import logging
from typing import NoReturn

import grpc
import grpc.aio

from embershard.errors import STATUS_BY_ERROR, EmbershardError, Overloaded
from embershard_server.watch import REQUEST_ID, Context, Watch

logger = logging.getLogger(__name__)

LONGEST = 1_000
"""Characters of a message: gRPC puts it into a header, and drops the call if that is too large."""
DEFECT = "a defect of embershard, logged on the server under {}; nothing more is known to be wrong with the request"
PUSHBACK = "grpc-retry-pushback-ms"
"""Metadata that tells a client when to try again; gRPC's own retries heed it in every language."""


async def abort(context: Context, error: Exception, watch: Watch, prefix: str = "") -> NoReturn:
    """Ends a call with the status of an error; what isn't one of ours is logged, and told as a defect.

    Others are logged at level debug alone: whoever sends much that is refused doesn't flood the log.
    """
    if isinstance(error, grpc.aio.AbortError):
        raise error
    watch.lead()
    if isinstance(error, EmbershardError):
        code, details = grpc.StatusCode[STATUS_BY_ERROR.get(type(error), "INTERNAL")], str(error)
        logger.debug("%s ends with %s: %s%s", watch.name, code.name, prefix, details)
    else:
        logger.error("%s met a defect", watch.name, exc_info=error)
        code, details = grpc.StatusCode.INTERNAL, DEFECT.format(watch.request_id)
    watch.code, details = code.name, prefix + details
    metadata: tuple[tuple[str, str], ...] = ((REQUEST_ID, watch.request_id),)
    watch.end()  # before its caller hears of it
    if isinstance(error, Overloaded):
        watch.refused(error.reason)
        if error.retry_after_s is not None:
            metadata = (*metadata, (PUSHBACK, str(round(error.retry_after_s * 1000))))
    await context.abort(code, details if len(details) <= LONGEST else f"{details[:LONGEST]} …", metadata)
    raise AssertionError("abort raises")
