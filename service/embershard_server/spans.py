"""Traces of calls, by OpenTelemetry's own instrumentation of gRPC; this alone imports it.

Most calls aren't sampled, and those never reach the instrumentation.
"""

from __future__ import annotations

import os
import time
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.grpc import aio_server_interceptor
from opentelemetry.propagate import extract, get_global_textmap
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio
from opentelemetry.trace import SpanKind, format_trace_id, get_current_span

from embershard_server.watch import traced

if TYPE_CHECKING:
    from collections.abc import Sequence

    import grpc.aio
    from opentelemetry.trace import Tracer

RATIO = 0.01
"""Which part is traced of the calls whose callers trace nothing, unless OTEL_TRACES_SAMPLER says."""

_drawn: ContextVar[int] = ContextVar("drawn", default=0)
"""The id that the trace of the present call has, if one begins here."""


class _Ids(RandomIdGenerator):
    """Traces have the ids by which it was decided that they are sampled."""

    def generate_trace_id(self) -> int:
        return _drawn.get() or super().generate_trace_id()


class Trace:
    """That a call is traced; for `watch`."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @property
    def id(self) -> str:
        """32 hex digits; of zeros if the call's span hasn't begun."""
        return format_trace_id(get_current_span().get_span_context().trace_id)

    def note(self, stage: str, start_s: float, end_s: float) -> None:
        """A stage of it is over; both in `time.monotonic()` seconds."""
        epoch_s = time.time() - time.monotonic()
        span = self._tracer.start_span(stage, start_time=round((epoch_s + start_s) * 1e9))
        span.end(end_time=round((epoch_s + end_s) * 1e9))


class Tracing:
    """What traces the calls of one rank, until it is closed."""

    def __init__(self, rank: int) -> None:
        resource = Resource.create({"service.name": _service_name(), "embershard.rank": rank})
        # What OTEL_TRACES_SAMPLER says, the SDK reads itself.
        sampler = None if "OTEL_TRACES_SAMPLER" in os.environ else ParentBasedTraceIdRatio(RATIO)
        self._provider = TracerProvider(sampler=sampler, resource=resource, id_generator=_Ids())
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._trace = Trace(self._provider.get_tracer("embershard_server"))
        self._fields, self._draw = get_global_textmap().fields, RandomIdGenerator().generate_trace_id
        self.interceptors: Sequence[grpc.aio.ServerInterceptor] = [
            aio_server_interceptor(self._provider, filter_=self._is_traced)
        ]
        """For a gRPC server."""

    def close(self) -> None:
        """Sends what is left."""
        self._provider.shutdown()

    def _is_traced(self, call: Any) -> bool:
        """Whether a call is. The instrumentation asks the same sampler again, and is told the same."""
        carried = {key: value for key, value in call.invocation_metadata or () if key in self._fields}
        trace_id = self._draw()
        parent = extract(carried) if carried else None
        told = self._provider.sampler.should_sample(parent, trace_id, call.method, SpanKind.SERVER)
        if not told.decision.is_sampled():
            return False
        _drawn.set(trace_id)
        traced.set(self._trace)
        return True


def _service_name() -> str:
    return os.environ.get("OTEL_SERVICE_NAME", "embershard")
