"""Traces of calls, by OpenTelemetry's own instrumentation of gRPC; this alone imports it.

Most calls aren't sampled, and those never reach the instrumentation.
"""

from __future__ import annotations

import os
import time
from contextlib import aclosing
from contextvars import ContextVar
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import grpc
from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.grpc import aio_server_interceptor
from opentelemetry.propagate import extract, get_global_textmap
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ParentBased, TraceIdRatioBased
from opentelemetry.trace import SpanKind, format_trace_id, get_current_span

from embershard_server.watch import traced

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from opentelemetry.trace import Tracer

    from embershard.meters import Answered
    from embershard_server.watch import Context

    Single = Callable[[AsyncIterator[bytes], Context], Awaitable[bytes]]
    Stream = Callable[[AsyncIterator[bytes], Context], AsyncGenerator[bytes]]

RATIO = 0.01
"""Which part is traced of the calls whose callers trace nothing, unless OTEL_TRACES_SAMPLER says."""

_drawn: ContextVar[int] = ContextVar("drawn", default=0)
"""The id that the trace of the present call has, if one begins here."""


class _Ids(RandomIdGenerator):
    """Traces have the ids by which it was decided that they are sampled."""

    def generate_trace_id(self) -> int:
        return _drawn.get() or super().generate_trace_id()


class Stages:
    """Spans of the stages of the present call, whose own span the instrumentation has."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @property
    def id(self) -> str:
        """32 hex digits; of zeros if the call's span hasn't begun."""
        return format_trace_id(get_current_span().get_span_context().trace_id)

    def note(self, message: Answered) -> None:
        """A message of it has its answer: if it was a lookup, its stages become spans."""
        if not message.gathered_s:
            return
        moments = {"prepare": message.come_s, "queue": message.prepared_s, "gather": message.ticked_s}
        if not message.ticked_s:
            moments = {"prepare": message.come_s, "gather": message.prepared_s}
        moments["encode"] = message.gathered_s
        ends_s, epoch_s = [*moments.values(), message.answered_s][1:], time.time() - time.monotonic()
        for (stage, start_s), end_s in zip(moments.items(), ends_s, strict=True):
            span = self._tracer.start_span(stage, start_time=round((epoch_s + start_s) * 1e9))
            span.end(end_time=round((epoch_s + end_s) * 1e9))


class Tracing:
    """What traces the calls of one rank, until it is closed."""

    def __init__(self, rank: int) -> None:
        resource = Resource.create({"service.name": _service_name(), "embershard.rank": rank})
        # What OTEL_TRACES_SAMPLER says, the SDK reads itself.
        asked = "OTEL_TRACES_SAMPLER" in os.environ
        self._root = None if asked else TraceIdRatioBased(RATIO)
        self._provider = TracerProvider(
            sampler=None if self._root is None else ParentBased(self._root), resource=resource, id_generator=_Ids()
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._interceptor = aio_server_interceptor(self._provider)
        self._trace = Stages(self._provider.get_tracer("embershard_server"))
        self._fields, self._draw = get_global_textmap().fields, RandomIdGenerator().generate_trace_id

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()

    def single(self, path: str, handle: Single) -> Single:
        """The same, traced."""
        instrumented = self._instrumented(path, grpc.stream_unary_rpc_method_handler(handle))

        async def traced_handle(requests: AsyncIterator[bytes], context: Context) -> bytes:
            if self._is_sampled(path, context):
                answer: bytes = await (await instrumented()).stream_unary(requests, context)
                return answer
            return await handle(requests, context)

        return traced_handle

    def stream(self, path: str, handle: Stream) -> Stream:
        """Likewise."""
        instrumented = self._instrumented(path, grpc.stream_stream_rpc_method_handler(handle))

        async def traced_handle(requests: AsyncIterator[bytes], context: Context) -> AsyncGenerator[bytes]:
            sampled = self._is_sampled(path, context)
            chosen: Stream = (await instrumented()).stream_stream if sampled else handle
            async with aclosing(chosen(requests, context)) as answers:
                async for answer in answers:
                    yield answer

        return traced_handle

    def _instrumented(self, path: str, handler: grpc.RpcMethodHandler[Any, Any]) -> Callable[[], Awaitable[Any]]:
        """The instrumentation is an interceptor, which gRPC would have take part in every call: so it is asked here."""

        async def same(_: Any) -> grpc.RpcMethodHandler[Any, Any]:
            return handler

        call = SimpleNamespace(method=path)
        return lambda: self._interceptor.intercept_service(same, call)

    def _is_sampled(self, path: str, context: Context) -> bool:
        """Whether a call is traced. The instrumentation asks the same sampler again, and is told the same."""
        trace_id, carried = self._draw(), {}
        for key, value in context.invocation_metadata() or ():
            if key in self._fields:
                carried[key] = value
        if not carried and self._root and trace_id & TraceIdRatioBased.TRACE_ID_LIMIT >= self._root.bound:
            return False  # as most calls end, without asking anybody
        parent = extract(carried) if carried else None
        if not self._provider.sampler.should_sample(parent, trace_id, path, SpanKind.SERVER).decision.is_sampled():
            return False
        _drawn.set(trace_id)
        traced.set(self._trace)
        return True


def _service_name() -> str:
    return os.environ.get("OTEL_SERVICE_NAME", "embershard")
