"""A collector of traces, as OpenTelemetry's exporters know it."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2 as otlp
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2_grpc as otlp_rpc
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(otlp_rpc.TraceServiceServicer):
    """Keeps all spans, with who has sent them."""

    def __init__(self) -> None:
        self.spans: list[tuple[Resource, Span]] = []
        self._changed = threading.Condition()

    def Export(self, request: otlp.ExportTraceServiceRequest, context: grpc.ServicerContext) -> Any:  # noqa: ARG002
        """Some spans."""
        with self._changed:
            self.spans += [
                (of_it.resource, span)
                for of_it in request.resource_spans
                for of_scope in of_it.scope_spans
                for span in of_scope.spans
            ]
            self._changed.notify_all()
        return otlp.ExportTraceServiceResponse()

    def wait(self, wanted: Callable[[list[Span]], bool], timeout_s: float = 30) -> list[Span]:
        """All spans, once they are what is wanted.

        Raises:
            TimeoutError: that hasn't come.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: wanted([span for _, span in self.spans]), timeout_s):
                raise TimeoutError(f"there are the spans {[span.name for _, span in self.spans]}")
            return [span for _, span in self.spans]


@contextmanager
def collecting(collector: Collector) -> Iterator[str]:
    """Its address, while it takes spans."""
    server = grpc.server(ThreadPoolExecutor(1))
    otlp_rpc.add_TraceServiceServicer_to_server(collector, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.stop(None).wait()
