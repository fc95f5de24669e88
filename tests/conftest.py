"""Fixtures that several test modules share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from embershard.quiet import quieten

quieten()

import torchmetrics  # noqa: E402, F401  # after quieten, as whatever imports torch, FBGEMM or TorchRec
import torchrec  # noqa: E402, F401
import trustme  # noqa: E402
from support.implementation import Implementation  # noqa: E402
from support.ranks import Ranks  # noqa: E402
from support.secured import Secured  # noqa: E402


@pytest.fixture(scope="session")
def world() -> Iterator[Callable[[int], Ranks]]:
    """Worlds of real ranks by size, each started once."""
    started: dict[int, Ranks] = {}

    def of_size(size: int) -> Ranks:
        if size not in started:
            started[size] = Ranks(size)
        return started[size]

    yield of_size
    for ranks in started.values():
        ranks.close()


@pytest.fixture(scope="session", params=["local", "torchrec-1", "torchrec-2", "torchrec-3"])
def implementation(request: pytest.FixtureRequest, world: Callable[[int], Ranks]) -> Implementation:
    """Every implementation of the engine, at every world size that the suite knows."""
    kind, _, size = request.param.partition("-")
    return Implementation(None if kind == "local" else world(int(size)))


@pytest.fixture(scope="session", params=[0, 2], ids=["local", "torchrec-2"])
def secured(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    """A service of each engine that wants certificates and tokens; started once, and left as it was by every test."""
    made = Secured(tmp_path_factory.mktemp("secured"), request.param)
    with made.service:
        yield made


@pytest.fixture(scope="session")
def pki(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An authority, two pairs of it, and files that are no good."""
    folder, authority = tmp_path_factory.mktemp("pki"), trustme.CA()
    authority.cert_pem.write_to_path(folder / "ca.pem")
    for name in ("a", "b"):
        issued = authority.issue_cert("localhost", "127.0.0.1")
        issued.private_key_pem.write_to_path(folder / f"{name}.key")
        (folder / f"{name}.pem").write_bytes(b"".join(pem.bytes() for pem in issued.cert_chain_pems))
    (folder / "garbage").write_bytes(b"\xff\x00garbage")
    secret = (folder / "a.key").read_text().replace("EC PRIVATE", "ENCRYPTED PRIVATE")
    (folder / "encrypted.key").write_text(secret)
    return folder
