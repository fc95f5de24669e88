"""A service that answers zeros, but does to each lookup what a test says."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np

from embershard import codec
from embershard.v1 import embershard_pb2 as pb

ROWS, DIM = 100, 4
DESCRIPTION = pb.DescribeResponse(
    name="fake",
    fingerprint="f",
    engine="local",
    world_size=1,
    tables=[
        pb.Table(
            name="item",
            rows=ROWS,
            dim=DIM,
            features=["item"],
            pooling=pb.POOLING_NONE,
            id_kind="direct",
            numbers_per_id=DIM,
        )
    ],
    limits=pb.Limits(ids_per_request=1_000, numbers_per_request=100_000),
)


class FakeService:
    """Serves the feature `item` on a free port; `does` is called with each lookup's number, from 1, and its call."""

    def __init__(self, does: Callable[[int, grpc.ServicerContext], object] | None = None) -> None:
        self._does, self._numbers, self._changed = does, itertools.count(1), threading.Condition()
        self.lookups = 0
        self._server = grpc.server(ThreadPoolExecutor(64))
        handlers = {
            "Describe": grpc.unary_unary_rpc_method_handler(lambda *_: DESCRIPTION.SerializeToString()),
            "Lookup": grpc.unary_unary_rpc_method_handler(self._lookup),
            "LookupStream": grpc.stream_stream_rpc_method_handler(self._stream),
        }
        generic = grpc.method_handlers_generic_handler("embershard.v1.EmbeddingService", handlers)
        self._server.add_generic_rpc_handlers((generic,))
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"

    def __enter__(self) -> FakeService:
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(None).wait()

    def wait(self, lookups: int, timeout_s: float = 60) -> None:
        """Until so many have come."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.lookups >= lookups, timeout_s)

    def _lookup(self, data: bytes, call: Any) -> bytes:
        number = next(self._numbers)
        with self._changed:
            self.lookups = max(self.lookups, number)
            self._changed.notify_all()
        if self._does:
            self._does(number, call)
        request = pb.LookupRequest.FromString(data)
        rows = [np.zeros((len(part.ids) // 8, DIM), codec.DTYPES[request.dtype]) for part in request.features]
        return codec.encode_answer([part.feature for part in request.features], rows, [], version=1)

    def _stream(self, requests: Iterator[bytes], call: Any) -> Iterator[bytes]:
        for data in requests:
            yield self._lookup(data, call)
