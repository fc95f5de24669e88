"""The service through the wire, on both engines: what a caller in any language sees."""

from __future__ import annotations

import asyncio
import threading
import tomllib
from collections.abc import AsyncIterator, Iterator

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from support.reference import Reference
from support.service import Service

from embershard import AsyncClient, Client, DeadlineExceeded, FingerprintMismatch, InvalidInput, Provenance
from embershard.config import parse_config
from embershard.types import FeatureBatch
from embershard.v1 import embershard_pb2 as pb
from embershard.v1 import embershard_pb2_grpc as rpc

SHOP = """
[collection]
name = "shop"
seed = 7

[optimizer]
kind = "sgd"
learning_rate = 0.5

[limits]
message_bytes = 1_000_000
ids_per_request = 20_000

[[tables]]
name = "user"
rows = 1_000
dim = 6
features = ["user_id", "friend_id"]
ids = { padding = 0 }

[[tables]]
name = "zip"
rows = 64
dim = 3
ids = { kind = "hashed", hashes = 2, signed = true }

[[tables]]
name = "genre"
rows = 20
dim = 6
pooling = "mean"
optimizer = { kind = "adagrad", learning_rate = 0.1 }
"""


@pytest.fixture(scope="module", params=[0, 2], ids=["local", "torchrec-2"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(SHOP, tmp_path_factory.mktemp("shop"), ranks=request.param) as running:
        yield running


@pytest.fixture
def client(service: Service) -> Iterator[Client]:
    with Client(service.target) as connected:
        yield connected


@pytest.fixture
def other(service: Service) -> Iterator[Client]:
    """Another front end of the same service, if it has one."""
    with Client(service.addresses[service.size - 1]) as connected:
        yield connected


def test_a_lookup_answers_what_the_reference_answers(client: Client) -> None:
    reference = Reference(parse_config(tomllib.loads(SHOP)))
    asked = {"friend_id": [900, 901, 0, 900], "zip": ["90210", "", "ü"], "genre": ([1, 2, 3], [2, 0, 1])}
    rows = client.lookup(asked)
    assert list(rows) == list(asked)
    for feature, ids in asked.items():
        (expected,) = reference.lookup([FeatureBatch.of(feature, ids)])
        np.testing.assert_allclose(rows[feature], expected, rtol=1e-5, atol=1e-7)
        assert rows[feature].dtype == np.float32


def test_what_one_front_end_was_told_the_other_answers(client: Client, other: Client) -> None:
    before = client.lookup({"user_id": [7, 8]})
    version = client.update({"user_id": [7, 7]}, gradients={"user_id": np.ones((2, 6))})
    after = other.lookup({"friend_id": [7, 8]}, min_version=version, with_provenance=True)
    assert after.version >= version > before.version
    np.testing.assert_allclose(after["friend_id"], before["user_id"] - [[1.0], [0.0]], rtol=1e-6)
    assert after.provenance["friend_id"].tolist() == [Provenance.OWN_ROW, Provenance.UNTRAINED]


def test_values_overwrite_rows(client: Client, other: Client) -> None:
    values = np.arange(12, dtype=np.float32).reshape(2, 6)
    version = other.assign({"user_id": [999, 1]}, values={"user_id": values})
    np.testing.assert_array_equal(client.lookup({"user_id": [999, 1]}, min_version=version)["user_id"], values)


def test_half_precision_travels_as_half_the_bytes(client: Client) -> None:
    full, half = client.lookup({"zip": [1, 2]}), client.lookup({"zip": [1, 2]}, dtype="float16")
    assert half["zip"].dtype == np.float16
    np.testing.assert_array_equal(half["zip"], full["zip"].astype(np.float16))


def test_answers_are_views_of_the_received_bytes(client: Client) -> None:
    rows = client.lookup({"zip": [1, 2]})
    assert not rows["zip"].flags.owndata
    assert not rows["zip"].flags.writeable


def test_empty_requests_have_empty_answers(client: Client) -> None:
    before = client.describe().version
    assert client.lookup({}) == {}
    assert client.lookup({"zip": [], "genre": ([], [])})["genre"].shape == (0, 6)
    assert client.update({}, gradients={}) == before + 1
    assert client.lookup({"genre": ([], [0, 0])})["genre"].tolist() == [[0.0] * 6] * 2


def test_streams_answer_in_order(client: Client) -> None:
    answers = list(client.lookup_stream({"user_id": [number]} for number in range(50, 60)))
    for number, rows in zip(range(50, 60), answers, strict=True):
        np.testing.assert_array_equal(rows["user_id"], client.lookup({"user_id": [number]})["user_id"])


def test_a_stream_of_updates_applies_them_one_after_the_other(client: Client) -> None:
    before = client.lookup({"user_id": [60]})["user_id"]
    versions = list(client.update_stream(({"user_id": [60]}, {"user_id": np.ones((1, 6))}) for _ in range(5)))
    assert versions == sorted(set(versions))
    after = client.lookup({"user_id": [60]}, min_version=versions[-1])["user_id"]
    np.testing.assert_allclose(after, before - 5 * 0.5, rtol=1e-6)


def test_a_message_refused_in_a_stream_is_named_and_the_ones_before_are_answered(client: Client) -> None:
    answers = client.lookup_stream([{"zip": [1]}, {"zip": [2]}, {"nope": [3]}, {"zip": [4]}])
    assert [next(answers)["zip"].shape, next(answers)["zip"].shape] == [(1, 3), (1, 3)]
    with pytest.raises(InvalidInput, match="message 2 of the stream: unknown feature 'nope'"):
        next(answers)


def test_a_request_that_cannot_be_built_ends_the_stream_with_its_own_error(client: Client) -> None:
    answers = client.lookup_stream([{"zip": [1]}, {"zip": [1.5]}])
    assert next(answers)["zip"].shape == (1, 3)
    with pytest.raises(InvalidInput, match="must be a one-dimensional array of integers"):
        next(answers)


def test_the_async_client_makes_the_same_calls(service: Service, client: Client) -> None:
    async def use() -> None:
        async with AsyncClient(service.target) as asynchronous:
            assert (await asynchronous.wait_ready()).name == "shop"
            version = await asynchronous.update({"zip": ["x"]}, gradients={"zip": np.ones((1, 3))})
            version = max(version, await asynchronous.assign({"user_id": [70]}, values={"user_id": np.ones((1, 6))}))
            mine = await asynchronous.lookup({"zip": ["x"], "user_id": [70]}, min_version=version)
            assert mine["user_id"].tolist() == [[1.0] * 6]

            async def requests() -> AsyncIterator[dict[str, list[str]]]:
                for key in ("x", "y"):
                    yield {"zip": [key]}

            streamed = [rows["zip"] async for rows in asynchronous.lookup_stream(requests())]
            np.testing.assert_array_equal(streamed[0], mine["zip"])
            with pytest.raises(InvalidInput, match="unknown feature"):
                await asynchronous.lookup({"nope": [1]})

    asyncio.run(use())


def test_readers_never_see_half_an_update(client: Client, other: Client) -> None:
    ids, bag = np.arange(100, 300), np.arange(20)
    writing = threading.Event()

    def write() -> None:
        for number in range(60):
            other.assign(
                {"user_id": ids, "genre": bag},
                values={"user_id": np.full((200, 6), number), "genre": np.full((20, 6), number)},
            )
        writing.set()

    writer = threading.Thread(target=write)
    other.assign({"user_id": ids, "genre": bag}, values={"user_id": np.zeros((200, 6)), "genre": np.zeros((20, 6))})
    writer.start()
    seen = set()
    while not writing.is_set():
        rows = client.lookup({"user_id": ids, "genre": bag})
        numbers = set(np.concatenate([rows["user_id"], rows["genre"]]).ravel().tolist())
        assert len(numbers) == 1
        seen |= numbers
    writer.join()
    assert len(seen) > 1


def test_an_async_stream_whose_reader_leaves_sends_no_more(service: Service) -> None:
    async def use() -> tuple[int, int]:
        sent = 0

        async def requests() -> AsyncIterator[tuple[dict[str, list[int]], dict[str, np.ndarray]]]:  # type: ignore[type-arg]
            nonlocal sent
            while True:
                sent += 1
                yield {"user_id": [5]}, {"user_id": np.zeros((1, 6))}

        async with AsyncClient(service.target) as client:
            versions = client.update_stream(requests())
            first = await anext(versions)
            assert await anext(versions) > first
            await versions.aclose()  # type: ignore[attr-defined]  # a generator
            counts = []
            for _ in range(2):  # what was under way when the reader left may still go out, and then nothing more
                for _ in range(20):
                    await client.describe()
                counts.append(sent)
            return counts[0], counts[1]

    before, after = asyncio.run(use())
    assert after == before


def test_a_stream_may_have_a_deadline(client: Client) -> None:
    waiting = threading.Event()
    with pytest.raises(DeadlineExceeded):
        list(client.lookup_stream(({"zip": [1]} for _ in iter(waiting.wait, True)), timeout_s=0.5))
    waiting.set()


def test_describe_tells_what_is_served(service: Service, client: Client, other: Client) -> None:
    description = client.describe()
    assert description.name == "shop"
    assert description.engine == ("torchrec" if service.size > 1 else "local")
    assert (description.world_size, other.describe().rank) == (service.size, service.size - 1)
    assert [table.name for table in description.tables] == ["user", "zip", "genre"]
    genre = description.tables[2]
    assert (genre.rows, genre.dim, genre.pooling, genre.id_kind) == (20, 6, pb.POOLING_MEAN, "direct")
    assert (genre.optimizer, genre.learning_rate) == ("adagrad", 0.1)
    assert genre.bytes >= 20 * 6 * 4 * 2
    assert description.limits.ids_per_request == 20_000


def test_another_fingerprint_is_refused(client: Client) -> None:
    fingerprint = client.describe().fingerprint
    assert client.lookup({"zip": [1]}, fingerprint=fingerprint)
    with pytest.raises(FingerprintMismatch, match=f"fingerprint {fingerprint}, and the request expects 'other'"):
        client.lookup({"zip": [1]}, fingerprint="other")
    with pytest.raises(FingerprintMismatch):
        client.update({"zip": [1]}, gradients={"zip": np.ones((1, 3))}, fingerprint="other")


def test_waiting_for_a_version_that_does_not_come_ends_with_the_deadline(client: Client) -> None:
    with pytest.raises(DeadlineExceeded, match=r"didn't come in time|no answer came within the deadline"):
        client.lookup({"zip": [1]}, min_version=10**9, timeout_s=0.3)
    assert client.lookup({"zip": [1]})["zip"].shape == (1, 3)


def test_waiting_for_a_version_ends_when_it_comes(client: Client, other: Client) -> None:
    version = client.describe().version

    async def use() -> int:
        async with AsyncClient(client.target) as waiting:
            lookup = asyncio.ensure_future(waiting.lookup({"zip": [1]}, min_version=version + 1))
            await asyncio.to_thread(other.update, {"zip": [1]}, gradients={"zip": np.ones((1, 3))})
            return (await lookup).version

    assert asyncio.run(use()) > version


def test_health_and_reflection_are_the_standard_ones(service: Service) -> None:
    with grpc.insecure_channel(service.target) as channel:
        health = health_pb2_grpc.HealthStub(channel)
        for name in ("", "embershard.v1.EmbeddingService"):
            answer = health.Check(health_pb2.HealthCheckRequest(service=name))
            assert answer.status == health_pb2.HealthCheckResponse.SERVING
        described = ProtoReflectionDescriptorDatabase(channel)
        assert "embershard.v1.EmbeddingService" in described.get_services()
        assert described.FindFileContainingSymbol("embershard.v1.LookupRequest").package == "embershard.v1"


def test_an_ordinary_generated_client_reads_the_same_answer(service: Service, client: Client) -> None:
    with grpc.insecure_channel(service.target) as channel:
        request = pb.LookupRequest(features=[pb.FeatureIds(feature="zip", keys=["x"])], with_provenance=True)
        answer = rpc.EmbeddingServiceStub(channel).Lookup(request)
    (part,) = answer.features
    assert (part.feature, part.rows, part.dim, len(part.provenance)) == ("zip", 1, 3, 1)
    assert part.values == client.lookup({"zip": ["x"]})["zip"].tobytes()
