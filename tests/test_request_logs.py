"""Logs: one object an event, with the id of the request by which its caller finds it; and no flood of refusals."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from embershard_server.access import Role
from embershard_server.gate import Gate
from embershard_server.handlers import Rpc, service
from embershard_server.logs import formatter
from support.raw import Raw, float32, int64, lookup, update
from support.service import Service

from embershard.config import LimitSpec
from embershard.errors import InvalidInput
from embershard.meters import FrontMeters
from embershard.v1 import embershard_pb2 as pb

CONFIG = """
[collection]
name = "small"
[[tables]]
name = "t"
rows = 6
dim = 2
"""
ID = "x-request-id"


async def fails(request: pb.DescribeRequest, call: Any) -> bytes:
    logging.getLogger("embershard").info("it begins")
    raise ZeroDivisionError("as the test says")


async def refuses(request: pb.DescribeRequest, call: Any) -> bytes:
    raise InvalidInput("as the test says")


def failed(*calls: tuple[str, str | None]) -> list[grpc.aio.AioRpcError]:
    """What becomes of calls of a server whose methods fail, with these ids."""

    async def run() -> list[grpc.aio.AioRpcError]:
        rpcs = [
            Rpc(name=method.__name__, request=pb.DescribeRequest, method=method, needs=Role.UPDATE)
            for method in (fails, refuses)
        ]
        server = grpc.aio.server()
        server.add_generic_rpc_handlers((service("a.B", rpcs, Gate(LimitSpec()), FrontMeters(), None),))
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        errors = []
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            for name, request_id in calls:
                metadata = [(ID, request_id)] if request_id is not None else []
                with pytest.raises(grpc.aio.AioRpcError) as caught:
                    await channel.unary_unary(f"/a.B/{name}")(b"", metadata=metadata)
                errors.append(caught.value)
        await server.stop(None)
        return errors

    return asyncio.run(run())


def told_id(error: grpc.aio.AioRpcError) -> str:
    (found,) = [value for key, value in error.trailing_metadata() or () if key == ID]
    assert isinstance(found, str)
    return found


@pytest.fixture(params=["json", "text"])
def lines(request: pytest.FixtureRequest) -> Iterator[tuple[str, list[str]]]:
    """What is logged from level debug on, in one of the formats."""
    logged: list[str] = []

    class Keeping(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            logged.append(self.format(record))

    handler, loggers = Keeping(), [logging.getLogger(name) for name in ("embershard", "embershard_server")]
    handler.setFormatter(formatter(request.param, rank=3))
    for logger in loggers:
        logger.addHandler(handler)
        logger.setLevel("DEBUG")
    yield request.param, logged
    for logger in loggers:
        logger.removeHandler(handler)
        logger.setLevel("NOTSET")


def test_a_defect_is_logged_under_the_id_that_its_caller_is_told(lines: tuple[str, list[str]]) -> None:
    form, logged = lines
    named, unnamed = failed(("fails", "my-id.7"), ("fails", None))
    assert named.code() == grpc.StatusCode.INTERNAL
    assert told_id(named) == "my-id.7"
    assert "under my-id.7;" in str(named.details())
    assert "as the test says" not in str(named.details())
    assert len(told_id(unnamed)) == 16
    if form == "text":
        assert any("INFO [rank 3] embershard: it begins [request_id my-id.7]" in line for line in logged)
        assert any("fails met a defect [request_id my-id.7]\nTraceback" in line for line in logged)
        return
    events = [json.loads(line) for line in logged]
    assert all(
        set(event) - {"exception"} == {"ts", "level", "rank", "logger", "message", "request_id"} for event in events
    )
    assert [(event["level"], event["request_id"]) for event in events] == [
        (level, of_it) for of_it in ("my-id.7", told_id(unnamed)) for level in ("info", "error")
    ]
    assert events[1]["exception"].endswith("ZeroDivisionError: as the test says")
    assert events[1]["message"] == "fails met a defect"
    assert events[0]["rank"] == 3
    assert events[0]["ts"].endswith("+00:00")


def test_a_refusal_is_logged_for_whoever_looks_for_it_alone(lines: tuple[str, list[str]]) -> None:
    _, logged = lines
    logging.getLogger("embershard_server").setLevel("INFO")
    failed(("refuses", "a"))
    assert logged == []
    logging.getLogger("embershard_server").setLevel("DEBUG")
    failed(("refuses", "b"))
    assert len(logged) == 1
    assert "refuses ends with INVALID_ARGUMENT: as the test says" in logged[0]


@pytest.mark.parametrize("bad", ["", "x" * 129])
def test_ids_that_no_log_should_have_are_replaced(bad: str) -> None:
    (error,) = failed(("refuses", bad))
    assert told_id(error) != bad
    assert len(told_id(error)) == 16


def test_a_service_logs_json_from_its_first_line_to_its_last(tmp_path: Path) -> None:
    flags = ["--log-format", "json", "--log-level", "debug"]
    with Service(CONFIG, tmp_path, flags=flags) as running, Raw(running.target) as raw:
        raw.call("Update", update({"feature": "t", "ids": int64(1)}, gradients=float32(1, 1)))
        with pytest.raises(grpc.RpcError) as caught:
            raw.call("Lookup", lookup({"feature": "nobody", "ids": int64(1)}))
    request_id = dict(caught.value.trailing_metadata())[ID]
    events = [json.loads(line) for line in running.lines if line.startswith("{")]
    (refusal,) = [event for event in events if event["message"].startswith("Lookup ends with INVALID_ARGUMENT")]
    assert (refusal["request_id"], refusal["level"], refusal["rank"]) == (request_id, "debug", 0)
    assert any("leaving" in event["message"] for event in events)
    assert not any("INFO" in line or "WARNING" in line for line in running.lines if not line.startswith("{"))


def test_a_wrong_configuration_is_told_as_json_too(tmp_path: Path) -> None:
    running = Service("nonsense", tmp_path, flags=["--log-format", "json"])
    assert running.ended() == 2
    (event,) = [json.loads(line) for line in running.lines]
    assert event["level"] == "critical"
    assert "collection.toml" in event["message"]
