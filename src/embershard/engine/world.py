"""The ranks that work together: who they are, how they agree, and how an idle group is woken.

A rank that waits inside a collective burns CPU, and one that joins an empty collective again and again burns all of it.
So idle ranks sleep outside: each has a listener thread, blocked on a key of the process group's store, `wake/<n>`, for
the n-th time that the group sleeps. The rank that has work sets the key, which wakes the others (about 0.15 ms on one
host), and all of them meet in the next tick's first collective.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import itertools
import os
import pickle
import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from embershard.errors import ConfigError, Unavailable

_LISTEN = timedelta(hours=1)
_KEYS_KEPT = 1000
"""Keys of past sleeps that stay in the store, for listeners that are behind."""


class World(ABC):
    """What an engine and its tick need to know of their peers."""

    rank: int
    """0 ≤ rank < size."""
    size: int
    """Ranks."""
    local_size: int
    """Ranks of this host."""
    device: torch.device
    """Where this rank's rows are."""

    @abstractmethod
    def sum(self, numbers: Tensor) -> Tensor:
        """Joint: the sum over all ranks of an int64 vector on the CPU."""

    @abstractmethod
    def gather(self, item: Any) -> list[Any]:
        """Joint: every rank's item, on every rank."""

    @abstractmethod
    def meet(self, key: str, item: Any, *, timeout_s: float | None = None) -> list[Any]:
        """Joint, for threads beside the tick, which has the collectives to itself: every rank's item, on every rank.

        Ranks meet by a key; those that meet by it again come in the same order.

        Raises:
            Unavailable: a rank hasn't come in time: the group's timeout, unless another is given.
        """

    @abstractmethod
    def listen(self, woken: Callable[[int], None], lost: Callable[[BaseException], None]) -> None:
        """From another thread, runs `woken(n)` when a rank wakes all from their n-th sleep, `lost` if none is heard."""

    @abstractmethod
    def wake(self, number: int) -> None:
        """Wakes all ranks from their n-th sleep."""

    @abstractmethod
    def leave(self) -> None:
        """Joint: ends the group."""


class SoloWorld(World):
    """One process on its own, without a process group."""

    rank, size, local_size = 0, 1, 1

    def __init__(self) -> None:
        self.device = _device(0)

    def sum(self, numbers: Tensor) -> Tensor:
        """As `World.sum`."""
        return numbers

    def gather(self, item: Any) -> list[Any]:
        """As `World.gather`."""
        return [item]

    def meet(self, key: str, item: Any, *, timeout_s: float | None = None) -> list[Any]:  # noqa: ARG002  # alone
        """As `World.meet`."""
        return [item]

    def listen(self, woken: Callable[[int], None], lost: Callable[[BaseException], None]) -> None:
        """Nobody else can wake it."""

    def wake(self, number: int) -> None:
        """Nobody else listens."""

    def leave(self) -> None:
        """There is no group."""


class TorchWorld(World):
    """The ranks of a torch.distributed process group, as torchrun starts them; gloo on CPUs, NCCL on GPUs.

    Raises:
        ConfigError: the ranks of several hosts would not find each other after a restart.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self.rank = int(os.environ["RANK"])
        self.size = int(os.environ["WORLD_SIZE"])
        self.local_size = int(os.environ.get("LOCAL_WORLD_SIZE", self.size))
        self.device = _device(int(os.environ.get("LOCAL_RANK", self.rank)))
        self._timeout = timedelta(seconds=timeout_s)
        backend = "gloo" if self.device.type == "cpu" else "cpu:gloo,cuda:nccl"
        # Who has the group's store: torchrun's agent, or else rank 0.
        self._agents = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
        _check_lives(agents=self._agents)
        hosts = self.rank == 0 and not self._agents
        meeting = self._connect(hosts=hosts)
        dist.init_process_group(backend, store=meeting, rank=self.rank, world_size=self.size, timeout=self._timeout)
        # The listener blocks its connection to the store, so that waking needs one of its own.
        self._wakes, self._heard = self._connect(), self._connect()
        self._met: Counter[str] = Counter()
        self._free: deque[dist.Store] = deque([self._connect()])
        """Connections for threads that meet."""
        self._left = False

    def _connect(self, *, hosts: bool = False) -> dist.Store:
        """A connection to the store, its keys apart from those of an earlier life of the ranks.

        An agent's store outlives a restart, and torch itself doesn't keep the lives apart: ranks would look for the
        addresses of their dead predecessors, and be woken by them. A store of rank 0 is as old as the ranks.
        """
        host, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
        store = dist.TCPStore(host, port, is_master=hosts, timeout=self._timeout)
        life = os.environ["TORCHELASTIC_RESTART_COUNT"] if self._agents else "0"
        return dist.PrefixStore(f"embershard/{life}", store)

    def sum(self, numbers: Tensor) -> Tensor:
        """As `World.sum`."""
        dist.all_reduce(numbers)
        return numbers

    def gather(self, item: Any) -> list[Any]:
        """As `World.gather`."""
        items: list[Any] = [None] * self.size
        dist.all_gather_object(items, item)
        return items

    def meet(self, key: str, item: Any, *, timeout_s: float | None = None) -> list[Any]:
        """As `World.meet`."""
        timeout = self._timeout if timeout_s is None else timedelta(seconds=timeout_s)
        self._met[key] += 1
        place = f"meet/{key}/{self._met[key]}"
        # Whoever waits on a connection keeps all others from it; and one that is made anew may take torch five seconds.
        try:
            store = self._free.pop()
        except IndexError:
            store = self._connect()
        store.set(f"{place}/{self.rank}", pickle.dumps(item))  # type: ignore[arg-type]  # bytes do
        items = []
        for rank in range(self.size):
            try:
                store.wait([f"{place}/{rank}"], timeout)
                items.append(pickle.loads(store.get(f"{place}/{rank}")))  # noqa: S301  # as torch's own gather does
            except dist.DistError as error:
                raise Unavailable(f"rank {rank} hasn't come to meet for {key}: {error}") from error
        if store.add(f"{place}/left", 1) == self.size:
            for name in ("left", *range(self.size)):
                store.delete_key(f"{place}/{name}")
        self._free.append(store)
        return items

    def wake(self, number: int) -> None:
        """As `World.wake`."""
        self._wakes.set(_key(number), "")

    def listen(self, woken: Callable[[int], None], lost: Callable[[BaseException], None]) -> None:
        """As `World.listen`."""

        def heed() -> None:
            for number in itertools.count():
                try:
                    self._await(_key(number))
                    if self.rank == 0 and number >= _KEYS_KEPT:
                        self._heard.delete_key(_key(number - _KEYS_KEPT))
                except dist.DistError as error:
                    if not self._left:
                        lost(Unavailable(f"rank {self.rank} can't reach the store of its group: {error}"))
                    return
                woken(number)

        if self.size > 1:
            threading.Thread(target=heed, name="listener", daemon=True).start()

    def _await(self, key: str) -> None:
        """However long the group works or sleeps: that a peer is dead, the collectives find out."""
        while not self._heard.check([key]):
            with contextlib.suppress(dist.DistStoreError):  # the time is up, or the connection broken: check tells
                self._heard.wait([key], _LISTEN)

    def leave(self) -> None:
        """As `World.leave`."""
        self._left = True
        dist.barrier()
        dist.destroy_process_group()


def _check_lives(*, agents: bool) -> None:
    """Each host's agent counts its own restarts, so that with several of them nothing tells one life from another."""
    several = int(os.environ.get("GROUP_WORLD_SIZE", 1)) > 1
    if several and agents and os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0") != "0":
        raise ConfigError(
            "ranks of several hosts don't find each other again after a restart while torchrun's agents share their "
            "store with them: set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in torchrun's environment on every host"
        )


def _key(number: int) -> str:
    return f"wake/{number}"


def _device(local_rank: int) -> torch.device:
    """A GPU if there is one and FBGEMM's kernels were built for it: torch alone may be."""
    if not torch.cuda.is_available() or not _installed("fbgemm-gpu"):
        return torch.device("cpu")
    device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


def _installed(distribution: str) -> bool:
    return any(True for _ in importlib.metadata.distributions(name=distribution))
