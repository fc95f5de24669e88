"""Clients of other makes and languages get the same bits: buf through reflection, Node's gRPC, generated Python."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import trustme
from support.peers import BUF, Access, Asked, Part, buf, buf_curl, generated, missing_node, node, run_node
from support.service import Service

from embershard import Client, Security

SHOP = """
[collection]
name = "shop"
seed = 7

[[tables]]
name = "user"
rows = 1_000
dim = 64
features = ["user_id"]
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

[[tables]]
name = "tag"
rows = 300
dim = 5
pooling = "sum"
ids = { kind = "vocabulary", fallback_rows = 64 }

[[tables]]
name = "brand"
rows = 50
dim = 7
dtype = "int8"
init = { scale = 0.5 }
"""
DTYPES = ("float32", "float16", "int8")
WORDS = ["90210", "", "ü", "日本語", "🦊 two words", "a" * 300]
CASES: dict[str, Asked] = {
    "int64": {
        "user_id": {"ids": [7, 0, 999, 7]},
        "zip": {"ids": [-1, 0, 2**53 + 1, 2**63 - 1, -(2**63)]},
        "brand": {"ids": [49, 0]},
    },
    "string": {"zip": {"keys": WORDS}, "tag": {"keys": WORDS}},
    "pooled": {
        "genre": {"ids": [1, 5, 19, 5, 0], "lengths": [2, 3], "weights": [0.5, 1.5, 2.0, 0.1, 0.25]},
        "tag": {"keys": [*WORDS, "🦊 two words"], "lengths": [1, 4, 2]},
    },
    "an empty feature": {"user_id": {}, "zip": {"ids": []}, "genre": {}, "tag": {"keys": ["a"], "lengths": [1]}},
    "an empty bag": {
        "genre": {"ids": [3, 4], "lengths": [0, 2, 0], "weights": [1.0, 2.0]},
        "tag": {"lengths": [0, 0]},
        "user_id": {"ids": [1], "lengths": [0, 1]},
    },
    "no ids at all": {feature: {} for feature in ("user_id", "zip", "genre", "tag", "brand")},
    "no features": {},
    "one id": {"brand": {"ids": [3]}},
}

with_node = pytest.mark.skipif(bool(missing_node()), reason=missing_node())
with_buf = pytest.mark.skipif(not BUF.exists(), reason="buf-bin isn't installed: make test does it")


@pytest.fixture(scope="module", params=[0, 2], ids=["local", "torchrec-2"])
def service(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(SHOP, tmp_path_factory.mktemp("shop"), ranks=request.param) as running:
        with Client(running.target) as client:  # rows that have moved, and strings that own one
            client.update({"tag": WORDS[:2] * 3}, gradients={"tag": np.ones((6, 5))})
            client.update({"user_id": [7, 999]}, gradients={"user_id": np.ones((2, 64))})
        yield running


@pytest.fixture
def target(service: Service) -> str:
    """Any front end: all answer the same."""
    return service.addresses[service.size - 1]


def ours(target: str, asked: Asked, dtype: str, security: Security | None = None) -> dict[str, Any]:
    """The arrays that our client answers."""
    with Client(target, security=security) as client:
        return dict(client.lookup({feature: _for_client(batch) for feature, batch in asked.items()}, dtype=dtype))


def _for_client(batch: Any) -> object:
    ids = batch.get("ids") or batch.get("keys", [])
    return (ids, *(batch[name] for name in ("lengths", "weights") if name in batch)) if "lengths" in batch else ids


@pytest.mark.parametrize("case", CASES)
def test_generated_python_reads_what_our_client_reads(target: str, case: str) -> None:
    for dtype in DTYPES:
        assert_same(generated(target, CASES[case], dtype), ours(target, CASES[case], dtype), dtype)


@with_buf
@pytest.mark.parametrize("case", CASES)
def test_buf_reads_what_our_client_reads(target: str, case: str) -> None:
    for dtype in DTYPES:
        assert_same(buf(target, CASES[case], dtype), ours(target, CASES[case], dtype), dtype)


@with_node
def test_node_reads_what_our_client_reads(target: str) -> None:
    questions = [(target, asked, dtype) for asked in CASES.values() for dtype in DTYPES]
    for (_, asked, dtype), parts in zip(questions, node(questions), strict=True):
        expected = ours(target, asked, dtype)
        came = [
            Part(feature=it["feature"], rows=it["rows"], dim=it["dim"], values=base64.b64decode(it["values"]))
            for it in parts
        ]
        assert came == generated(target, asked, dtype)
        assert_same(came, expected, dtype)
        for part in parts:  # and they are the same numbers once the example has made vectors of them
            vectors = np.frombuffer(base64.b64decode(part["vectors"]), np.float32)
            assert vectors.tobytes() == expected[part["feature"]].astype(np.float32).tobytes()


def assert_same(parts: list[Part], expected: dict[str, Any], dtype: str) -> None:
    assert [part.feature for part in parts] == list(expected)
    for part in parts:
        vectors = expected[part.feature]
        assert (part.rows, part.dim) == vectors.shape
        if dtype == "int8":
            rows_NT = np.frombuffer(part.values, np.uint8).reshape(part.rows, part.dim + 8)
            tails_N2 = np.ascontiguousarray(rows_NT[:, -8:]).view("<f4")
            floats_ND = rows_NT[:, :-8].astype(np.float32) * tails_N2[:, :1] + tails_N2[:, 1:]
            assert floats_ND.tobytes() == vectors.tobytes()
        else:
            assert part.values == vectors.tobytes()


@with_node
def test_answers_of_more_than_grpcs_own_four_mebibytes_are_read(target: str) -> None:
    asked = {"user_id": {"ids": [number % 1_000 for number in range(20_000)]}}
    ((part,),) = node([(target, asked, "float32")])
    values = base64.b64decode(part["values"])
    assert len(values) > 5 * 10**6
    assert values == ours(target, asked, "float32")["user_id"].tobytes()


@with_node
def test_the_example_for_node_prints_vectors_and_takes_the_flags_of_the_command_line(target: str) -> None:
    flags = ["--ids", "zip=9223372036854775807", "--keys", "tag=a,ü", "--lengths", "tag=2,0", "--weights", "tag=1,.5"]
    told = json.loads(run_node("lookup.js", "--target", target, *flags, "--min-version", "2", "--dtype", "float16"))
    asked: Asked = {"zip": {"ids": [2**63 - 1]}, "tag": {"keys": ["a", "ü"], "lengths": [2, 0], "weights": [1, 0.5]}}
    expected = ours(target, asked, "float16")
    assert told["version"] == "2"
    assert {feature: np.float16(rows).tolist() for feature, rows in told["features"].items()} == {
        feature: rows.tolist() for feature, rows in expected.items()
    }


@with_node
def test_a_refusal_tells_node_what_is_wrong(target: str) -> None:
    unknown, outside = node([(target, {"nope": {}}, "float32"), (target, {"brand": {"ids": [50]}}, "float32")])
    assert unknown["code"] == outside["code"] == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert "unknown feature 'nope'" in unknown["details"]
    assert "ids[0] = 50 is out of range" in outside["details"]


@pytest.fixture(scope="module")
def secured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Access]]:
    """A service with TLS and a token, and what lets a reader in."""
    folder = tmp_path_factory.mktemp("secured")
    authority = trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    certificate = authority.issue_cert("localhost")
    certificate.private_key_and_cert_chain_pem.write_to_path(folder / "server.pem")
    (folder / "tokens.toml").write_text('[[tokens]]\nname = "ranking"\nrole = "read"\ntoken = "a-token-of-a-reader"\n')
    (folder / "tokens.toml").chmod(0o600)
    with pytest.MonkeyPatch.context() as environment:
        for name, file in {"TLS_CERT": "server.pem", "TLS_KEY": "server.pem", "TOKENS": "tokens.toml"}.items():
            environment.setenv(f"EMBERSHARD_{name}", str(folder / file))
        service = Service(SHOP, folder / "state")
    with service:
        port = service.target.rpartition(":")[2]
        yield f"localhost:{port}", Access(ca=folder / "ca.pem", token="a-token-of-a-reader")


@with_node
@with_buf
def test_all_of_them_speak_tls_and_show_a_token(secured: tuple[str, Access], tmp_path: Path) -> None:
    target, access = secured
    (tmp_path / "token").write_text(f"{access.token}\n")
    for asked in (CASES["int64"], CASES["pooled"]):
        expected = generated(target, asked, "float32", access)
        assert buf(target, asked, "float32", access) == expected
        (parts,) = node([(target, asked, "float32")], access)
        assert [base64.b64decode(part["values"]) for part in parts] == [part.values for part in expected]
        security = Security(ca=access.ca, token=access.token)
        assert_same(expected, ours(target, asked, "float32", security), "float32")
    where = {"EMBERSHARD_CA": str(access.ca), "EMBERSHARD_TOKEN_FILE": str(tmp_path / "token")}
    told = json.loads(run_node("lookup.js", "--target", target, "--ids", "brand=1,2", **where))
    assert len(told["features"]["brand"]) == 2


@with_node
def test_without_a_token_node_is_told_to_give_one(secured: tuple[str, Access]) -> None:
    target, access = secured
    (refused,) = node([(target, CASES["one id"], "float32")], Access(ca=access.ca))
    assert refused["code"] == grpc.StatusCode.UNAUTHENTICATED.value[0]
    assert "token" in refused["details"]


@with_buf
def test_reflection_tells_every_service_under_both_of_its_names_and_leaves_nothing_in_the_log(service: Service) -> None:
    said = len(service.lines)
    told = buf_curl(service.target, "", "--list-methods").split()
    for method in ("EmbeddingService/LookupStream", "EmbeddingService/Describe", "AdminService/Publish"):
        assert f"embershard.v1.{method}" in told
    for protocol in ("grpc-v1", "grpc-v1alpha"):
        asked = ["--reflect-protocol", protocol]
        assert json.loads(buf_curl(service.target, "embershard.v1.EmbeddingService/Describe", *asked))["name"] == "shop"
    assert service.lines[said:] == []


def test_what_a_new_client_installs_is_pinned_and_comes_from_whatever_registry_it_has() -> None:
    folder = Path(__file__).with_name("interop")
    wanted = json.loads((folder / "package.json").read_text())["dependencies"]
    locked = json.loads((folder / "package-lock.json").read_text())["packages"]
    for name, version in wanted.items():
        assert locked[f"node_modules/{name}"]["version"] == version
    for name, package in locked.items():
        assert "resolved" not in package
        assert not name or package["integrity"].startswith("sha512-")
