"""What whoever can connect, or writes a file that is read again, can't do: end, stall or fill a rank."""

from __future__ import annotations

import asyncio
import os
import resource
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from embershard_server import connections, gate
from embershard_server.descriptors import connections_for
from embershard_server.gate import Gate
from embershard_server.tokens import load_tokens
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.secured import Secured, put
from support.service import Service

from embershard import Client, Overloaded, Security
from embershard.config import LimitSpec
from embershard.errors import ConfigError

CONFIG = """
[collection]
name = "strangers"
[limits]
calls = 64
stalled_s = 1
[[tables]]
name = "t"
rows = 10
dim = 3
[[tables]]
name = "bag"
rows = 10
dim = 3
pooling = "sum"
"""


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(CONFIG, tmp_path_factory.mktemp("strangers"), flags=["--metrics-listen", "127.0.0.1:0"]) as started:
        yield started


@pytest.fixture
def channel(service: Service) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(service.target) as opened:
        yield opened


def code_of(call: Any) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as refused:
        list(call) if isinstance(call, Iterator) else call()
    code: grpc.StatusCode = refused.value.code()
    return code


def test_health_is_asked_nonsense_and_for_nobody(service: Service, channel: grpc.Channel) -> None:
    for method in ("Check", "List"):
        call = channel.unary_unary(f"/grpc.health.v1.Health/{method}")
        assert code_of(lambda call=call: call(b"\xff", timeout=30)) == grpc.StatusCode.INVALID_ARGUMENT
    health = health_pb2_grpc.HealthStub(channel)
    nobody = health_pb2.HealthCheckRequest(service="nobody")
    assert code_of(lambda: health.Check(nobody, timeout=30)) == grpc.StatusCode.NOT_FOUND
    assert next(health.Watch(nobody, timeout=30)).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    assert "Traceback" not in service.output


def test_watches_of_health_are_calls_like_others(service: Service, channel: grpc.Channel) -> None:
    other = grpc.insecure_channel(service.target, options=[("grpc.use_local_subchannel_pool", 1)])
    stubs = [health_pb2_grpc.HealthStub(one) for one in (channel, other)]
    watches, codes = [], set()
    for stub in stubs * 30:
        watches.append(stub.Watch(health_pb2.HealthCheckRequest(), timeout=60))
        try:
            next(watches[-1])
        except grpc.RpcError as error:
            codes.add(error.code())
    assert codes == {grpc.StatusCode.RESOURCE_EXHAUSTED}
    with Client(service.target) as client:  # and there is room for somebody else
        assert client.lookup({"t": [1]})["t"].shape == (1, 3)
    for watch in watches:
        watch.cancel()
    other.close()


def test_a_watch_of_health_delays_no_stop(tmp_path: Path) -> None:
    with Service(CONFIG, tmp_path) as service, grpc.insecure_channel(service.target) as channel:
        watch = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
        assert next(watch).status == health_pb2.HealthCheckResponse.SERVING
        assert service.stop() == 0
        statuses = []
        assert code_of(statuses.append(answer.status) for answer in watch) == grpc.StatusCode.UNAVAILABLE
        assert set(statuses) <= {health_pb2.HealthCheckResponse.NOT_SERVING}
        assert "are cut off" not in service.output


def test_reflection_takes_nonsense_as_such(service: Service, channel: grpc.Channel) -> None:
    call = channel.stream_stream("/grpc.reflection.v1.ServerReflection/ServerReflectionInfo")
    assert code_of(call(iter([b"\xff"]), timeout=30)) == grpc.StatusCode.INVALID_ARGUMENT
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    (answer,) = stub.ServerReflectionInfo(iter([asked]), timeout=30)
    assert "embershard.v1.EmbeddingService" in {told.name for told in answer.list_services_response.service}


def test_connections_that_are_kept_open_keep_no_probe_out(service: Service) -> None:
    host, _, port = service.metrics[0].removeprefix("http://").rpartition(":")
    kept = [socket.create_connection((host, int(port))) for _ in range(30)]
    try:
        with socket.create_connection((host, int(port)), timeout=30) as probe:
            probe.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            assert probe.recv(100).split()[1] == b"200"
    finally:
        for one in kept:
            one.close()


def test_more_connections_than_there_may_be_files_are_refused_and_the_service_goes_on(tmp_path: Path) -> None:
    limits = "import resource, runpy; resource.setrlimit(resource.RLIMIT_NOFILE, (400, 400)); "
    program = limits + "runpy.run_module('embershard_server', run_name='__main__')"
    with Service(CONFIG.replace("calls = 64", "calls = 1024"), tmp_path, program=["-c", program]) as service:
        assert "connections: 272 at most" in service.output
        host, _, port = service.target.rpartition(":")
        with Client(service.target) as client:
            client.lookup({"t": [1]})
            strangers = [socket.create_connection((host, int(port))) for _ in range(500)]
            assert client.lookup({"t": [1]})["t"].shape == (1, 3)
            for stranger in strangers:
                stranger.close()
        assert service.stop() == 0


def test_a_sweep_that_cannot_see_is_told_and_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried = 0

    def received() -> tuple[dict[str, int], float]:
        nonlocal tried
        tried += 1
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(connections, "received", received)
    monkeypatch.setattr(gate, "BLIND_S", 0.01)
    monkeypatch.setattr(gate, "SWEEP_S", 0.001)

    async def run() -> None:
        sweeping = asyncio.create_task(Gate(LimitSpec(), None).sweep())
        while tried < 3:
            assert not sweeping.done()
            await asyncio.sleep(0.001)
        sweeping.cancel()

    asyncio.run(run())
    assert "Too many open files" in caplog.text


def test_as_many_connections_are_let_in_as_there_may_be_files(monkeypatch: pytest.MonkeyPatch) -> None:
    allowed: list[Any] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, 1024))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limit: allowed.append(limit))
    assert connections_for(500) == 500
    assert allowed == [(1024, 1024)]
    assert connections_for(5000) == 1024 - 128


@pytest.mark.parametrize(
    "harm", [b"x = " + b"[" * 5000, b"x = " + b"1" * 5000, b"#" * 2**21], ids=["deep", "long number", "large"]
)
def test_a_file_of_tokens_that_nobody_would_write_is_refused(tmp_path: Path, harm: bytes) -> None:
    path = tmp_path / "tokens.toml"
    path.write_bytes(harm)
    with pytest.raises(ConfigError, match=r"tokens\.toml"):
        load_tokens(path)


def test_a_pipe_in_place_of_a_file_keeps_nobody_waiting(secured: Secured) -> None:
    for name, words in (("tokens.toml", "file of tokens has changed"), ("server.key", "files of TLS have changed")):
        path = secured.folder / name
        right, said = path.read_bytes(), secured.service.said(words)
        os.mkfifo(pipe := path.with_name("pipe"))
        pipe.replace(path)
        try:
            with Client(secured.address, security=secured.security("read")) as client:
                assert client.describe().name == "secured"
            secured.service.wait_said(words, said + 1)
        finally:
            put(path, right)
        with Client(secured.address, security=secured.security("read")) as client:
            assert client.describe().name == "secured"


def test_a_stream_of_reflection_ends_with_its_token(secured: Secured) -> None:
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    right = (secured.folder / "tokens.toml").read_bytes()

    async def run() -> grpc.StatusCode:
        security = secured.security(None)
        async with security.channel(secured.address, [], aio=True) as channel:
            stub = reflection_pb2_grpc.ServerReflectionStub(channel)
            call = stub.ServerReflectionInfo(metadata=secured.metadata("read"), timeout=60)
            await call.write(asked)
            await call.read()
            secured.write_tokens({name: token for name, token in secured.tokens.items() if name != "read"})
            code: grpc.StatusCode = await call.code()
            return code

    try:
        assert asyncio.run(run()) == grpc.StatusCode.UNAUTHENTICATED
    finally:
        valid = secured.service.said("its tokens are valid now")
        put(secured.folder / "tokens.toml", right)
        secured.service.wait_said("its tokens are valid now", valid + secured.service.size)


def test_bags_without_ids_count_towards_the_limit_of_an_identity(tmp_path: Path) -> None:
    token = "few-ids-of-somebody"
    path = tmp_path / "tokens.toml"
    path.write_text(f'[[tokens]]\nname = "few"\nrole = "read"\ntoken = "{token}"\nids_per_s = 100\n')

    nothing = (np.zeros(0, np.int64), np.zeros(10_000, np.int32))
    with (
        Service(CONFIG, tmp_path / "state", flags=["--tokens", path]) as service,
        Client(service.target, security=Security(token=token)) as client,
    ):
        assert client.lookup({"bag": nothing})["bag"].shape == (10_000, 3)
        with pytest.raises(Overloaded, match="ids_per_s"):
            client.lookup({"bag": nothing})
