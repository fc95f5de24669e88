"""Traces of calls, by OpenTelemetry's own instrumentation of gRPC; this alone imports it.

Most calls aren't sampled, and those never reach the instrumentation.
"""

from __future__ import annotations

import logging
import os
import threading
import time
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

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable

    from opentelemetry.trace import Tracer

    from embershard.meters import Answered
    from embershard_server.watch import Context

    Single = Callable[[AsyncIterator[bytes], Context], Awaitable[bytes]]
    Stream = Callable[[AsyncIterator[bytes], Context], AsyncGenerator[bytes]]

RATIO = 0.01
"""Which part is traced of the calls whose callers trace nothing, unless OTEL_TRACES_SAMPLER says."""

LAST_S = 2.0
"""Longest that the process waits at its end for what takes its traces."""

_drawn: ContextVar[int] = ContextVar("drawn", default=0)
"""The id that the trace of the present call has, if one begins here."""


class _Ids(RandomIdGenerator):
    """Traces have the ids by which it was decided that they are sampled."""

    def generate_trace_id(self) -> int:
        return _drawn.get() or super().generate_trace_id()


class SampledTrace:
    """One call that is traced: the instrumentation has its span, and the stages of lookups are spans in that."""

    def __init__(self, path: str, interceptor: Any, tracer: Tracer) -> None:
        self._call, self._interceptor, self._tracer = SimpleNamespace(method=path), interceptor, tracer

    @property
    def id(self) -> str:
        """32 hex digits; of zeros if the call's span hasn't begun."""
        return format_trace_id(get_current_span().get_span_context().trace_id)

    async def single(self, handle: Single, requests: AsyncIterator[bytes], context: Context) -> bytes:
        """What a handler answers, traced."""
        traced = await self._instrumented(grpc.stream_unary_rpc_method_handler(handle))
        answer: bytes = await traced.stream_unary(requests, context)
        return answer

    async def stream(self, handle: Stream, requests: AsyncIterator[bytes], context: Context) -> AsyncGenerator[bytes]:
        """Likewise, of a stream."""
        traced = await self._instrumented(grpc.stream_stream_rpc_method_handler(handle))
        answers: AsyncGenerator[bytes] = traced.stream_stream(requests, context)
        return answers

    async def _instrumented(self, handler: grpc.RpcMethodHandler[Any, Any]) -> Any:
        """The instrumentation is an interceptor, which gRPC would have take part in every call: so it is asked here."""

        async def same(_: Any) -> grpc.RpcMethodHandler[Any, Any]:
            return handler

        return await self._interceptor.intercept_service(same, self._call)

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
        # What callers send that is no trace context isn't for our log.
        logging.getLogger("opentelemetry").setLevel("ERROR")
        resource = Resource.create({"service.name": _service_name(), "embershard.rank": rank})
        # What OTEL_TRACES_SAMPLER says, the SDK reads itself.
        asked = "OTEL_TRACES_SAMPLER" in os.environ
        self._root = None if asked else TraceIdRatioBased(RATIO)
        self._provider = TracerProvider(
            sampler=None if self._root is None else ParentBased(self._root), resource=resource, id_generator=_Ids()
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._interceptor = aio_server_interceptor(self._provider)
        self._tracer = self._provider.get_tracer("embershard_server")
        self._fields, self._draw = get_global_textmap().fields, RandomIdGenerator().generate_trace_id

    def close(self) -> None:
        """Sends what is left, if somebody takes it soon."""
        closing = threading.Thread(target=self._provider.shutdown, name="last traces", daemon=True)
        closing.start()
        closing.join(LAST_S)

    def trace(self, path: str, context: Context) -> SampledTrace | None:
        """What traces a call, whose caller may make it, if it is sampled. The instrumentation asks the same sampler
        again, and is told the same."""
        trace_id, carried = self._draw(), {}
        for key, value in context.invocation_metadata() or ():
            if key in self._fields:
                carried[key] = value
        if not carried and self._root and trace_id & TraceIdRatioBased.TRACE_ID_LIMIT >= self._root.bound:
            return None  # as most calls end, without asking anybody
        parent = extract(carried) if carried else None
        if not self._provider.sampler.should_sample(parent, trace_id, path, SpanKind.SERVER).decision.is_sampled():
            return None
        _drawn.set(trace_id)
        return SampledTrace(path, self._interceptor, self._tracer)


def _service_name() -> str:
    return os.environ.get("OTEL_SERVICE_NAME", "embershard")
