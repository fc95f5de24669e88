"""A relay before a service, which a test has drop, delay and count what goes through."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import TracebackType
from typing import Any

import grpc

from support.raw import Raw


class Proxy(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    """Passes calls on as bytes."""

    def __init__(self, behind: str) -> None:
        """`behind` is the address of the service."""
        self.behind = behind
        self.calls: Counter[str] = Counter()
        """By method: those that have come."""
        self.last: dict[str, bytes] = {}
        """By method: the request of the last of them."""
        self.before: dict[str, Callable[[int], object]] = {}
        """By method: called with the number of each call, 1 for the first, before it is passed on."""
        self.after: dict[str, Callable[[int], object]] = {}
        """And before it is answered."""
        self._counting = threading.Lock()
        self._server = grpc.server(ThreadPoolExecutor(8))
        self._server.add_generic_rpc_handlers((self,))
        self.target = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.stop(None).wait()

    def service(self, details: Any) -> grpc.RpcMethodHandler:
        """gRPC asks here for what it doesn't know: every method."""
        method = details.method.rpartition("/")[2]
        return grpc.unary_unary_rpc_method_handler(lambda request, context: self._pass_on(method, request, context))

    def _pass_on(self, method: str, request: bytes, context: grpc.ServicerContext) -> bytes:
        with self._counting:
            self.calls[method] += 1
            number, self.last[method] = self.calls[method], request
        try:
            self.before.get(method, lambda _: None)(number)
            with Raw(self.behind) as raw:
                answer = raw.call(method, request)
            self.after.get(method, lambda _: None)(number)
        except grpc.RpcError as error:
            context.set_trailing_metadata(error.trailing_metadata())
            context.abort(error.code(), error.details())
        except Lost as lost:
            context.abort(lost.status, "lost on its way")
        return answer


class Lost(Exception):
    """What a test raises in a proxy to have a call end there: as if the connection had broken, or with a status."""

    def __init__(self, status: grpc.StatusCode = grpc.StatusCode.UNAVAILABLE) -> None:
        self.status = status


class Gate:
    """Has each update of a trainer wait until the last lookup came that may lack it, by the trainer's staleness."""

    def __init__(self, proxy: Proxy, staleness: int) -> None:
        self._staleness, self._lookups, self._over = staleness, 0, False
        self._changed = threading.Condition()
        self.wrong: list[str] = []
        """Lookups that came too early, or not in time."""
        proxy.before = {"Lookup": self._lookup, "Update": self._update}

    def open(self) -> None:
        """Has no update wait any more."""
        with self._changed:
            self._over = True
            self._changed.notify_all()

    def _lookup(self, number: int) -> None:
        with self._changed:
            self._lookups = number
            self._changed.notify_all()

    def _update(self, number: int) -> None:
        last = number + self._staleness
        with self._changed:
            if not self._changed.wait_for(lambda: self._over or self._lookups >= last, 20):
                self.wrong.append(f"lookup {last} needn't wait for update {number}")
            # This one mustn't come: it is given time to.
            self._changed.wait_for(lambda: self._over or self._lookups > last, 0.02)
            if self._lookups > last:
                self.wrong.append(f"lookup {last + 1} came before update {number} was applied")
