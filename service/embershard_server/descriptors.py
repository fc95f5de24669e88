"""How many files the process may have open, and so how many connections it takes."""

from __future__ import annotations

import logging
import resource

logger = logging.getLogger(__name__)

MOST = 2**16
"""So many are asked for, if the system lets us."""
SPARED = 128
"""For the log, snapshots, metrics, other ranks, and what libraries open."""


def connections_for(wanted: int) -> int:
    """Connections that may be open, at most as many as are wanted: each is a file, and whoever opened the last that
    there may be would take the service from all others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    allowed = MOST if hard == resource.RLIM_INFINITY else min(hard, MOST)
    if soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    there = max(soft - SPARED, soft // 2)
    if there < wanted:
        logger.warning(
            "connections: %d at most, and not limits.calls = %d, as the process may have %d files open: raise "
            "`ulimit -n` or LimitNOFILE",
            there,
            wanted,
            soft,
        )
    return min(there, wanted)
