"""Whether there is memory for what is to be made, before any is taken."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch

from embershard.engine.beside import freed
from embershard.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from embershard.engine.placement import Group
    from embershard.engine.world import World

SMALLER = "use fewer rows, a smaller dim, dtype float16 or int8, rowwise_adagrad or sgd, a factor, or more ranks"
"""What makes tables smaller."""
_LIMIT, _USED, _STATISTICS = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current", "memory.stat"))
"""Of this container."""


def check_memory(groups: Sequence[Group], world: World, vocabulary_bytes: int) -> None:
    """Joint: refuses tables that can't fit, on every rank and before any has begun to fill its memory.

    Groups are where the rows are; vocabularies are in the memory of each rank's host.

    Raises:
        ConfigError: on every rank.
    """
    rows, on_cpu = sum(group.bytes_per_rank for group in groups), world.device.type == "cpu"
    needed = vocabulary_bytes + rows * on_cpu
    check_host_memory(needed, world, f"tables ({_gib(vocabulary_bytes)} of it for vocabularies)", SMALLER)
    if not on_cpu:
        _check(rows, torch.cuda.mem_get_info(world.device)[0], world, f"tables on {world.device}", SMALLER)


def check_host_memory(needed: int, world: World, what: str, advice: str) -> None:
    """Joint: the same of so many bytes on each rank's host, of `what`; `advice` says what can be done.

    Raises:
        ConfigError: on every rank.
    """
    freed()  # what was let go before
    used, there = memory_of_host()
    _check(needed, (there - used) // world.local_size, world, what, advice)


def memory_of_host() -> tuple[int, int]:
    """Bytes that are used and that there are, on this host, or in this container if there are fewer; files that are
    merely cached aside."""
    host = psutil.virtual_memory()
    used, there = int(host.total - host.available), int(host.total)
    if _LIMIT.is_file() and (most := _LIMIT.read_text().strip()).isdecimal() and int(most) < there:
        cached = [line.split()[1] for line in _STATISTICS.read_text().splitlines() if line.startswith("inactive_file ")]
        used, there = int(_USED.read_text()) - sum(map(int, cached)), int(most)
    return used, there


def _check(needed: int, free: int, world: World, what: str, advice: str) -> None:
    least = min(world.gather(free))
    if needed > least:
        raise ConfigError(f"a rank needs {_gib(needed)} for {what}, and there are {_gib(least)} of memory: {advice}")


def _gib(size: int) -> str:
    return f"{size / 2**30:,.1f} GiB"
