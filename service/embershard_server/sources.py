"""All that knows something of a rank that serves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from embershard.engine.replica import Replica
    from embershard.engine.tick import Ticker
    from embershard.meters import FrontMeters
    from embershard.store.log import UpdateLog
    from embershard_server.gate import Gate
    from embershard_server.loads import Loads
    from embershard_server.publications import Publications
    from embershard_server.versions import Versions


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Sources:
    """For whoever exports it; nothing is changed by reading."""

    replica: Replica
    """Its tables."""
    ticker: Ticker
    """Its engine."""
    log: UpdateLog | None
    """The update log, which rank 0 has."""
    gate: Gate
    """Calls in flight."""
    front: FrontMeters
    """Calls that have ended."""
    versions: Versions
    """Snapshots on the disk."""
    loads: Loads
    """Snapshots in memory."""
    publications: Publications
    """What was published."""
