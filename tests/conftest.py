"""Fixtures that several test modules share."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from embershard.quiet import quieten

quieten()

import torchmetrics  # noqa: E402, F401  # after quieten, as whatever imports torch, FBGEMM or TorchRec
import torchrec  # noqa: E402, F401
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
