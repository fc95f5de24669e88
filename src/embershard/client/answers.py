"""Answers of lookups, which are only taken if they are to what was asked."""

from __future__ import annotations

from collections import deque

from embershard import codec
from embershard.errors import InternalError
from embershard.types import Rows
from embershard.v1 import embershard_pb2 as pb

NO_SERVICE = "what answers there is no embershard service, or a defect of one"


def read_answer(request: pb.LookupRequest, answer: bytes) -> Rows:
    """A LookupResponse, serialised → what it tells of the request.

    Raises:
        InternalError: it is none, or answers something else.
    """
    rows = codec.decode_answer(answer, request.dtype)
    if problem := _problem(request, rows):
        raise InternalError(f"the answer isn't to what was asked: {problem}; {NO_SERVICE}")
    return rows


class Asked:
    """Requests of a stream whose answers are still to come, in order."""

    def __init__(self) -> None:
        self._requests: deque[pb.LookupRequest] = deque()

    def note(self, request: pb.LookupRequest) -> pb.LookupRequest:
        """One more is sent."""
        self._requests.append(request)
        return request

    def read(self, answer: bytes) -> Rows:
        """The answer to the first of them; raises as `read_answer` does."""
        if not self._requests:
            raise InternalError(f"the stream has more answers than requests; {NO_SERVICE}")
        return read_answer(self._requests.popleft(), answer)


def _problem(request: pb.LookupRequest, rows: Rows) -> str:
    """What of an answer can't be; empty if nothing is known to be wrong."""
    asked = [part.feature for part in request.features]
    if list(rows) != asked:
        return f"it has the features {list(rows)}, and not {asked}"
    if request.pinned_version and rows.version != request.pinned_version:
        return f"it is of version {rows.version:,}, and {request.pinned_version:,} was asked for"
    if rows.version < request.min_version:
        return f"it is of version {rows.version:,}, and {request.min_version:,} or later was asked for"
    for part in request.features:
        ids = len(part.ids) // 8 + len(part.keys)
        outputs = {ids, len(part.lengths) // 4} if part.lengths else {ids}
        if len(rows[part.feature]) not in outputs:
            return f"feature {part.feature!r} has {len(rows[part.feature]):,} vectors for {ids:,} ids"
        for name in ("provenance",) * request.with_provenance + ("updates", "sightings") * request.with_counts:
            if (count := len(getattr(rows, name).get(part.feature, ()))) != ids:
                return f"feature {part.feature!r} has {name} of {count:,} ids, and not of {ids:,}"
    return ""
