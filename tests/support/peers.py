"""Clients that aren't ours: gRPC's generated Python, buf through reflection, and Node. Each asks from scratch.

A request is {feature: {"ids": […] or "keys": […], "lengths": […], "weights": […]}}, and what comes back is bytes.
"""

from __future__ import annotations

import base64
import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from embershard.v1 import embershard_pb2 as pb
from embershard.v1 import embershard_pb2_grpc as rpc

ROOT = Path(__file__).parents[2]
MODULES = Path(os.environ.get("EMBERSHARD_TOOLS", ROOT / ".venv")) / "node/node_modules"
"""What `make` has installed for Node; the variable names a folder of tools, in place of .venv."""
BUF = Path(sys.executable).with_name("buf")
DTYPES = {"float32": pb.D_TYPE_FLOAT32, "float16": pb.D_TYPE_FLOAT16, "int8": pb.D_TYPE_INT8}
_FORMATS = {"ids": "q", "lengths": "i", "weights": "f"}

Asked = Mapping[str, Mapping[str, Sequence[Any]]]


@dataclass(frozen=True, kw_only=True)
class Part:
    """The vectors of one feature, as they came."""

    feature: str
    rows: int
    dim: int
    values: bytes


@dataclass(frozen=True, kw_only=True)
class Access:
    """What a secured service wants to see; nothing: it is asked in plaintext."""

    ca: Path | None = None
    token: str = ""


OPEN = Access()


def missing_node() -> str:
    """Why Node can't be asked; empty if it can."""
    if shutil.which("node") is None:
        return "there is no node here: apt-get install nodejs npm, and `make` again"
    return "" if MODULES.is_dir() else f"{MODULES} isn't there: with npm, `make test` installs it"


def generated(target: str, asked: Asked, dtype: str, access: Access = OPEN) -> list[Part]:
    """The stubs that protoc generates, with nothing around them."""
    request = pb.LookupRequest(dtype=DTYPES[dtype])
    for feature, batch in asked.items():
        request.features.add(feature=feature, keys=batch.get("keys", ()), **_packed(batch))
    options = [("grpc.max_receive_message_length", -1)]
    made = (
        grpc.secure_channel(target, grpc.ssl_channel_credentials(access.ca.read_bytes()), options)
        if access.ca
        else grpc.insecure_channel(target, options)
    )
    metadata = [("authorization", f"Bearer {access.token}")] if access.token else []
    with made as channel:
        answer = rpc.EmbeddingServiceStub(channel).Lookup(request, timeout=30, metadata=metadata)
    return [Part(feature=it.feature, rows=it.rows, dim=it.dim, values=it.values) for it in answer.features]


def buf(target: str, asked: Asked, dtype: str, access: Access = OPEN) -> list[Part]:
    """`buf curl`, which knows of the service what reflection tells it; bytes are base64 in its JSON."""
    features = [
        {"feature": feature, "keys": batch.get("keys", ())}
        | {name: base64.b64encode(data).decode() for name, data in _packed(batch).items()}
        for feature, batch in asked.items()
    ]
    request = json.dumps({"features": features, "dtype": pb.DType.Name(DTYPES[dtype])})
    document = json.loads(buf_curl(target, "embershard.v1.EmbeddingService/Lookup", "--data", request, access=access))
    return [
        Part(
            feature=part["feature"],
            rows=part.get("rows", 0),  # JSON leaves out what is 0 or empty
            dim=part["dim"],
            values=base64.b64decode(part.get("values", "")),
        )
        for part in document.get("features", [])
    ]


def buf_curl(target: str, path: str, *arguments: str, access: Access = OPEN) -> str:
    """What `buf curl` prints, of a call that goes well and says nothing on the side."""
    how = ["--cacert", str(access.ca)] if access.ca else ["--http2-prior-knowledge"]
    # Reflection wants the token, too, and buf sends what a call has only if it is told so.
    header = ["--header", f"authorization: Bearer {access.token}", "--reflect-header", "*"] if access.token else []
    url = f"{'https' if access.ca else 'http'}://{target}/{path}"
    done = subprocess.run(
        [BUF, "curl", "--protocol", "grpc", *how, *header, *arguments, url], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def node(questions: Sequence[tuple[str, Asked, str]], access: Access = OPEN) -> list[Any]:
    """What tests/interop/peer.js answers to each (target, asked, dtype): its parts, or {"code", "details"}."""
    security = {"ca": str(access.ca)} if access.ca else {}
    security |= {"token": access.token} if access.token else {}
    requests = [
        {"target": target, "security": security, "features": _without_numbers(asked), "dtype": dtype}
        for target, asked, dtype in questions
    ]
    return list(json.loads(run_node("peer.js", given=json.dumps(requests))))


def run_node(program: str, *arguments: str, given: str = "", **environment: str) -> str:
    """What a program of tests/interop prints when all goes well."""
    done = subprocess.run(
        ["node", ROOT / "tests/interop" / program, *arguments],
        input=given,
        capture_output=True,
        text=True,
        env=os.environ | {"NODE_PATH": str(MODULES)} | environment,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    return done.stdout


def _packed(batch: Mapping[str, Sequence[Any]]) -> dict[str, bytes]:
    return {
        name: struct.pack(f"<{len(batch[name])}{letter}", *batch[name])
        for name, letter in _FORMATS.items()
        if name in batch
    }


def _without_numbers(asked: Asked) -> list[Any]:
    """int64 as text, as numbers of JSON end at 2⁵³ there."""
    return [
        [feature, {**batch, "ids": [str(number) for number in batch.get("ids", ())]}]
        for feature, batch in asked.items()
    ]
