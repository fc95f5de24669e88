"""What clients of Redis and memcached do for the same numbers, and how the servers were given them.

One table is there as plain values by id, and in Redis once more in Feast's layout. That isn't Feast itself: one hash an
entity, whose key is Feast's entity key (version 2: name and type of the join key, length, int64, project), with two
fields: four bytes of a hash of "view:feature" (Feast's is MurmurHash3, this is CRC-32; it is made beforehand), and
"_ts:view". Values are Feast's protobuf `Value` of a float list, and a Timestamp. It is read as Feast does, by one HMGET
an entity in a pipeline; but where Feast parses each value as a message and makes Python floats of it, the numbers are
cut out of it here, which costs less. Several tables are a hash each, whose fields are ids.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import numpy as np
import pymemcache
import redis
from numpy.typing import NDArray
from our_clients import FEATURE, Answer, Ask, Ids
from resp import Connection, framed, octets

from embershard.protowire import tag, varint

LOADED: Final = 2_000
"""Rows that a peer is given at once."""
VIEW: Final = "item_vectors"
VECTOR: Final = zlib.crc32(f"{VIEW}:vector".encode()).to_bytes(4, "little")
STAMP: Final = f"_ts:{VIEW}".encode()
_STRING, _INT64 = (2).to_bytes(4, "little"), (4).to_bytes(4, "little")
ENTITY: Final = _STRING + b"item_id" + _INT64 + (8).to_bytes(4, "little"), b"shop"
"""What comes before and after an id in Feast's entity key."""


@contextmanager
def redis_mget(target: str, dim: int) -> Iterator[Ask]:
    """One MGET by hiredis, whose command numpy writes: nothing in Python is done id by id."""
    with Connection(target) as connection:

        def ask(ids: Ids) -> Answer:
            head = b"*%d\r\n$4\r\nMGET\r\n" % (len(ids) + 1)
            (reply,) = connection.ask(head + framed(b"$8\r\n", octets(ids), b"\r\n"), 1)
            return _joined(reply, dim)

        yield ask


@contextmanager
def redis_py_mget(target: str, dim: int) -> Iterator[Ask]:
    """One MGET by redis-py, which has hiredis parse."""
    with _redis_py(target) as client:
        yield lambda ids: _joined(client.mget(_keys(ids)), dim)


@contextmanager
def memcached_get_many(target: str, dim: int) -> Iterator[Ask]:
    """One get of many keys by pymemcache; keys are digits, as memcached wants text."""
    host, _, port = target.rpartition(":")
    client = pymemcache.Client((host, int(port)), no_delay=True)

    def ask(ids: Ids) -> Answer:
        keys = [b"%d" % number for number in ids.tolist()]
        found = client.get_many(keys)
        return _joined([found[key] for key in keys], dim)

    yield ask
    client.close()


@contextmanager
def feast_redis_py(target: str, dim: int) -> Iterator[Ask]:
    """Feast's layout by redis-py's pipeline, as Feast reads it."""
    before, after = ENTITY
    with _redis_py(target) as client:

        def ask(ids: Ids) -> Answer:
            pipeline = client.pipeline(transaction=False)
            for key in _keys(ids):
                pipeline.hmget(before + key + after, [VECTOR, STAMP])
            return _cut_out(pipeline.execute(), dim)

        yield ask


@contextmanager
def feast_hiredis(target: str, dim: int) -> Iterator[Ask]:
    """Feast's layout by hiredis, and commands written by numpy."""
    before, after = ENTITY
    head = b"*4\r\n$5\r\nHMGET\r\n$%d\r\n" % (len(before) + 8 + len(after)) + before
    tail = after + b"\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(VECTOR), VECTOR, len(STAMP), STAMP)
    with Connection(target) as connection:
        yield lambda ids: _cut_out(connection.ask(framed(head, octets(ids), tail), len(ids)), dim)


@contextmanager
def redis_hashes(target: str, dims: Mapping[str, int]) -> Iterator[Ask]:
    """Tables of {name: dim}, by one HMGET of each in a pipeline, whose commands numpy writes."""
    with Connection(target) as connection:

        def ask(ids: Ids) -> Answer:
            commands = [
                _command(b"HMGET", name, len(part)) + framed(b"$8\r\n", octets(part), b"\r\n")
                for name, part in zip(dims, ids, strict=True)
            ]
            replies = connection.ask(b"".join(commands), len(dims))
            return {
                name: np.frombuffer(b"".join(values), np.float32).reshape(-1, dim)
                for (name, dim), values in zip(dims.items(), replies, strict=True)
            }

        yield ask


def fill_redis(target: str, ids: Ids, rows_ND: NDArray[np.float32]) -> None:
    """Plain values by id, and Feast's layout beside them."""
    before, after = ENTITY
    row_bytes, row_prefix = 4 * rows_ND.shape[1], _value_head(rows_ND.shape[1])
    entity_bytes = len(before) + 8 + len(after)
    stamp = b"\x08" + varint(1_790_000_000)
    end = b"\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (len(STAMP), STAMP, len(stamp), stamp)
    with Connection(target) as connection:
        for first in range(0, len(ids), LOADED):
            keys, rows = octets(ids[first : first + LOADED]), octets(rows_ND[first : first + LOADED])
            plain = framed(b"*3\r\n$3\r\nSET\r\n$8\r\n", keys, b"\r\n$%d\r\n" % row_bytes, rows, b"\r\n")
            connection.ask(plain, len(keys))
            head = b"*6\r\n$4\r\nHSET\r\n$%d\r\n" % entity_bytes + before
            value = b"\r\n$4\r\n%b\r\n$%d\r\n" % (VECTOR, len(row_prefix) + row_bytes) + row_prefix
            connection.ask(framed(head, keys, after + value, rows, end), len(keys))


def fill_hash(target: str, name: str, ids: Ids, rows_ND: NDArray[np.float32]) -> None:
    """A hash for a table."""
    with Connection(target) as connection:
        for first in range(0, len(ids), LOADED):
            keys, rows = octets(ids[first : first + LOADED]), octets(rows_ND[first : first + LOADED])
            pairs = framed(b"$8\r\n", keys, b"\r\n$%d\r\n" % rows.shape[1], rows, b"\r\n")
            connection.ask(_command(b"HSET", name, 2 * len(keys)) + pairs, 1)


def fill_memcached(target: str, ids: Ids, rows_ND: NDArray[np.float32]) -> None:
    """Values by id."""
    host, _, port = target.rpartition(":")
    client = pymemcache.Client((host, int(port)), no_delay=True)
    for first in range(0, len(ids), LOADED):
        part = slice(first, first + LOADED)
        rows = [row.tobytes() for row in rows_ND[part]]
        client.set_many(dict(zip(map(str, ids[part].tolist()), rows, strict=True)), noreply=True)
    if (kept := client.stats()[b"curr_items"]) != len(ids):
        raise RuntimeError(f"memcached has kept {kept:,} of {len(ids):,} rows: give it more memory")
    client.close()


def _command(command: bytes, key: str, arguments: int) -> bytes:
    """What comes before the arguments of a command on one key."""
    return b"*%d\r\n$%d\r\n%b\r\n$%d\r\n%b\r\n" % (
        arguments + 2,
        len(command),
        command,
        len(key),
        key.encode(),
    )


def _redis_py(target: str) -> redis.Redis:
    host, _, port = target.rpartition(":")
    return redis.Redis(host=host, port=int(port))


def _keys(ids: Ids) -> list[bytes]:
    packed = ids.tobytes()
    return [packed[at : at + 8] for at in range(0, len(packed), 8)]


def _joined(values: Any, dim: int) -> Answer:
    return {FEATURE: np.frombuffer(b"".join(values), np.float32).reshape(-1, dim)}


def _cut_out(entities: Any, dim: int) -> Answer:
    start = len(_value_head(dim))
    return _joined([value[start:] for value, _ in entities], dim)


def _value_head(dim: int) -> bytes:
    """What comes before the numbers in Feast's `Value` with a float list: tags and lengths."""
    packed = tag(1) + varint(4 * dim)
    return tag(16) + varint(len(packed) + 4 * dim) + packed
