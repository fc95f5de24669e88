"""The floor under a gRPC service in Python: answers ready-made bytes to requests, and reads none of either.

It has the method names of ours, and for a request of so many ids as many bytes as ours answers, so that the same client
asks both: `python benchmarks/echo.py asyncio|threads PORT DIM IDS...` prints its address, and ends by SIGTERM. Several
may share a port: the kernel deals connections out to them.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import grpc
import grpc.aio
import numpy as np
from our_clients import FEATURE, SERVICE, encoded

from embershard import codec, keep_freed_memory

THREADS: Final = 8
OPTIONS: Final = [("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1)]

Answers = Mapping[int, bytes]
"""{bytes of a request: answer}."""


def answers_of(sizes: list[int], dim: int) -> Answers:
    """As ours would write them, of zeros."""
    return {
        len(encoded([FEATURE], np.zeros(size, np.int64))): codec.encode_answer(
            [FEATURE], [np.zeros((size, dim), np.float32)], [], 1
        )
        for size in sizes
    }


async def by_asyncio(answers: Answers, port: str) -> None:
    """As ours is made."""

    async def single(request: bytes, _: Any) -> bytes:
        return answers[len(request)]

    async def stream(requests: AsyncIterator[bytes], _: Any) -> AsyncIterator[bytes]:
        async for request in requests:
            yield answers[len(request)]

    server = grpc.aio.server(options=OPTIONS)
    server.add_generic_rpc_handlers((_handlers(single, stream),))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    await server.start()
    print(f"127.0.0.1:{bound}", flush=True)
    await server.wait_for_termination()


def by_threads(answers: Answers, port: str) -> None:
    """The other way to make one: each open stream keeps a thread."""

    def single(request: bytes, _: Any) -> bytes:
        return answers[len(request)]

    def stream(requests: Iterator[bytes], _: Any) -> Iterator[bytes]:
        for request in requests:
            yield answers[len(request)]

    server = grpc.server(ThreadPoolExecutor(THREADS), options=OPTIONS)
    server.add_generic_rpc_handlers((_handlers(single, stream),))
    bound = server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    print(f"127.0.0.1:{bound}", flush=True)
    server.wait_for_termination()


def _handlers(single: Any, stream: Any) -> grpc.GenericRpcHandler:
    methods: dict[str, Any] = {
        "Lookup": grpc.unary_unary_rpc_method_handler(single),
        "LookupStream": grpc.stream_stream_rpc_method_handler(stream),
    }
    return grpc.method_handlers_generic_handler(SERVICE, methods)


def main() -> None:
    """Serves, keeping memory as ours does."""
    keep_freed_memory()
    kind, port, dim, *sizes = sys.argv[1:]
    answers = answers_of([*map(int, sizes)], int(dim))
    if kind == "asyncio":
        asyncio.run(by_asyncio(answers, port))
    else:
        by_threads(answers, port)


if __name__ == "__main__":
    main()
