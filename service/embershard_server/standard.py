"""gRPC's own services, behind the gate as ours are: health for whoever can connect, and reflection for readers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import grpc
from grpc_health.v1 import health
from grpc_health.v1 import health_pb2 as pb
from grpc_reflection.v1alpha import reflection, reflection_pb2

from embershard.errors import NotFound
from embershard.meters import RpcMeters
from embershard_server.access import Role
from embershard_server.handlers import Rpc, parsed, service
from embershard_server.status import abort
from embershard_server.watch import Watch

if TYPE_CHECKING:
    from embershard.meters import FrontMeters
    from embershard_server.call import Call
    from embershard_server.gate import Gate
    from embershard_server.watch import Context

REFLECTION: Final = ("grpc.reflection.v1.ServerReflection", reflection.SERVICE_NAME)
"""The same messages under both: newer tools ask for the first one first, and some for nothing else."""
_STATUS: Final = pb.HealthCheckResponse


class Health:
    """Whether services are served: grpc.health.v1."""

    def __init__(self, services: Sequence[str]) -> None:
        self._statuses = dict.fromkeys(("", *services), _STATUS.NOT_SERVING)
        self._changed = asyncio.Event()

    def tell(self, hindrance: str) -> None:
        """All of them are if there is none."""
        self._statuses = dict.fromkeys(self._statuses, _STATUS.NOT_SERVING if hindrance else _STATUS.SERVING)
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()

    def handler(self, gate: Gate, meters: FrontMeters) -> grpc.GenericRpcHandler:
        """For a gRPC server."""
        rpcs = [
            Rpc(name="Check", request=pb.HealthCheckRequest, method=self._check, needs=None),
            Rpc(name="List", request=pb.HealthListRequest, method=self._list, needs=None),
        ]
        meters.rpcs["Watch"] = RpcMeters()
        watch: Any = grpc.stream_stream_rpc_method_handler(self._watch(gate, meters))
        return service(health.SERVICE_NAME, rpcs, gate, meters, None, others={"Watch": watch})

    async def _check(self, request: pb.HealthCheckRequest, call: Call) -> pb.HealthCheckResponse:
        if request.service not in self._statuses:
            there = ", ".join(name for name in self._statuses if name)
            raise NotFound(f"there is no service {request.service!r}; there are {there}")
        return _STATUS(status=self._statuses[request.service])

    async def _list(self, request: pb.HealthListRequest, call: Call) -> pb.HealthListResponse:
        return pb.HealthListResponse(statuses={name: _STATUS(status=status) for name, status in self._statuses.items()})

    def _watch(self, gate: Gate, meters: FrontMeters) -> Any:
        """One message, and an answer whenever it would be another."""

        async def handle(requests: AsyncIterator[bytes], context: Context) -> AsyncGenerator[bytes]:
            watch, told = Watch("Watch", meters, context, single=False), None
            try:
                call = gate.enter(context, watch, needs=None, single=False)
                request = parsed(pb.HealthCheckRequest, await call.receive(requests))
                while True:
                    changed = self._changed
                    status = self._statuses.get(request.service, _STATUS.SERVICE_UNKNOWN)
                    if status != told:
                        told = status
                        yield _STATUS(status=status).SerializeToString()
                    await call.until(changed.wait())
            except Exception as error:
                await abort(context, error, watch)
            finally:
                watch.end()

        return handle


def reflection_handlers(services: Sequence[str], gate: Gate, meters: FrontMeters) -> list[grpc.GenericRpcHandler]:
    """What a server understands, for a gRPC server."""
    known = reflection.aio.ReflectionServicer([*services, reflection.SERVICE_NAME])

    async def answer(request: reflection_pb2.ServerReflectionRequest, call: Call) -> Any:
        async def alone() -> AsyncIterator[Any]:
            yield request

        return await anext(known.ServerReflectionInfo(alone(), None))

    rpc = Rpc(
        name="ServerReflectionInfo",
        request=reflection_pb2.ServerReflectionRequest,
        method=answer,
        needs=Role.READ,
        streams=True,
    )
    return [service(name, [rpc], gate, meters, None) for name in REFLECTION]
