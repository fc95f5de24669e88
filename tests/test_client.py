"""The client against a service that misbehaves: what is repeated, what never is, and what the caller is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import numpy as np
import pytest

import embershard
from embershard import AsyncClient, Client
from embershard.errors import ERROR_BY_STATUS
from embershard.types import FeatureBatch
from embershard.v1 import embershard_pb2 as pb
from embershard.v1 import embershard_pb2_grpc as rpc


class Moody(rpc.EmbeddingServiceServicer):  # type: ignore[misc]  # gRPC's generated classes have no types
    """Refuses calls with the given statuses, one after the other, and answers from then on."""

    def __init__(self) -> None:
        self.moods: list[grpc.StatusCode] = []
        self.calls = 0
        self.identities: list[tuple[str, int]] = []

    def _be_moody(self, context: grpc.ServicerContext) -> None:
        self.calls += 1
        if self.moods:
            context.set_trailing_metadata([("grpc-retry-pushback-ms", "1")])
            context.abort(self.moods.pop(0), "not now")

    def Lookup(self, request: Any, context: grpc.ServicerContext) -> pb.LookupResponse:
        self._be_moody(context)
        rows = [pb.FeatureRows(feature=part.feature, rows=len(part.ids) // 8) for part in request.features]
        return pb.LookupResponse(version=5, features=rows)

    def Update(self, request: Any, context: grpc.ServicerContext) -> pb.UpdateResponse:
        self.identities.append((request.client_id, request.sequence))
        self._be_moody(context)
        return pb.UpdateResponse(version=6)

    def UpdateStream(self, requests: Any, context: grpc.ServicerContext) -> Iterator[pb.UpdateResponse]:
        for request in requests:
            yield self.Update(request, context)


@pytest.fixture
def service() -> Iterator[tuple[Moody, str]]:
    server, moody = grpc.server(ThreadPoolExecutor(2)), Moody()
    rpc.add_EmbeddingServiceServicer_to_server(moody, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    yield moody, f"127.0.0.1:{port}"
    server.stop(None).wait()


def test_a_lookup_is_repeated_while_the_service_is_unavailable(service: tuple[Moody, str]) -> None:
    moody, target = service
    moody.moods = [grpc.StatusCode.UNAVAILABLE] * 3
    with Client(target) as client:
        assert client.lookup({"t": [1]}).version == 5
    assert moody.calls == 4


def test_a_large_lookup_is_repeated_as_well(service: tuple[Moody, str]) -> None:
    moody, target = service
    moody.moods = [grpc.StatusCode.UNAVAILABLE] * 2
    with Client(target) as client:
        assert client.lookup({"t": np.arange(300_000)}).version == 5
    assert moody.calls == 3


UPDATE: dict[str, Any] = {"features": {"t": [1]}, "gradients": {"t": np.ones((1, 2))}}


def test_an_update_is_sent_again_under_its_number_until_it_is_answered(service: tuple[Moody, str]) -> None:
    moody, target = service
    moody.moods = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.RESOURCE_EXHAUSTED]
    with Client(target) as client:
        assert [client.update(**UPDATE) for _ in range(3)] == [6] * 3
    assert len({client_id for client_id, _ in moody.identities}) == 1
    assert [sequence for _, sequence in moody.identities] == [1, 1, 1, 2, 3]


def test_what_is_not_answered_in_time_leaves_no_gap_behind_it(service: tuple[Moody, str]) -> None:
    moody, target = service
    with Client(target) as client:
        client.update(**UPDATE)
        moody.moods = [grpc.StatusCode.UNAVAILABLE] * 1000
        with pytest.raises(embershard.Unavailable, match="not now"):
            client.update(**UPDATE, timeout_s=0.2)
        moody.moods = []
        client.update(**UPDATE)
    (first, one), *tried, (other, last) = moody.identities
    assert {*tried} == {(first, 2)}
    assert other != first
    assert (one, last) == (1, 1)


def test_a_refused_update_leaves_its_number_to_the_next(service: tuple[Moody, str]) -> None:
    moody, target = service
    moody.moods = [grpc.StatusCode.INVALID_ARGUMENT]
    with Client(target) as client:
        with pytest.raises(embershard.InvalidInput):
            client.update(**UPDATE)
        client.update(**UPDATE)
    assert [sequence for _, sequence in moody.identities] == [1, 1]


def test_a_client_that_was_forgotten_begins_anew(service: tuple[Moody, str]) -> None:
    moody, target = service
    with Client(target) as client:
        client.update(**UPDATE)
        moody.moods = [grpc.StatusCode.OUT_OF_RANGE]
        assert client.update(**UPDATE) == 6
    assert [sequence for _, sequence in moody.identities] == [1, 2, 1]


def test_a_gap_in_numbers_of_the_callers_own_is_told(service: tuple[Moody, str]) -> None:
    moody, target = service
    moody.moods = [grpc.StatusCode.OUT_OF_RANGE]
    with Client(target) as client, pytest.raises(embershard.SequenceGap):
        client.update(**UPDATE, identity=("trainer-0", 7))
    assert moody.identities == [("trainer-0", 7)]


def test_a_stream_that_breaks_goes_on_where_it_was(service: tuple[Moody, str]) -> None:
    moody, target = service
    with Client(target) as client:
        versions = client.update_stream(({"t": [1]}, {"t": np.ones((1, 2))}) for _ in range(5))
        assert next(versions) == 6
        moody.moods = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE]
        assert list(versions) == [6] * 4
    assert len({client_id for client_id, _ in moody.identities}) == 1
    assert [*dict.fromkeys(sequence for _, sequence in moody.identities)] == [1, 2, 3, 4, 5]


def test_an_asynchronous_stream_does_so_as_well(service: tuple[Moody, str]) -> None:
    moody, target = service

    async def source() -> AsyncIterator[Any]:
        for _ in range(5):
            yield {"t": [1]}, {"t": np.ones((1, 2))}

    async def versions() -> list[int]:
        async with AsyncClient(target) as client:
            assert await client.update(**UPDATE) == 6
            return [version async for version in client.update_stream(source())]

    moody.moods = [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAVAILABLE]
    assert asyncio.run(versions()) == [6] * 5
    assert [*dict.fromkeys(moody.identities[-5:])] == moody.identities[-5:]


@pytest.mark.parametrize("status", [name for name in ERROR_BY_STATUS if name != "UNAVAILABLE"])
def test_every_status_is_its_error_and_is_not_repeated(service: tuple[Moody, str], status: str) -> None:
    moody, target = service
    moody.moods = [grpc.StatusCode[status]]
    with Client(target) as client, pytest.raises(ERROR_BY_STATUS[status], match=f"{target}: not now"):
        client.lookup({"t": [1]})
    assert moody.calls == 1


def test_a_closed_client_is_unavailable(service: tuple[Moody, str]) -> None:
    client = Client(service[1])
    client.close()
    with pytest.raises(embershard.Unavailable, match="closed"):
        client.lookup({"t": [1]})


def test_a_service_that_is_not_there_is_told_with_what_to_do() -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(embershard.Unavailable, match="start `embershard serve`"):
        client.describe()


def test_a_status_that_embershard_never_gives_is_an_internal_error(service: tuple[Moody, str]) -> None:
    moody, target = service
    moody.moods = [grpc.StatusCode.UNKNOWN]
    with Client(target) as client, pytest.raises(embershard.InternalError):
        client.lookup({"t": [1]})


@pytest.mark.parametrize(
    "target", ["", "localhost", "127.0.0.1:0", "127.0.0.1:99999", "localhost:²", "http://localhost:50051"]
)
def test_a_target_that_is_no_address_is_refused(target: str) -> None:
    with pytest.raises(embershard.InvalidInput, match="is not HOST:PORT"):
        Client(target)


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.lookup({"t": [[1], [2, 3]]}),
        lambda client: client.lookup({"\ud800": [1]}),
        lambda client: client.lookup({"t": [1]}, min_version=-1),
        lambda client: client.lookup({"t": [1, 2**64]}),
        lambda client: client.lookup({"t": [None]}),
        lambda client: client.lookup({"t": np.array([1, 2], object).reshape(1, 2)}),
        lambda client: client.lookup({"t": [1]}, fingerprint="\ud800"),
        lambda client: client.lookup({"t": [1]}, min_version=1.5),
        lambda client: client.lookup(["t"]),
        lambda client: client.lookup({"t": (1, 2)}),
        lambda client: client.lookup({"t": [1, "a"]}),
        lambda client: client.update({"t": [1]}, gradients=np.ones((1, 2))),
        lambda client: client.update(**UPDATE, identity=("a", -1)),
        lambda client: client.lookup({"t": [1]}, pinned_version="a"),
        lambda client: client.activate("newest"),
        lambda client: client.load(1.5),
    ],
)
def test_what_cannot_be_sent_is_invalid_input(service: tuple[Moody, str], call: Callable[[Client], Any]) -> None:
    moody, target = service
    with Client(target) as client, pytest.raises(embershard.InvalidInput):
        call(client)
    assert moody.calls == 0


def test_strings_may_stand_in_an_object_array_as_pandas_has_them() -> None:
    assert FeatureBatch.of("t", np.array(["a", "ü"], object)).ids == ("a", "ü")


def test_integers_of_both_halves_of_uint64_may_stand_in_one_list() -> None:
    batch = FeatureBatch.of("t", [1, 2**63, -1, 2**64 - 1])
    assert list(batch.ids) == [1, -(2**63), -1, -1]


@pytest.mark.parametrize(
    ("ids", "message"),
    {
        "floats": ([1.5], "array of integers"),
        "one string": ("abc", "give a sequence of ids"),
        "mixed": (["a", 1], r"ids\[1\] is 1; ids are all strings or all integers"),
        "two dimensions": ([[1]], "one-dimensional"),
        "booleans": ([True], "array of integers"),
        "too large": ([2**64], "array of integers"),
        "a tuple of one": (([1],), "a tuple is"),
        "float lengths": (([1], [1.0]), "lengths must be"),
        "lengths beyond int32": (([1], [2**31]), "do not fit into int32"),
        "words for weights": (([1], [1], ["a"]), "weights must be numbers"),
        "a lone surrogate": (["\ud800"], "no text"),
    }.values(),
)
def test_the_client_refuses_before_it_sends(ids: Any, message: str) -> None:
    with Client("127.0.0.1:1") as client, pytest.raises(embershard.InvalidInput, match=message):
        client.lookup({"tag": ids})


def test_the_client_names_features_without_a_change() -> None:
    with Client("127.0.0.1:1") as client:
        with pytest.raises(embershard.InvalidInput, match=r"only one side has \['b'\]"):
            client.update({"a": [1], "b": [1]}, gradients={"a": np.ones((1, 2))})
        with pytest.raises(embershard.InvalidInput, match="must have 2 dimension"):
            client.update({"a": [1]}, gradients={"a": [1, 1]})
        with pytest.raises(embershard.InvalidInput, match="not one of float32, float16"):
            client.lookup({"a": [1]}, dtype="int3")
