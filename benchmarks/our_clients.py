"""What a client of ours does for float32 numbers of some features: four ways to ask.

Each is a context that gives a function from ids, [features, ids of each] or as many in a row, to {feature: numbers}.
Streams send the next request once the last is answered, so that a caller waits for one answer at a time in all of them.
"""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final

import grpc
import numpy as np
from numpy.typing import NDArray

from embershard import Client, codec
from embershard.client.wire import channel_options
from embershard.v1 import embershard_pb2 as pb

Ids = NDArray[np.int64]
Answer = Mapping[str, NDArray[np.float32]]
Ask = Callable[[Ids], Answer]
Connect = Callable[[], AbstractContextManager[Ask]]

UNARY, STREAM = "embershard Client, unary", "embershard Client, stream"
RAW_UNARY, RAW_STREAM = "embershard, raw unary", "embershard, raw stream"
SERVICE: Final = "embershard.v1.EmbeddingService"
FEATURE: Final = "item"
"""Of the one table that peers have, too."""


@contextmanager
def client_unary(target: str, features: Sequence[str]) -> Iterator[Ask]:
    """The client, as anybody would use it."""
    with Client(target) as client:
        yield lambda ids: client.lookup(_named(features, ids))


@contextmanager
def client_stream(target: str, features: Sequence[str]) -> Iterator[Ask]:
    """The same on a stream."""
    requests: queue.SimpleQueue[Any] = queue.SimpleQueue()
    with Client(target) as client:
        answers = client.lookup_stream(iter(requests.get, None))

        def ask(ids: Ids) -> Answer:
            requests.put(_named(features, ids))
            return next(answers)

        try:
            yield ask
        finally:
            requests.put(None)


@contextmanager
def raw_unary(target: str, features: Sequence[str]) -> Iterator[Ask]:
    """A channel that sends and receives bytes, protobuf and our codec: what a thin client costs."""
    with grpc.insecure_channel(target, options=channel_options()) as channel:
        call: Any = channel.unary_unary(f"/{SERVICE}/Lookup")
        yield lambda ids: _decoded(call(encoded(features, ids)))


@contextmanager
def raw_stream(target: str, features: Sequence[str]) -> Iterator[Ask]:
    """The same on a stream."""
    requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    with grpc.insecure_channel(target, options=channel_options()) as channel:
        call: Any = channel.stream_stream(f"/{SERVICE}/LookupStream")
        answers = call(iter(requests.get, None))

        def ask(ids: Ids) -> Answer:
            requests.put(encoded(features, ids))
            return _decoded(next(answers))

        try:
            yield ask
        finally:
            requests.put(None)


OURS: Final = {UNARY: client_unary, STREAM: client_stream, RAW_UNARY: raw_unary, RAW_STREAM: raw_stream}
"""{name in tables: how}."""


def encoded(features: Sequence[str], ids: Ids) -> bytes:
    """A request, serialised."""
    parts = [pb.FeatureIds(feature=name, ids=part.tobytes()) for name, part in _named(features, ids).items()]
    return pb.LookupRequest(features=parts).SerializeToString()


def _named(features: Sequence[str], ids: Ids) -> dict[str, Ids]:
    return dict(zip(features, ids.reshape(len(features), -1), strict=True))


def _decoded(answer: bytes) -> Answer:
    return codec.decode_answer(answer, pb.D_TYPE_FLOAT32)
