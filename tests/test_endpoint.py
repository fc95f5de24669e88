"""The HTTP endpoint: what it tells, and that whoever asks badly keeps nobody from it."""

from __future__ import annotations

import http.client
import socket
import ssl
import time
from collections.abc import Iterator
from contextlib import ExitStack
from urllib.parse import urlsplit

import pytest
import trustme
from embershard_server import endpoint
from embershard_server.endpoint import AT_ONCE, Endpoint
from embershard_server.metrics import Exporter
from embershard_server.readiness import DEAD_S, Readiness
from support.metrics import Scrape, told
from support.waiting import eventually

from embershard.errors import ConfigError


@pytest.fixture
def readiness() -> Readiness:
    return Readiness()


@pytest.fixture
def served(readiness: Readiness) -> Iterator[Endpoint]:
    made = Endpoint("127.0.0.1:0", readiness, Exporter(readiness))
    yield made
    made.close()


def asked(url: str, method: str, path: str) -> tuple[int, bytes, str | None]:
    connection = http.client.HTTPConnection(urlsplit(url).netloc, timeout=20)
    connection.request(method, path)
    answer = connection.getresponse()
    found = answer.status, answer.read(), answer.getheader("Content-Length")
    connection.close()
    return found


def test_a_rank_is_ready_once_it_has_nothing_against_it(served: Endpoint, readiness: Readiness) -> None:
    starting = told(f"{served.url}/readyz")
    assert (starting.status, starting.text) == (503, f"{readiness.reason}\n")
    assert "starts" in starting.text
    assert Scrape(served.url).value("ready") == 0
    assert told(f"{served.url}/livez").status == 200
    readiness.reason, readiness.beat_s = "", time.monotonic()
    assert told(f"{served.url}/readyz")[:2] == (200, "ok\n")
    assert Scrape(served.url).value("ready") == 1


def test_an_event_loop_that_does_nothing_any_more_is_dead(served: Endpoint, readiness: Readiness) -> None:
    readiness.reason, readiness.beat_s = "", time.monotonic() - DEAD_S / 2
    assert told(f"{served.url}/readyz").status == 503
    assert told(f"{served.url}/livez").status == 200
    readiness.beat_s = time.monotonic() - 2 * DEAD_S
    dead = told(f"{served.url}/livez")
    assert dead.status == 503
    assert "event loop" in dead.text


def test_it_can_be_asked_and_nothing_else(served: Endpoint) -> None:
    status, body, size = asked(served.url, "HEAD", "/livez")
    assert (status, body, size) == (200, b"", "3")
    assert asked(served.url, "GET", "/livez?verbose")[0] == 200
    assert asked(served.url, "GET", "/etc/passwd")[0] == 404
    assert asked(served.url, "POST", "/metrics")[0] == 501


def test_slow_clients_keep_nobody_from_it_for_long(served: Endpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoint, "SLOW_S", 0.2)
    where = urlsplit(served.url).hostname, urlsplit(served.url).port
    with ExitStack() as stack:
        slow = [stack.enter_context(socket.create_connection(where)) for _ in range(AT_ONCE)]
        for connection in slow:
            connection.sendall(b"GET /metr")
        for connection in slow:  # which the server ends
            connection.settimeout(20)
            assert connection.recv(1) == b""
        eventually(lambda: is_answered(f"{served.url}/livez"))  # their threads end a moment later


def is_answered(url: str) -> bool:
    """Whether there is a thread for a connection."""
    try:
        return told(url).status == 200
    except (OSError, http.client.HTTPException):
        return False


def test_it_is_https_with_a_context(readiness: Readiness) -> None:
    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    made = Endpoint("127.0.0.1:0", readiness, Exporter(readiness), context)
    try:
        assert made.url.startswith("https://")
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        assert told(f"{made.url}/livez", context=trusting).status == 200
        with socket.create_connection((urlsplit(made.url).hostname, urlsplit(made.url).port)) as plain:
            plain.sendall(b"GET /livez HTTP/1.0\r\n\r\n")
            plain.settimeout(20)
            assert b"200" not in plain.recv(100)
        assert told(f"{made.url}/livez", context=trusting).status == 200
    finally:
        made.close()


def test_an_address_that_is_taken_is_refused(served: Endpoint, readiness: Readiness) -> None:
    with pytest.raises(ConfigError, match="--metrics-listen"):
        Endpoint(urlsplit(served.url).netloc, readiness, Exporter(readiness))
