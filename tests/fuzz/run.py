"""Sends fuzzed requests to a real service, many at once, and sees that it is still what it was."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import numpy as np
from support.service import Service
from tqdm import tqdm

from embershard import Client
from embershard.errors import STATUS_BY_ERROR
from embershard.store.manifest import find_snapshot
from embershard.store.snapshot import read_tensors
from fuzz.requests import CONFIG, request

ALLOWED = {"OK", "CANCELLED", *STATUS_BY_ERROR.values()} - {"INTERNAL"}
"""A call that is refused before it was read ends as CANCELLED now and then, by the caller's own gRPC."""
CALLERS_OWN = "Internal error from Core"
"""What the caller's gRPC says of a stream that ended while it was sending."""
TELLING = ("Traceback", 'File "', "\n  ")
BATCH, AT_ONCE = 2_000, 64
DEADLINE_S = 2.0
"""A lookup may wait for a version that never comes."""
LONGEST = 1_100


class Found(AssertionError):
    """Something that must not be, and how to see it again."""


def fuzz(count: int, seed: int, ranks: int, folder: Path) -> Counter[str]:
    """Half of them can't change anything, and must not have; returns how many ended how."""
    with Service(CONFIG, folder, ranks=ranks) as service:
        before = _state(service, folder)
        statuses = asyncio.run(_send(service, count // 2, seed, sealed=True))
        _same(before, _state(service, folder), seed)
        statuses += asyncio.run(_send(service, count - count // 2, seed + 1, sealed=False))
        after = _state(service, folder)
        assert ranks or service.stop() == 0, service.output
    assert "Traceback" not in service.output or ranks, service.output
    with Service(folder / "collection.toml", folder, ranks=ranks) as service:
        _same(after, _state(service, folder), seed)
    return statuses


def _state(service: Service, folder: Path) -> dict[str, Any]:
    """Everything that is known of every row, and the version."""
    with Client(service.target, timeout_s=60) as client:
        made = client.snapshot()
    found = find_snapshot(folder / "snapshots" / f"{made.version:012d}")
    tensors: dict[str, Any] = read_tensors(found, found.tensors)
    return {name: tensor.numpy() for name, tensor in tensors.items()} | {"version": np.array(made.version)}


def _same(before: dict[str, Any], after: dict[str, Any], seed: int) -> None:
    differ = [name for name in before if not np.array_equal(before[name], after.get(name))]
    if differ or before.keys() != after.keys():
        raise Found(f"seed {seed}: {differ} changed, and nothing may have")


async def _send(service: Service, count: int, seed: int, *, sealed: bool) -> Counter[str]:
    random, statuses = np.random.default_rng(seed), Counter[str]()
    channels = [grpc.aio.insecure_channel(target) for target in service.addresses.values() for _ in range(2)]
    free = asyncio.Semaphore(AT_ONCE)

    async def one(number: int, method: str, data: bytes) -> None:
        async with free:
            channel = channels[number % len(channels)]
            kind = channel.stream_stream if method.endswith("Stream") else channel.unary_unary
            call = kind(f"/embershard.v1.{method}")
            try:
                if method.endswith("Stream"):
                    _ = [answer async for answer in call(iter([data]), timeout=DEADLINE_S)]
                else:
                    await call(data, timeout=DEADLINE_S)
            except grpc.aio.AioRpcError as error:
                status, details = error.code().name, error.details() or ""
            else:
                status, details = "OK", "-"
            status = "CANCELLED" if details == CALLERS_OWN else status
            statuses[status] += 1
            bad = status not in ALLOWED or not details or len(details) > LONGEST or any(t in details for t in TELLING)
            if bad:
                raise Found(f"seed {seed}: {method} {data.hex()} ended {status}: {details}")

    with tqdm(total=count, unit="requests", delay=2, disable=None) as progress:
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            await asyncio.gather(*(one(number, *request(random, sealed=sealed)) for number in numbers))
            assert service.process.poll() is None, service.output
            progress.update(len(numbers))
    for channel in channels:
        await channel.close()
    return statuses
