"""Requests as bytes that no well-behaved client would send."""

from __future__ import annotations

from typing import Any

import grpc
import numpy as np

from embershard.v1 import embershard_pb2 as pb


class Raw:
    """A bare gRPC channel: sends messages, or bytes that are none."""

    def __init__(self, target: str) -> None:
        options = [("grpc.max_send_message_length", 2**30), ("grpc.max_receive_message_length", 2**30)]
        self._channel = grpc.insecure_channel(target, options=options)

    def __enter__(self) -> Raw:
        return self

    def __exit__(self, *_: object) -> None:
        self._channel.close()

    def call(self, method: str, request: Any) -> bytes:
        """Answers the response's bytes; raises grpc.RpcError."""
        data = request if isinstance(request, bytes) else request.SerializeToString()
        service = "AdminService" if method == "Snapshot" else "EmbeddingService"
        answer: bytes = self._channel.unary_unary(f"/embershard.v1.{service}/{method}")(data, timeout=30)
        return answer

    def stream(self, method: str, requests: list[Any]) -> list[bytes]:
        """The same for a stream of messages."""
        data = [request if isinstance(request, bytes) else request.SerializeToString() for request in requests]
        call = self._channel.stream_stream(f"/embershard.v1.EmbeddingService/{method}")
        return list(call(iter(data), timeout=30))


def int64(*numbers: int) -> bytes:
    return np.array(numbers, "<i8").tobytes()


def int32(*numbers: int) -> bytes:
    return np.array(numbers, "<i4").tobytes()


def float32(*numbers: float) -> bytes:
    return np.array(numbers, "<f4").tobytes()


def lookup(*features: dict[str, Any], **others: Any) -> pb.LookupRequest:
    return pb.LookupRequest(features=[pb.FeatureIds(**feature) for feature in features], **others)


def update(*features: dict[str, Any], **change: bytes) -> pb.UpdateRequest:
    return pb.UpdateRequest(
        updates=[pb.FeatureUpdate(batch=pb.FeatureIds(**feature), **change) for feature in features]
    )
