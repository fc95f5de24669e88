"""Server reflection, for those who may read."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any

from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from embershard_server.access import Access, Role
from embershard_server.status import Context, abort

if TYPE_CHECKING:
    import grpc.aio


def add_reflection(server: grpc.aio.Server, services: Sequence[str], access: Access | None) -> None:
    """Has a server tell what it understands."""
    names = [*services, reflection.SERVICE_NAME]
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(_Reflection(names, access), server)


class _Reflection(reflection.aio.ReflectionServicer):  # type: ignore[misc]  # it has no types
    def __init__(self, names: Sequence[str], access: Access | None) -> None:
        super().__init__(names)
        self._access = access

    async def ServerReflectionInfo(self, requests: AsyncIterator[Any], context: Context) -> AsyncIterator[Any]:
        if self._access:
            try:
                self._access.caller(context, Role.READ)
            except Exception as error:
                await abort(context, error)
        async for answer in super().ServerReflectionInfo(requests, context):
            yield answer
