"""Checkpoints of a run: the rows as a snapshot, as a server has them, and beside it all else that a job needs to go on.

RUN/snapshots/000000000500/            rows, optimizer state and vocabularies after 500 steps
RUN/trainer/000000000500.safetensors   the layers of the model, their optimizer's state, and the place in the data

Both are data that can't run code. They load at any world size.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn

from embershard.config import difference, spelled_out
from embershard.errors import ConfigError, SnapshotError
from embershard.formats.files import writing
from embershard.store import snapshot
from embershard.store.agreement import everywhere
from embershard.store.manifest import list_snapshots, open_snapshot
from embershard.store.writing import Keeping

if TYPE_CHECKING:
    from embershard.engine.base import Engine
    from embershard.engine.world import World
    from embershard.store.manifest import Snapshot

_LAYER, _STATE = "layer.", "state."


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a job has come."""

    step: int = 0
    """Steps done."""
    epoch: int = 0
    """The pass over the data that it is in."""
    batch: int = 0
    """Batches of it that are done."""
    loss: float = 0.0
    """Sum of the losses of the last steps, which aren't told yet."""
    losses: int = 0
    """How many steps these are."""


class Checkpoints:
    """Those of one run; what is said to be joint, all ranks do together."""

    def __init__(self, run: Path, kept: int, identity: Mapping[str, Any]) -> None:
        self._run, self.snapshots, self._trainer, self._kept = run, run / "snapshots", run / "trainer", kept
        self.identity = identity
        """What of the job makes its curve."""
        self.needed: set[int] = set()
        """Steps whose snapshots somebody reads, so that they stay."""

    def newest(self, world: World) -> tuple[Snapshot, Path] | None:
        """Joint: the newest, as rank 0 sees it; its file of the trainer was there first.

        Raises:
            ConfigError: the folder isn't the run's alone.
            SnapshotError: it is damaged.
        """
        found: Path | None = None
        with everywhere(world.gather, "the run can't be gone on with", ConfigError):
            if world.rank == 0:
                self._check_own()
                there = list_snapshots(self.snapshots)
                found = there[-1] if there else None
        path = world.gather(found)[0]
        return None if path is None else (open_snapshot(path), self._file(int(path.name)))

    def _check_own(self) -> None:
        """Raises ConfigError if somebody else has written here: that isn't to be lost, nor gone on with."""
        foreign = [path for path in list_snapshots(self.snapshots) if not self._file(int(path.name)).is_file()]
        if foreign or (self._run / "log").exists():
            what = f"snapshot {int(foreign[-1].name):,}" if foreign else "an update log"
            raise ConfigError(
                f"{self._run}: has {what} that no job has written, as a server has been given it as its --data-dir; go "
                f'on in another --folder, with start = "{self._run}" in the job file'
            )

    def save(
        self, engine: Engine, model: nn.Module, optimizer: torch.optim.Optimizer | None, progress: Progress
    ) -> Snapshot:
        """Joint: keeps all that there is after a step.

        Raises:
            SnapshotError: on every rank, if any can't write; older ones are still there.
        """
        world, path = engine.world, self._file(progress.step)
        with everywhere(world.gather, "a checkpoint can't be written"):
            if world.rank == 0:
                self._trainer.mkdir(parents=True, exist_ok=True)
                if not (self.snapshots / f"{progress.step:012d}").is_dir():
                    with writing(path, overwrite=True) as file:
                        file.write(_packed(model, optimizer, progress, self.identity))
        keeping = Keeping(kept=self._kept, needed=lambda _: set(self.needed))
        made = snapshot.save(engine, None, progress.step, self.snapshots, keeping=keeping)
        if world.rank == 0:
            there = {self._file(int(folder.name)) for folder in list_snapshots(self.snapshots)}
            for left_behind in set(self._trainer.glob("*.safetensors")) - there:
                left_behind.unlink(missing_ok=True)
        return made

    def _file(self, step: int) -> Path:
        return self._trainer / f"{step:012d}.safetensors"


def restore(
    path: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None, identity: Mapping[str, Any]
) -> Progress:
    """Brings back the layers, their optimizer and the progress; `identity` is what of a job makes its curve.

    The optimizer keeps its options, as the job may say others than before.

    Raises:
        SnapshotError: it is damaged, or of another job, model or optimizer.
    """
    try:
        with safe_open(path, framework="pt") as file:
            told = json.loads(file.metadata()["trainer"])
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # it is no dict
        progress, begun = Progress(**told["progress"]), told["identity"]
        if told.pop("digest") != _digest(tensors, told):
            raise ValueError("its digest is wrong")
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise SnapshotError(
            f"{path}: can't be read ({type(error).__name__}: {error}); move it and the snapshot of its step away to go "
            "on from the checkpoint before, or give another --folder"
        ) from error
    if lines := difference(dict(identity), begun):
        raise SnapshotError(
            f"{path}: the run was begun with another job: {spelled_out(lines)} (here: the job file, there: the run); "
            "give another --folder, or the job as it was (epochs, steps, evaluate, checkpoint and publish may change)"
        )
    try:
        model.load_state_dict({name.removeprefix(_LAYER): t for name, t in tensors.items() if name.startswith(_LAYER)})
        if optimizer is not None:
            options = [{k: v for k, v in group.items() if k != "params"} for group in optimizer.param_groups]
            optimizer.load_state_dict(_unpacked(told["optimizer"], tensors))
            for group, own in zip(optimizer.param_groups, options, strict=True):
                group.update(own)
    except (RuntimeError, ValueError, KeyError) as error:
        raise SnapshotError(
            f"{path}: is of another model or optimizer than the job's ({error}); give another --folder, or the job as "
            "it was"
        ) from error
    return progress


def _packed(
    model: nn.Module, optimizer: torch.optim.Optimizer | None, progress: Progress, identity: Mapping[str, Any]
) -> bytes:
    tensors: dict[str, Tensor] = {f"{_LAYER}{name}": tensor for name, tensor in model.state_dict().items()}
    told: dict[str, Any] = {"progress": asdict(progress), "identity": dict(identity), "optimizer": None}
    if optimizer is not None:
        state = optimizer.state_dict()
        plain: dict[str, dict[str, Any]] = {}
        for number, of_parameter in state["state"].items():
            for key, value in of_parameter.items():
                if isinstance(value, Tensor):
                    tensors[f"{_STATE}{number}.{key}"] = value
                else:
                    plain.setdefault(str(number), {})[key] = value
        told["optimizer"] = {"groups": state["param_groups"], "plain": plain}
    contiguous = {name: tensor.detach().cpu().contiguous().clone() for name, tensor in tensors.items()}
    return save(contiguous, {"trainer": json.dumps({**told, "digest": _digest(contiguous, told)})})


def _digest(tensors: Mapping[str, Tensor], told: Mapping[str, Any]) -> str:
    """SHA-256 of all of it."""
    digest = hashlib.sha256(json.dumps(told, sort_keys=True).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {[*tensor.shape]}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _unpacked(told: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    state: dict[int, dict[str, Any]] = {int(number): dict(plain) for number, plain in told["plain"].items()}
    for name, tensor in tensors.items():
        if name.startswith(_STATE):
            number, _, key = name.removeprefix(_STATE).partition(".")
            state.setdefault(int(number), {})[key] = tensor
    return {"state": state, "param_groups": told["groups"]}
