"""The contract of `proto/`, with its comments, who may call what, and how errors become status codes."""

from __future__ import annotations

import inspect
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, Final
from unittest.mock import MagicMock

import grpc_tools
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)
from grpc_tools import protoc

from documenting.markdown import code, table
from embershard.errors import STATUS_BY_ERROR, EmbershardError

ROOT: Final = Path(__file__).resolve().parents[2]
PROTO: Final = ROOT / "proto" / "embershard" / "v1" / "embershard.proto"
_MESSAGE, _ENUM, _SERVICE, _INNER = 4, 5, 6, 2
"""Numbers of fields in descriptors, of which source locations are made; messages, services and enums have their parts
at the same one."""
_TYPES: Final = {number: name.removeprefix("TYPE_").lower() for name, number in FieldDescriptorProto.Type.items()}


@cache
def _file() -> FileDescriptorProto:
    """The proto, as protoc understands it, with its comments."""
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "proto.binpb"
        paths = (ROOT / "proto", Path(grpc_tools.__file__).parent / "_proto")
        flags = ["--include_source_info", f"--descriptor_set_out={target}", *(f"--proto_path={path}" for path in paths)]
        if protoc.main(["protoc", *flags, str(PROTO)]) != 0:
            raise SystemExit("protoc failed: see its message above")
        return FileDescriptorSet.FromString(target.read_bytes()).file[0]


@cache
def _comments() -> dict[tuple[int, ...], str]:
    """{source location: the comment before it, or else behind it}."""
    told = {
        tuple(place.path): (place.leading_comments or place.trailing_comments).strip()
        for place in _file().source_code_info.location
    }
    return {path: comment for path, comment in told.items() if comment}


def _comment(*path: int) -> str:
    return "\n".join(line.strip() for line in _comments().get(path, "").splitlines())


def services() -> Iterator[str]:
    """Each service with its calls."""
    roles = _roles()
    for place, service in enumerate(_file().service):
        yield f"### {service.name}"
        yield ""
        yield _comment(_SERVICE, place)
        yield ""
        rows = [
            (
                code(call.name),
                _streamed(call.client_streaming) + _linked(call.input_type),
                _streamed(call.server_streaming) + _linked(call.output_type),
                roles[call.name],
                _comment(_SERVICE, place, _INNER, number),
            )
            for number, call in enumerate(service.method)
        ]
        yield from table(("call", "request", "response", "role", "what it does"), rows)
        yield ""


def _streamed(streams: bool) -> str:
    return "stream of " if streams else ""


def _roles() -> dict[str, str]:
    """{RPC: the role that a caller needs}."""
    from embershard_server.rpcs import admin, embedding
    from embershard_server.servicers import Servicers

    parameters = list(inspect.signature(Servicers).parameters)
    servicers: Any = Servicers(*(MagicMock() for _ in parameters))
    rpcs = [*embedding(servicers, lambda _: None), *admin(servicers)]
    return {rpc.name: rpc.needs.name.lower() for rpc in rpcs if rpc.needs}


def messages() -> Iterator[str]:
    """Each message with its fields."""
    for place, message in enumerate(_file().message_type):
        yield f"### {message.name}"
        yield ""
        if comment := _comment(_MESSAGE, place):
            yield comment
            yield ""
        if not message.field:
            yield "It has no fields."
            yield ""
            continue
        rows = [
            (code(field.name), str(field.number), _type(field), _field_comment(message, place, number))
            for number, field in enumerate(message.field)
        ]
        yield from table(("field", "number", "type", "meaning"), rows)
        yield ""


def _field_comment(message: DescriptorProto, place: int, number: int) -> str:
    """With a word on the others that it stands in place of."""
    field, comment = message.field[number], _comment(_MESSAGE, place, _INNER, number)
    same = [other.name for other in message.field if _choice(other) == _choice(field) is not None and other != field]
    return f"in place of {' and '.join(map(code, same))}: {comment}" if same else comment


def _choice(field: FieldDescriptorProto) -> int | None:
    return field.oneof_index if field.HasField("oneof_index") else None


def _type(field: FieldDescriptorProto) -> str:
    repeated = "repeated " if field.label == FieldDescriptorProto.LABEL_REPEATED else ""
    return repeated + (_linked(field.type_name) if field.type_name else _TYPES[field.type])


def _linked(name: str) -> str:
    short = name.rpartition(".")[2]
    return f"[{short}](#{short.lower()})"


def enums() -> Iterator[str]:
    """Each enum with its values."""
    for place, enum in enumerate(_file().enum_type):
        yield f"### {enum.name}"
        yield ""
        yield _comment(_ENUM, place)
        yield ""
        rows = [
            (code(value.name), str(value.number), _comment(_ENUM, place, _INNER, number))
            for number, value in enumerate(enum.value)
        ]
        yield from table(("value", "number", "meaning"), rows)
        yield ""


def errors() -> Iterator[str]:
    """Each error that travels, with its status."""
    rows = [(code(status), code(error.__name__), _meaning(error)) for error, status in STATUS_BY_ERROR.items()]
    yield from table(("status", "in Python", "meaning"), rows)


def _meaning(error: type[EmbershardError]) -> str:
    return inspect.getdoc(error) or ""
