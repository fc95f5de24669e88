"""Server reflection, for those who may read: by the name that it has now, and the first, which is all grpcio has."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from embershard.meters import FrontMeters, RpcMeters
from embershard_server.access import Access, Role
from embershard_server.status import abort
from embershard_server.watch import Context, Watch

if TYPE_CHECKING:
    import grpc.aio

NAMES = ("grpc.reflection.v1.ServerReflection", reflection.SERVICE_NAME)
"""The same messages under both: newer tools ask for the first one first, and some for nothing else."""
_METHOD = "ServerReflectionInfo"


def add_reflection(
    server: grpc.aio.Server, services: Sequence[str], access: Access | None, meters: FrontMeters
) -> None:
    """Has a server tell what it understands."""
    method = grpc.stream_stream_rpc_method_handler(
        _Reflection([*services, reflection.SERVICE_NAME], access, meters).ServerReflectionInfo,
        request_deserializer=reflection_pb2.ServerReflectionRequest.FromString,
        response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString,
    )
    handlers = [grpc.method_handlers_generic_handler(name, {_METHOD: method}) for name in NAMES]
    server.add_generic_rpc_handlers(handlers)


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]  # it has no types
    def __init__(self, names: Sequence[str], access: Access | None, meters: FrontMeters) -> None:
        super().__init__(names)
        self._access, self._meters = access, meters
        meters.rpcs[_METHOD] = RpcMeters()

    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        watch = Watch(_METHOD, self._meters, context, single=False)
        try:
            if self._access:
                self._access.caller(context, Role.READ, watch)
            async for answer in super().ServerReflectionInfo(requests, context):
                yield answer
            watch.code = "OK"
        except Exception as error:
            await abort(context, error, watch)
        finally:
            watch.end()
