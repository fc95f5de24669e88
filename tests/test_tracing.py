"""Traces, as a collector gets them: each call that is sampled has a span, and so have the stages of a lookup."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from collector import Collector, collecting
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status
from support.raw import int64, lookup
from support.service import Service

CONFIG = """
[collection]
name = "small"
[[tables]]
name = "t"
rows = 6
dim = 2
"""
SERVICE = "/embershard.v1.EmbeddingService/"
LOOKUP = lookup({"feature": "t", "ids": int64(1, 2)}).SerializeToString()
TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
STAGES = {"prepare", "gather", "encode"}


@pytest.fixture(scope="module")
def collector() -> Collector:
    return Collector()


@pytest.fixture(scope="module")
def channel(collector: Collector, tmp_path_factory: pytest.TempPathFactory) -> Iterator[grpc.Channel]:
    with collecting(collector) as address:
        variables = {"OTEL_EXPORTER_OTLP_ENDPOINT": address, "OTEL_BSP_SCHEDULE_DELAY": "50"}
        with (
            Service(CONFIG, tmp_path_factory.mktemp("small"), environment=variables) as running,
            grpc.insecure_channel(running.target) as connected,
        ):
            yield connected


def of(trace: int, *, sampled: bool) -> list[tuple[str, str]]:
    """Metadata of a call that is of a trace."""
    return [("traceparent", f"00-{trace:032x}-{PARENT}-0{int(sampled)}")]


def spans_of(collector: Collector, trace: int, calls: int = 1) -> list[Span]:
    """Of a trace, once so many calls of it have ended."""

    def of_it(spans: list[Span]) -> list[Span]:
        return [span for span in spans if span.trace_id == trace.to_bytes(16)]

    def ended(spans: list[Span]) -> bool:
        return sum(span.kind == Span.SPAN_KIND_SERVER for span in of_it(spans)) >= calls

    return of_it(collector.wait(ended))


def attributes(span: Span) -> dict[str, object]:
    return {one.key: getattr(one.value, str(one.value.WhichOneof("value"))) for one in span.attributes}


def test_a_lookup_that_its_caller_traces_has_spans_for_its_stages(collector: Collector, channel: grpc.Channel) -> None:
    channel.unary_unary(f"{SERVICE}Lookup")(LOOKUP, metadata=of(1, sampled=True))
    spans = spans_of(collector, 1)
    (whole,) = [span for span in spans if span.kind == Span.SPAN_KIND_SERVER]
    assert whole.name == f"{SERVICE}Lookup"
    assert whole.parent_span_id.hex() == PARENT
    told = attributes(whole)
    assert (told["rpc.system"], told["rpc.service"], told["rpc.method"]) == (
        "grpc",
        "embershard.v1.EmbeddingService",
        "Lookup",
    )
    assert told["rpc.grpc.status_code"] == 0
    stages = [span for span in spans if span.kind != Span.SPAN_KIND_SERVER]
    assert {span.name for span in stages} >= STAGES
    for span in stages:
        assert span.parent_span_id == whole.span_id
        assert span.start_time_unix_nano <= span.end_time_unix_nano <= whole.end_time_unix_nano + 1_000_000
    resource = next(resource for resource, span in collector.spans if span.span_id == whole.span_id)
    about = {one.key: one.value for one in resource.attributes}
    assert about["service.name"].string_value == "embershard"
    assert about["embershard.rank"].int_value == 0


def test_a_call_that_fails_has_its_status_in_its_span(collector: Collector, channel: grpc.Channel) -> None:
    with pytest.raises(grpc.RpcError):
        channel.unary_unary(f"{SERVICE}Lookup")(b"\xff", metadata=of(2, sampled=True))
    (span,) = spans_of(collector, 2)
    assert attributes(span)["rpc.grpc.status_code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert span.status.code != Status.STATUS_CODE_OK


def test_a_stream_is_one_span_with_the_stages_of_each_lookup(collector: Collector, channel: grpc.Channel) -> None:
    answers = list(channel.stream_stream(f"{SERVICE}LookupStream")(iter([LOOKUP] * 3), metadata=of(3, sampled=True)))
    spans = spans_of(collector, 3)
    assert len(answers) == 3
    assert [span.name for span in spans if span.kind == Span.SPAN_KIND_SERVER] == [f"{SERVICE}LookupStream"]
    assert sum(span.name == "gather" for span in spans) == 3
    bad = channel.stream_stream(f"{SERVICE}LookupStream")(iter([LOOKUP, b"\xff"]), metadata=of(4, sampled=True))
    with pytest.raises(grpc.RpcError):
        list(bad)
    (failed,) = [span for span in spans_of(collector, 4) if span.kind == Span.SPAN_KIND_SERVER]
    assert attributes(failed)["rpc.grpc.status_code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]


def test_a_call_whose_caller_does_not_sample_it_has_no_span(collector: Collector, channel: grpc.Channel) -> None:
    lookups = channel.unary_unary(f"{SERVICE}Lookup")
    for _ in range(20):
        lookups(LOOKUP, metadata=of(5, sampled=False))
    lookups(LOOKUP, metadata=of(6, sampled=True))
    spans_of(collector, 6)
    assert not any(span.trace_id == (5).to_bytes(16) for _, span in collector.spans)


def test_the_variables_of_opentelemetry_say_which_calls_are_sampled(tmp_path: Path) -> None:
    collector = Collector()
    with collecting(collector) as address:
        variables = {
            "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": address,
            "OTEL_TRACES_SAMPLER": "always_on",
            "OTEL_SERVICE_NAME": "embeddings",
        }
        with Service(CONFIG, tmp_path, environment=variables) as running, grpc.insecure_channel(running.target) as made:
            for _ in range(5):
                made.unary_unary(f"{SERVICE}Lookup")(LOOKUP)
    # What is left is sent when the server stops.
    roots = [(resource, span) for resource, span in collector.spans if span.kind == Span.SPAN_KIND_SERVER]
    assert len({span.trace_id for _, span in roots}) == 5
    assert not any(span.parent_span_id for _, span in roots)
    about = [one for resource, _ in roots for one in resource.attributes if one.key == "service.name"]
    assert {one.value.string_value for one in about} == {"embeddings"}


def test_traces_that_are_asked_for_without_their_packages_are_refused() -> None:
    program = (
        "import sys; sys.modules['opentelemetry.sdk.trace'] = None\n"
        "from embershard_server.tracing import tracing\n"
        "from embershard.errors import InstallError\n"
        "try: tracing(0)\n"
        "except InstallError as error: print(error)"
    )
    variables = os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:1"}
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, env=variables)
    assert "pip install 'embershard[tracing]'" in shown.stdout


def test_nothing_of_opentelemetry_is_imported_unless_it_is_asked_for() -> None:
    program = "import embershard_server.server, embershard_server.observing, sys; print('opentelemetry' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert shown.stdout.strip() == "False"
