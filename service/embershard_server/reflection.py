"""Server reflection, by the name that it has now and by the one it had first, under which gRPC for Python has it."""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

NAMES = ("grpc.reflection.v1.ServerReflection", reflection.SERVICE_NAME)
"""The same messages under both; newer tools ask for the first, and some for nothing else."""


def reflecting(services: Sequence[str]) -> list[grpc.GenericRpcHandler]:
    """Tells the types of these services, for a gRPC server."""
    servicer = reflection.aio.ReflectionServicer([*services, reflection.SERVICE_NAME])
    method = grpc.stream_stream_rpc_method_handler(
        servicer.ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    return [grpc.method_handlers_generic_handler(name, {"ServerReflectionInfo": method}) for name in NAMES]
