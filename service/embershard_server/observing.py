"""How a rank is watched from outside, from when its process starts: metrics, probes and traces."""

from __future__ import annotations

from typing import TYPE_CHECKING, Self

from embershard_server.readiness import Readiness
from embershard_server.tracing import tracing

if TYPE_CHECKING:
    from types import TracebackType

    from embershard_server.protection import Protection
    from embershard_server.sources import Sources


class Observing:
    """What is there while the block runs."""

    def __init__(self, address: str, rank: int, *, protection: Protection, examine_every: int) -> None:
        """Metrics and probes are at `address`, HOST:PORT, if it isn't empty, protected as the front end is. Of so many
        lookups one is examined, unless it is 0.

        Raises:
            ConfigError: the address can't be had.
            InstallError: a package is missing.
        """
        self.readiness = Readiness()
        self.tracing = tracing(rank)
        """What traces calls, if they are to be."""
        self._exporter, self._endpoint, self.url = None, None, ""
        self.examine_every = examine_every
        """Of so many lookups it is found out of one where vectors come from; 0: of none."""
        if address:
            from embershard_server.endpoint import Endpoint
            from embershard_server.metrics import Exporter

            self._exporter = Exporter(self.readiness, protection)
            self._endpoint = Endpoint(address, self.readiness, self._exporter, protection.https)
            self.url = self._endpoint.url

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._endpoint:
            self._endpoint.close()
        if self.tracing:
            self.tracing.close()

    def observe(self, sources: Sources) -> None:
        """From now on there is more to be told."""
        if self._exporter:
            self._exporter.sources = sources
