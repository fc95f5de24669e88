"""Bad input through the real wire, on both engines: a clear status, nothing changed, the service goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import grpc
import numpy as np
import pytest
from support.raw import Raw, float32, int32, int64, lookup, update
from support.service import Service

from embershard import Client, Overloaded
from embershard.v1 import embershard_pb2 as pb

CONFIG = """
[collection]
name = "shop"

[limits]
message_bytes = 200_000
ids_per_request = 1_000
numbers_per_request = 500_000

[[tables]]
name = "user"
rows = 10
dim = 2
features = ["user", "friend"]
ids = { padding = 9 }

[[tables]]
name = "tag"
rows = 50
dim = 2
pooling = "sum"
ids = { kind = "hashed", padding = "-" }

[[tables]]
name = "wide"
rows = 2
dim = 1_000

[[tables]]
name = "broad"
rows = 2
dim = 1_000
pooling = "sum"

[[tables]]
name = "half"
rows = 2
dim = 1
dtype = "float16"

[[tables]]
name = "steep"
rows = 2
dim = 1
dtype = "float16"
optimizer = { kind = "sgd", learning_rate = 1_000.0 }

[[tables]]
name = "average"
rows = 5
dim = 2
pooling = "mean"
"""

NAN, INF = float("nan"), float("inf")
USER = {"feature": "user", "ids": int64(1)}
TAG = {"feature": "tag", "keys": ["a", "b"]}

LOOKUPS: dict[str, tuple[Any, str, str]] = {
    "unknown feature": (lookup({"feature": "usr"}), "INVALID_ARGUMENT", "unknown feature 'usr'; the collection has"),
    "no feature name": (lookup({"ids": int64(1)}), "INVALID_ARGUMENT", "unknown feature ''"),
    "id = rows": (lookup({"feature": "user", "ids": int64(0, 10)}), "INVALID_ARGUMENT", "ids[1] = 10 is out of range"),
    "id = -1": (lookup({"feature": "user", "ids": int64(-1)}), "INVALID_ARGUMENT", "ids[0] = -1 is out of range"),
    "id = 2^63 - 1": (lookup({"feature": "user", "ids": int64(2**63 - 1)}), "INVALID_ARGUMENT", "out of range"),
    "id = -2^63": (lookup({"feature": "user", "ids": int64(-(2**63))}), "INVALID_ARGUMENT", "out of range"),
    "strings for direct ids": (lookup({"feature": "user", "keys": ["1"]}), "INVALID_ARGUMENT", "takes integer ids"),
    "ids of 7 bytes": (lookup({"feature": "user", "ids": b"1234567"}), "INVALID_ARGUMENT", "no multiple of 8"),
    "lengths of 3 bytes": (lookup(TAG | {"lengths": b"123"}), "INVALID_ARGUMENT", "no multiple of 4"),
    "weights of 5 bytes": (lookup(TAG | {"weights": b"12345"}), "INVALID_ARGUMENT", "no multiple of 4"),
    "lengths too short": (lookup(TAG | {"lengths": int32(1)}), "INVALID_ARGUMENT", "add up to 1, but there are 2 ids"),
    "lengths too long": (lookup(TAG | {"lengths": int32(2, 1)}), "INVALID_ARGUMENT", "add up to 3"),
    "negative length": (lookup(TAG | {"lengths": int32(3, -1)}), "INVALID_ARGUMENT", "lengths[1] = -1 is negative"),
    "lengths that overflow int32 to the right sum": (
        lookup(TAG | {"lengths": int32(2**31 - 1, 2**31 - 1, 4)}),
        "INVALID_ARGUMENT",
        "add up to 4,294,967,298",
    ),
    "weights of another count": (lookup(TAG | {"weights": float32(1)}), "INVALID_ARGUMENT", "1 weights for 2 ids"),
    "NaN weight": (lookup(TAG | {"weights": float32(1, NAN)}), "INVALID_ARGUMENT", "weights[1] is nan"),
    "weights without pooling": (lookup(USER | {"weights": float32(1)}), "INVALID_ARGUMENT", "weights need pooling"),
    "weights that cancel": (
        lookup({"feature": "average", "ids": int64(1, 2), "lengths": int32(2), "weights": float32(1e8, -1e8 + 8)}),
        "INVALID_ARGUMENT",
        "cancel almost to zero",
    ),
    "ids and keys": (lookup({"feature": "tag", "ids": int64(1), "keys": ["a"]}), "INVALID_ARGUMENT", "not both"),
    "a feature twice": (lookup(USER, USER), "INVALID_ARGUMENT", "feature 'user' is named twice"),
    "too many ids": (
        lookup({"feature": "tag", "ids": int64(*range(501))}, {"feature": "user", "ids": int64(*[1] * 500)}),
        "INVALID_ARGUMENT",
        "1,001 ids in one request are more than limits.ids_per_request = 1,000",
    ),
    "an answer that is too large": (
        lookup({"feature": "wide", "ids": int64(*[1] * 60)}),
        "INVALID_ARGUMENT",
        "the answer would have 240,000 bytes, more than limits.message_bytes = 200,000",
    ),
    "more features than there are": (
        lookup(*[{"feature": "user"}] * 100),
        "INVALID_ARGUMENT",
        "100 features are more than the collection's 8",
    ),
    "empty keys by the million": (lookup({"feature": "tag", "keys": [""] * 90_000}), "INVALID_ARGUMENT", "90,000 ids"),
    "numbers by the million": (
        lookup({"feature": "broad", "ids": int64(*[1] * 990), "lengths": int32(990)}),
        "INVALID_ARGUMENT",
        "would touch 990,000 numbers (ids × hashes × dim), more than limits.numbers_per_request = 500,000",
    ),
    "a name that fills a header": (lookup({"feature": "ü" * 30_000}), "INVALID_ARGUMENT", "unknown feature 'üüü"),
    "a fingerprint that fills a header": (lookup(fingerprint="x" * 30_000), "FAILED_PRECONDITION", "fingerprint"),
    "an unknown dtype": (lookup(USER, dtype=77), "INVALID_ARGUMENT", "dtype 77 is unknown"),
    "a message over the limit": (lookup({"feature": "user", "ids": bytes(200_008)}), "RESOURCE_EXHAUSTED", "larger"),
    "bytes that are no message": (b"\xff\xff\xff", "INVALID_ARGUMENT", "the request is no LookupRequest"),
    "a string that is no UTF-8": (b"\x0a\x04\x0a\x02\xff\xfe", "INVALID_ARGUMENT", "the request is no LookupRequest"),
}

UPDATES: dict[str, tuple[Any, str, str]] = {
    "no change": (update(USER), "INVALID_ARGUMENT", "an update needs gradients, values or parents"),
    "unknown feature": (update({"feature": "x"}, gradients=b""), "INVALID_ARGUMENT", "unknown feature 'x'"),
    "id out of range": (
        update({"feature": "user", "ids": int64(10)}, gradients=float32(1, 1)),
        "INVALID_ARGUMENT",
        "ids[0] = 10 is out of range",
    ),
    "NaN gradient": (update(USER, gradients=float32(1, NAN)), "INVALID_ARGUMENT", "gradients[0, 1] is nan"),
    "infinite gradient": (update(USER, gradients=float32(-INF, 1)), "INVALID_ARGUMENT", "gradients[0, 0] is -inf"),
    "NaN value": (update(USER, values=float32(NAN, 1)), "INVALID_ARGUMENT", "values[0, 0] is nan"),
    "infinite value": (update(USER, values=float32(INF, 1)), "INVALID_ARGUMENT", "values[0, 0] is inf"),
    "huge gradient": (update(USER, gradients=float32(3e38, 0)), "INVALID_ARGUMENT", "is larger than 1e+09; clip"),
    "a gradient that its weight makes huge": (
        update(TAG | {"weights": float32(1e30, 1), "lengths": int32(2)}, gradients=float32(1e8, 0)),
        "INVALID_ARGUMENT",
        "gradients, as they arrive at the rows,",
    ),
    "a value that half precision can't hold": (
        update({"feature": "half", "ids": int64(0)}, values=float32(70_000)),
        "INVALID_ARGUMENT",
        "table 'half' stores float16",
    ),
    "gradients of no whole row": (
        update(USER, gradients=float32(1, 1, 1)),
        "INVALID_ARGUMENT",
        "no whole rows of dim 2",
    ),
    "transposed gradients": (
        pb.UpdateRequest(
            updates=[
                pb.FeatureUpdate(
                    batch=pb.FeatureIds(feature="user", ids=int64(1, 2, 3)), gradients=float32(*range(6)), dim=3
                )
            ]
        ),
        "INVALID_ARGUMENT",
        "gradients have rows of 3 numbers, but the feature has dim 2",
    ),
    "too many gradients": (
        update(USER, gradients=float32(1, 1, 1, 1)),
        "INVALID_ARGUMENT",
        "gradients have the shape [2, 2], but this batch needs [1, 2]",
    ),
    "gradients per id of a pooled feature": (
        update(TAG | {"lengths": int32(2)}, gradients=float32(1, 1, 1, 1)),
        "INVALID_ARGUMENT",
        "this batch needs [1, 2]",
    ),
    "gradients of half a number": (update(USER, gradients=b"123"), "INVALID_ARGUMENT", "no multiple of 4"),
    "values of hashed ids": (update(TAG, values=float32(1, 1, 1, 1)), "INVALID_ARGUMENT", "share rows; send gradients"),
    "values with weights": (
        update({"feature": "average", "ids": int64(1), "weights": float32(2)}, values=float32(1, 1)),
        "INVALID_ARGUMENT",
        "weights have no meaning",
    ),
    "values of the padding id": (
        update({"feature": "user", "ids": int64(1, 9)}, values=float32(1, 1, 1, 1)),
        "INVALID_ARGUMENT",
        "ids[1] is the padding id",
    ),
    "a feature twice": (update(USER, USER, gradients=float32(1, 1)), "INVALID_ARGUMENT", "named twice"),
    "more updates than there are features": (
        update(*[{"feature": "user"}] * 100),
        "INVALID_ARGUMENT",
        "100 features are more than the collection's 8",
    ),
    "one good and one bad feature": (
        update(USER, {"feature": "friend", "ids": int64(99)}, gradients=float32(1, 1)),
        "INVALID_ARGUMENT",
        "feature 'friend': ids[0] = 99",
    ),
    "bytes that are no message": (b"\x0a\xff", "INVALID_ARGUMENT", "the request is no UpdateRequest"),
}


@pytest.fixture(scope="module", params=[0, 2], ids=["local", "torchrec-2"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(CONFIG, tmp_path_factory.mktemp("bad"), ranks=request.param) as running:
        yield running
    assert "met a defect" not in running.output, "bad input is no defect of the server"


def everything(client: Client) -> bytes:
    """All rows of all tables, as bytes."""
    rows = client.lookup({"user": range(9), "wide": [0, 1], "half": [0, 1], "average": range(5), "tag": range(50)})
    return b"".join(vectors.tobytes() for vectors in rows.values()) + bytes([rows.version])


def refused(service: Service, method: str, case: tuple[Any, str, str]) -> None:
    request, status, message = case
    with Client(service.target) as client, Raw(service.target) as raw:
        before = everything(client)
        with pytest.raises(grpc.RpcError) as caught:
            raw.call(method, request)
        assert caught.value.code().name == status  # type: ignore[attr-defined]  # a call's error has a code
        assert message in caught.value.details()  # type: ignore[attr-defined]
        assert "Traceback" not in caught.value.details()  # type: ignore[attr-defined]
        assert everything(client) == before


@pytest.mark.parametrize("case", LOOKUPS)
def test_a_bad_lookup_is_refused(service: Service, case: str) -> None:
    refused(service, "Lookup", LOOKUPS[case])


@pytest.mark.parametrize("case", UPDATES)
def test_a_bad_update_is_refused_and_changes_nothing(service: Service, case: str) -> None:
    refused(service, "Update", UPDATES[case])


def test_bad_requests_on_one_rank_and_good_ones_on_another_at_once(service: Service) -> None:
    with Raw(service.addresses[service.size - 1]) as raw, Client(service.target) as client:
        for request, _, _ in list(LOOKUPS.values()) + list(UPDATES.values()):
            with pytest.raises(grpc.RpcError):
                raw.call("Lookup", request) if isinstance(request, pb.LookupRequest) else raw.call("Update", request)
            assert client.lookup({"user": [1]})["user"].shape == (1, 2)


@pytest.mark.parametrize(
    "case", ["id = rows", "bytes that are no message", "a feature twice", "a string that is no UTF-8"]
)
def test_a_bad_message_in_a_stream_is_refused_with_its_place(service: Service, case: str) -> None:
    request, status, message = LOOKUPS[case]
    with Client(service.target) as client, Raw(service.target) as raw:
        before = everything(client)
        with pytest.raises(grpc.RpcError) as caught:
            raw.stream("LookupStream", [b"", request])
        assert caught.value.code().name == status  # type: ignore[attr-defined]  # a call's error has a code
        assert caught.value.details().startswith("message 1 of the stream: ")  # type: ignore[attr-defined]
        assert message in caught.value.details()  # type: ignore[attr-defined]
        assert everything(client) == before


def test_half_precision_rows_end_at_their_largest_number_and_never_at_nan(service: Service) -> None:
    with Client(service.target) as client:
        for sign in (-1, 1):
            for _ in range(2):
                gradient = np.full((1, 1), sign * 1e9, np.float32)
                version = client.update({"steep": [0]}, gradients={"steep": gradient})
            found = client.lookup({"steep": [0]}, min_version=version)["steep"]
            assert found.tolist() == [[-sign * 65504.0]]


def test_legal_edges_are_not_refused(service: Service) -> None:
    with Raw(service.target) as raw, Client(service.target) as client:
        assert pb.LookupResponse.FromString(raw.call("Lookup", b"")).features == []
        assert client.lookup({"user": [9], "tag": (["-"], [1])})["user"].tolist() == [[0, 0]]
        weights = np.array([1, -1], np.float32)
        answer = client.lookup({"average": ([1, 2], [2], weights)})["average"]
        assert answer.tolist() == [[0, 0]], "weights that sum to nothing answer zeros"
        assert client.lookup({"tag": range(1000)})["tag"].shape == (1000, 2)
        assert client.lookup({"tag": ["ü" * 10_000, "\x00"]})["tag"].shape == (2, 2)


def test_a_message_that_is_too_large_for_the_server_is_overload(service: Service) -> None:
    with Client(service.target) as client, pytest.raises(Overloaded, match="larger than max"):
        client.lookup({"tag": np.arange(100_000)})
