"""Who may call what: tokens with roles and limits through the wire, on both engines."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.command import refused, told
from support.secured import ROLES, Secured, put

from embershard import (
    AccessDenied,
    AsyncClient,
    Client,
    Overloaded,
    Unauthenticated,
)
from embershard.engine.world import SoloWorld
from embershard.publisher import Publisher
from embershard.torch import Remote
from embershard.v1 import embershard_pb2 as pb

GARBAGE = b"\xff"
"""What is no message: whoever may call is told so, and whoever mayn't isn't even read."""
NEEDS = {
    "EmbeddingService": {
        "Describe": "read",
        "Lookup": "read",
        "LookupStream": "read",
        "Update": "update",
        "UpdateStream": "update",
    },
    "AdminService": dict.fromkeys(
        ("Snapshot", "Grow", "Freeze", "ListVersions", "Load", "Activate", "Rollback", "Stage", "Publish"), "admin"
    ),
}
METHODS = [
    (service.name, method.name, bool(method.client_streaming))
    for service in pb.DESCRIPTOR.services_by_name.values()
    for method in service.methods
]


def test_every_rpc_of_the_proto_has_a_role() -> None:
    described = {
        service: {name for owner, name, _ in METHODS if owner == service}
        for service in {owner for owner, *_ in METHODS}
    }
    assert described == {service: set(needs) for service, needs in NEEDS.items()}


@pytest.mark.parametrize(("service", "method", "streams"), METHODS, ids=[name for _, name, _ in METHODS])
def test_who_may_call_what(secured: Secured, service: str, method: str, streams: bool) -> None:
    needs = ROLES.index(NEEDS[service][method])
    with secured.raw() as channel:
        for token in (None, "wrong", *ROLES):
            allowed = token in ROLES and ROLES.index(token) >= needs
            status, details = ended(secured, channel, f"/embershard.v1.{service}/{method}", token, streams)
            if allowed:
                assert (status, "the request is no" in details) == ("INVALID_ARGUMENT", True)
            elif token in ROLES:
                assert (status, f"token of role '{ROLES[needs]}'" in details) == ("PERMISSION_DENIED", True)
            else:
                assert (status, "token" in details) == ("UNAUTHENTICATED", True)


def ended(secured: Secured, channel: grpc.Channel, path: str, token: str | None, streams: bool) -> tuple[str, str]:
    """How a call ends whose message is garbage."""
    kind = channel.stream_stream if streams else channel.unary_stream
    answers = kind(path)(iter([GARBAGE]) if streams else GARBAGE, timeout=30, metadata=secured.metadata(token))
    with pytest.raises(grpc.RpcError) as caught:
        next(answers)
    error: Any = caught.value
    secured.told.append(f"{error.details()} {error.trailing_metadata()}")
    return error.code().name, error.details()


@pytest.mark.parametrize(
    "metadata",
    [
        lambda token: (("authorization", token),),
        lambda token: (("authorization", f"Basic {token}"),),
        lambda token: (("authorization", f"Bearer  {token}"),),
        lambda token: (("authorization", f"Bearer {token}x"),),
        lambda token: (("authorization", f"Bearer {token[:-1]}"),),
        lambda token: (("authorization", f"Bearer {token}"),) * 2,
        lambda token: (("authorization", f"Bearer{token}"),),
        lambda token: (("authorization-bin", f"Bearer {token}".encode()),),
        lambda token: (("token", token),),
    ],
)
def test_what_is_no_bearer_token_lets_nobody_in(secured: Secured, metadata: Any) -> None:
    with secured.raw() as channel:
        call = channel.unary_unary("/embershard.v1.EmbeddingService/Describe")
        with pytest.raises(grpc.RpcError) as caught:
            call(b"", timeout=30, metadata=metadata(secured.tokens["admin"]))
    error: Any = caught.value
    assert error.code() is grpc.StatusCode.UNAUTHENTICATED


def test_health_is_open_reflection_is_for_readers_and_what_is_unknown_stays_so(secured: Secured) -> None:
    asked = reflection_pb2.ServerReflectionRequest(list_services="")
    with secured.raw() as channel:
        told = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest(), timeout=30)
        assert told.status == health_pb2.HealthCheckResponse.SERVING
        reflect = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo
        for token in (None, "wrong"):
            with pytest.raises(grpc.RpcError, match="UNAUTHENTICATED"):
                list(reflect(iter([asked]), timeout=30, metadata=secured.metadata(token)))
        (answer,) = reflect(iter([asked]), timeout=30, metadata=secured.metadata("read"))
        names = {service.name for service in answer.list_services_response.service}
        assert {f"embershard.v1.{name}" for name in NEEDS} < names
        for token in (None, "admin"):
            assert ended(secured, channel, "/embershard.v1.AdminService/Nothing", token, False)[0] == "UNIMPLEMENTED"


def test_every_kind_of_client_sends_its_token(secured: Secured, monkeypatch: pytest.MonkeyPatch) -> None:
    security = secured.security("update")
    with Client(secured.address, security=security) as client:
        version = client.update({"user_id": [1]}, gradients={"user_id": [[1, 0, 0, 0]]})
        assert list(client.update_stream([({"user_id": [1]}, {"user_id": [[1, 0, 0, 0]]})])) == [version + 1]
        assert [rows["user_id"].shape for rows in client.lookup_stream([{"user_id": [1, 2]}])] == [(2, 4)]
        with pytest.raises(AccessDenied, match="needs a token of role 'admin', and 'update' has 'update'"):
            client.snapshot()

    async def ask() -> None:
        async with AsyncClient(secured.address, security=security) as client:
            assert (await client.lookup({"user_id": [1]}))["user_id"].shape == (1, 4)
            async for rows in client.lookup_stream(several()):
                assert rows["user_id"].shape == (1, 4)
            with pytest.raises(AccessDenied):
                await client.snapshot()

    async def several() -> Any:
        yield {"user_id": [1]}

    asyncio.run(ask())
    with Remote(secured.address, security=security) as remote:
        assert remote.description.name == "secured"
    publisher = Publisher(secured.address, publisher="job", world=SoloWorld(), security=security)
    assert publisher._client.describe().name == "secured"
    publisher.close()


def test_the_command_line_takes_files_and_the_environment_likewise(
    secured: Secured, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = secured.folder
    flags = ["--target", secured.address, "--ca", folder / "ca.pem"]
    flags += ["--client-cert", folder / "client.pem", "--client-key", folder / "client.key"]
    assert told("describe", *flags, "--token-file", folder / "read.token")["name"] == "secured"
    assert "and 'read' has 'read'" in refused("versions", *flags, "--token-file", folder / "read.token")
    for name, file in {"CA": "ca.pem", "CLIENT_CERT": "client.pem", "CLIENT_KEY": "client.key"}.items():
        monkeypatch.setenv(f"EMBERSHARD_{name}", str(folder / file))
    monkeypatch.setenv("EMBERSHARD_TOKEN_FILE", str(folder / "admin.token"))
    assert told("versions", "--target", secured.address)["versions"]
    assert "and 'read' has 'read'" in refused("snapshot", *flags[:2], "--token-file", folder / "read.token")
    load = ["loadtest", "--rate", 20, "--seconds", 0.2, "--warmup", 0, "--ids", 2, *flags[:2]]
    if secured.service.size == 1:
        assert told(*load, "--token-file", folder / "read.token")["result"]  # it fails if calls aren't answered
        assert told(*load, "--stream")["result"]


# Renewal of tokens.


def test_tokens_are_replaced_without_a_restart_and_end_what_was_begun_with_them(secured: Secured) -> None:
    said = secured.service.said("its tokens are valid now")
    requests: queue.Queue[Any] = queue.Queue()
    with Client(secured.address, security=secured.security("few_calls")) as client:
        stream = client.lookup_stream(iter(requests.get, None))
        requests.put({"user_id": [1]})
        assert next(stream)["user_id"].shape == (1, 4)
        try:
            secured.write_tokens({**secured.tokens, "few_calls": "another-" + secured.tokens["few_calls"]})
            secured.service.wait_said("its tokens are valid now", said + secured.service.size)
            with pytest.raises(Unauthenticated, match="the call's token was taken away"):
                next(stream)
            with pytest.raises(Unauthenticated, match="was it replaced"):
                client.describe()
        finally:
            requests.put(None)
            secured.write_tokens(secured.tokens)
        secured.service.wait_said("its tokens are valid now", said + 2 * secured.service.size)
        assert client.describe().name == "secured"


@pytest.mark.parametrize("harm", ["garbage", "empty", "short", "gone"])
def test_a_broken_file_of_tokens_leaves_those_of_before(secured: Secured, harm: str) -> None:
    path, words = secured.folder / "tokens.toml", "the file of tokens has changed and can't be used"
    said, right = secured.service.said(words), path.read_bytes()
    if harm == "gone":
        path.unlink()
    else:
        put(path, {"garbage": right[: len(right) - 20], "empty": b"", "short": SHORT}[harm])
    try:
        secured.service.wait_said(words, said + secured.service.size)
        with Client(secured.address, security=secured.security("read")) as client:
            assert client.describe().name == "secured"
    finally:
        valid = secured.service.said("its tokens are valid now")
        put(path, right)
    secured.service.wait_said("its tokens are valid now", valid + secured.service.size)
    assert secured.service.said(words) == said + secured.service.size


SHORT = b"""
[[tokens]]
name = "short"
role = "admin"
token = "1234567890"
"""


# Limits of one identity.


def test_an_identity_has_so_many_calls_at_once_over_all_its_connections(secured: Secured) -> None:
    done, security = threading.Event(), secured.security("few_calls")

    def held() -> Iterator[Any]:
        yield {"user_id": [1]}
        done.wait()

    with ExitStack() as opened:
        first, second, third = (opened.enter_context(Client(secured.address, security=security)) for _ in range(3))
        opened.callback(done.set)
        for client in (first, second):
            stream = client.lookup_stream(held())
            opened.callback(stream.close)
            next(stream)
        with pytest.raises(Overloaded, match="'few_calls' has 2 calls under way, and its token has") as caught:
            third.lookup({"user_id": [1]})
        assert caught.value.retry_after_s
        with Client(secured.address, security=secured.security("read")) as other:
            assert other.describe().name == "secured"


def test_an_identity_has_so_many_ids_a_second(secured: Secured) -> None:
    with (
        Client(secured.address, security=secured.security("few_ids")) as client,
        Client(secured.address, security=secured.security("few_ids")) as same,
        Client(secured.address, security=secured.security("read")) as other,
    ):
        assert len(client.lookup({"user_id": range(10_000)})["user_id"]) == 10_000
        with pytest.raises(Overloaded, match=r"'few_ids' has sent more ids than its token's ids_per_s = 100") as caught:
            same.lookup({"user_id": [1]})
        assert caught.value.retry_after_s is not None
        assert 60 < caught.value.retry_after_s <= 99
        assert len(other.lookup({"user_id": range(1_000)})["user_id"]) == 1_000


def test_no_token_is_in_logs_errors_or_the_listing_of_processes(secured: Secured) -> None:
    with secured.raw() as channel:
        for token in secured.tokens:
            ended(secured, channel, "/embershard.v1.EmbeddingService/Lookup", token, False)
    processes = [Path(f"/proc/{pid}/cmdline").read_text() for pid in secured.service.rank_pids()]
    said = [secured.service.output, *secured.told, *processes, repr(secured.security())]
    assert all(token not in text for text in said for token in secured.tokens.values())
