"""Which engine a process has: the sharded one under torchrun, else the local one."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from embershard.engine.local import LocalEngine
from embershard.engine.world import SoloWorld, TorchWorld
from embershard.errors import InstallError

if TYPE_CHECKING:
    from embershard.config import Config
    from embershard.engine.base import Engine
    from embershard.engine.world import World


def make_world(*, timeout_s: float) -> World:
    """Joint under torchrun: the group of its ranks; else one process on its own."""
    return SoloWorld() if "WORLD_SIZE" not in os.environ else TorchWorld(timeout_s=timeout_s)


def make_engine(config: Config, world: World, *, seeded: bool = True) -> Engine:
    """Joint: the sharded engine under torchrun, else the local one, which any thread may make (`Engine.made_beside`);
    with `seeded` False its rows are zeros.

    Raises:
        InstallError: the sharded engine needs TorchRec, and it isn't installed.
        ConfigError: on every rank: there is no memory for it.
    """
    if isinstance(world, SoloWorld):
        return LocalEngine(config, world, seeded=seeded)
    try:
        from embershard.engine.torchrec import TorchRecEngine
    except ImportError as error:
        raise InstallError(
            f"torchrun asks for the sharded engine, which needs TorchRec: {error}; `embershard doctor` says what to run"
        ) from error
    return TorchRecEngine(config, world, seeded=seeded)


def use_cores(world: World, *, spared: int = 0) -> None:
    """A rank's share of this host's cores, without some that are for others, unless OMP_NUM_THREADS says how many.

    Threads of one computation wait for each other busily: where one of them doesn't get a core, a hundredfold is lost.
    """
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // world.local_size - spared))
