"""Whether there is memory for tables, before any is taken."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import psutil
import torch

from embershard.engine.beside import freed
from embershard.errors import ConfigError

if TYPE_CHECKING:
    from embershard.engine.placement import Group
    from embershard.engine.world import World


def check_memory(groups: list[Group], world: World, host_bytes: int = 0) -> None:
    """Joint: refuses what can't fit, on every rank and before any has begun to fill its memory.

    What was let go before is free first.

    Groups are where the rows are; `host_bytes`, of vocabularies, on the host of each rank.
    """
    freed()
    host, needed = _host_memory() // world.local_size, sum(group.bytes_per_rank for group in groups)
    if world.device.type == "cpu":
        free, where, needed = host, "of memory for each rank of this host", needed + host_bytes
    else:
        free, where = torch.cuda.mem_get_info(world.device)[0], f"of memory on {world.device}"
    least, least_host = (min(pair) for pair in zip(*world.gather((free, host)), strict=True))
    if needed > least or host_bytes > least_host:
        raise ConfigError(
            f"the tables need {needed / 2**30:,.1f} GiB a rank ({host_bytes / 2**30:,.1f} GiB of it for vocabularies), "
            f"and there are {least / 2**30:,.1f} GiB {where}: use fewer rows, a smaller dim, dtype float16, "
            "rowwise_adagrad or sgd, a factor, or more ranks"
        )


def _host_memory() -> int:
    """Bytes that are free on this host, or in this container if that is less."""
    free = int(psutil.virtual_memory().available)
    limit, used = (Path("/sys/fs/cgroup") / name for name in ("memory.max", "memory.current"))
    if limit.is_file() and (most := limit.read_text().strip()).isdecimal():
        free = min(free, int(most) - int(used.read_text()))
    return free
