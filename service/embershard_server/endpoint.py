"""What a rank tells over HTTP: /metrics for Prometheus, /livez and /readyz for whatever keeps it running.

On threads of its own, so few of them, and for so short a time each, that whoever asks can't hurt the service.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import TYPE_CHECKING, Any

from embershard.errors import ConfigError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Callable

    from embershard_server.readiness import Readiness

logger = logging.getLogger(__name__)

AT_ONCE = 8
"""Connections; with one more the oldest is ended, so that whoever keeps them open keeps nobody out."""
SLOW_S = 5.0
"""No connection is open for longer, however little it sends, and however slowly it takes."""
_TEXT = "text/plain; charset=utf-8"


class Endpoint:
    """An HTTP server, from when it is made until it is closed."""

    def __init__(
        self,
        address: str,
        readiness: Readiness,
        export: Callable[[str], tuple[str, bytes]],
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        """Listens on HOST:PORT; with an `ssl_context` it is HTTPS. `export` makes what /metrics has, for an Accept
        header: its content type, and its bytes.

        Raises:
            ConfigError: the address can't be had.
        """
        host, _, port = address.rpartition(":")
        try:
            self._server = _Server(host, int(port), readiness, export, ssl_context)
        except OSError as error:
            raise ConfigError(
                f"can't listen on {address}: {error.strerror or error}; give another --metrics-listen HOST:PORT"
            ) from error
        scheme = "https" if ssl_context else "http"
        self.url = f"{scheme}://{host}:{self._server.server_address[1]}"
        """Where it is."""
        self._thread = threading.Thread(target=self._server.serve_forever, name="metrics", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answers no more."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Server(HTTPServer):
    """Each connection on a thread of its own, of which there are few."""

    request_queue_size = 2 * AT_ONCE

    def __init__(self, host: str, port: int, readiness: Readiness, export: Any, context: ssl.SSLContext | None) -> None:
        self.readiness, self.export, self._context = readiness, export, context
        self._open: dict[Any, float] = {}
        self._lock = threading.Lock()
        family, _, _, _, where = socket.getaddrinfo(host.strip("[]"), port, type=socket.SOCK_STREAM)[0]
        self.address_family = family
        super().__init__(where[:2], _Handler)  # type: ignore[arg-type]  # a host and a port

    def server_bind(self) -> None:
        """Without looking for a name of the host, which may take seconds."""
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()[:2]
        self.server_name, self.server_port = str(self.server_address[0]), self.server_address[1]

    def service_actions(self) -> None:
        """Twice a second, and after each connection: ends those that are slow."""
        oldest = time.monotonic() - SLOW_S
        with self._lock:
            slow = [connection for connection, since in self._open.items() if since < oldest]
        for connection in slow:
            _shut(connection)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Has a connection answered, if there is a thread for it."""
        with self._lock:
            oldest = min(self._open, key=self._open.__getitem__) if len(self._open) >= AT_ONCE else None
            is_flooded = len(self._open) >= 2 * AT_ONCE  # faster than threads end
            if not is_flooded:
                self._open[request] = time.monotonic()
            if oldest:
                self._open[oldest] = float("inf")  # it ends, and others are older now
        if oldest:
            _shut(oldest)
        if is_flooded:
            self.shutdown_request(request)
            return
        threading.Thread(target=self._answer, args=(request, client_address), name="metrics", daemon=True).start()

    def _answer(self, request: Any, client_address: Any) -> None:
        connection = request
        try:
            request.settimeout(SLOW_S)
            if self._context:
                connection = self._context.wrap_socket(request, server_side=True, do_handshake_on_connect=False)
                with self._lock:
                    self._open[connection] = self._open.pop(request)
                connection.do_handshake()
            self.finish_request(connection, client_address)
        except OSError as error:  # it sends nonsense, is slow, or has gone
            logger.debug("a connection from %s for metrics has failed: %s", client_address, error)
        finally:
            with self._lock:
                self._open.pop(request, None)
                self._open.pop(connection, None)
            self.shutdown_request(connection)


class _Handler(BaseHTTPRequestHandler):
    """One request."""

    server: _Server

    def do_GET(self) -> None:
        """Answers it."""
        self._send(*self._answer())

    do_HEAD = do_GET

    def _answer(self) -> tuple[HTTPStatus, str, bytes]:
        readiness = self.server.readiness
        match self.path.partition("?")[0]:
            case "/metrics":
                try:
                    return HTTPStatus.OK, *self.server.export(self.headers.get("Accept", ""))
                except Exception:
                    logger.exception("metrics can't be told")
                    return HTTPStatus.INTERNAL_SERVER_ERROR, _TEXT, b"a defect of embershard, logged on the server\n"
            case "/livez":
                return _told(readiness.problem)
            case "/readyz":
                return _told(readiness.hindrance)
        return HTTPStatus.NOT_FOUND, _TEXT, b"there are /metrics, /livez and /readyz\n"

    def _send(self, status: HTTPStatus, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        """Tells nobody which libraries are here."""
        return "embershard"

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  # as it is called
        """Goes where everything goes."""
        logger.debug("%r", format % args)


def _told(problem: str) -> tuple[HTTPStatus, str, bytes]:
    status = HTTPStatus.SERVICE_UNAVAILABLE if problem else HTTPStatus.OK
    return status, _TEXT, f"{problem or 'ok'}\n".encode()


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError as error:  # it has just ended
        logger.debug("a slow connection for metrics has ended by itself: %s", error)
