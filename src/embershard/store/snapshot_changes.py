"""What has changed from one snapshot to a later one, as a training job that publishes would tell it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from embershard.config import VocabularyIds, layout_difference, spelled_out
from embershard.engine.delta import PUBLISHED
from embershard.engine.touched import Changes
from embershard.errors import FingerprintMismatch
from embershard.store.id_files import read_id_file
from embershard.store.loading import read_tensors
from embershard.store.offline import config_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from torch import Tensor

    from embershard.engine.touched import Columns
    from embershard.store.manifest import Snapshot


def changes_between(since: Snapshot, now: Snapshot) -> Changes:
    """Rows of which anything but whether they are frozen differs, and who owns them; both snapshots were verified.

    Raises:
        FingerprintMismatch: they are of different collections.
        SnapshotError: one can't be read.
    """
    if lines := layout_difference(now.manifest["layout"], since.manifest["layout"]):
        raise FingerprintMismatch(f"{now.path} is of another collection than {since.path}: {spelled_out(lines)}")
    rows: dict[str, Columns] = {}
    owned: dict[str, Columns] = {}
    gone: dict[str, Columns] = {}
    vocabularies: dict[str, Columns] = {}
    for table in config_of(now).tables:
        first: int | None = None
        if isinstance(table.ids, VocabularyIds):
            before, after = (read_id_file(side.path, table.name) for side in (since, now))
            if table.owns_rows:
                first = table.ids.fallback_rows
                owned[table.name], gone[table.name] = _owners(since, now, table.name, first, before, after)
            else:
                vocabularies[table.name] = after
        for matrix in table.matrices:
            rows[matrix.name] = _rows(since, now, matrix.name, first if matrix.name == table.name else None)
    return Changes(
        rank=0,
        world_size=1,
        layout=now.manifest["layout"],
        optimizers=now.manifest["optimizers"],
        rows=rows,
        owned=owned,
        gone={name: columns for name, columns in gone.items() if len(columns["keys"])},
        vocabularies=vocabularies,
    )


def _kinds(snapshot: Snapshot, matrix: str) -> dict[str, Tensor]:
    names = {f"{matrix}.{kind}": kind for kind in PUBLISHED if f"{matrix}.{kind}" in snapshot.tensors}
    return {names[name]: tensor for name, tensor in read_tensors(snapshot, names).items()}


def _rows(since: Snapshot, now: Snapshot, matrix: str, stop: int | None) -> Columns:
    """Rows by number that differ, or are new."""
    before, after = ({kind: rows[:stop] for kind, rows in _kinds(side, matrix).items()} for side in (since, now))
    known = len(before["weight"])
    differs = torch.ones(len(after["weight"]), dtype=torch.bool)
    differs[:known] = _differ(before, {kind: rows[:known] for kind, rows in after.items()})
    numbers = differs.nonzero()[:, 0]
    return {"rows": numbers, **{kind: rows[numbers] for kind, rows in after.items()}}


def _owners(
    since: Snapshot, now: Snapshot, table: str, first: int, before: dict[str, Any], after: dict[str, Any]
) -> tuple[Columns, Columns]:
    """Ids whose row differs from what it was, or that had none; and ids that have none any more."""
    was, now_is = _kinds(since, table), _kinds(now, table)
    at = _places(before, after)
    had = at >= 0
    differs = np.ones(len(at), np.bool_)
    rows_before = torch.from_numpy(before["slots"][at[had]] + first)
    rows_after = torch.from_numpy(after["slots"] + first)
    differs[had] = _differ(
        {kind: rows[rows_before] for kind, rows in was.items()},
        {kind: rows[rows_after[torch.from_numpy(had)]] for kind, rows in now_is.items()},
    ).numpy()
    chosen = np.flatnonzero(differs)
    owned: Columns = {name: after[name][chosen] for name in ("keys", "counts", "steps", "seen_s")}
    owned["names"] = [after["names"][place] for place in chosen.tolist()]
    owned |= {kind: rows[rows_after[torch.from_numpy(chosen)]] for kind, rows in now_is.items()}
    lost = np.setdiff1d(np.arange(len(before["keys"])), at[had])
    return owned, {"keys": before["keys"][lost], "names": [before["names"][place] for place in lost.tolist()]}


def _places(before: dict[str, Any], after: dict[str, Any]) -> NDArray[np.int64]:
    """Where each id of `after` is among those of `before`, or -1."""
    known = {id_: place for place, id_ in enumerate(zip(before["keys"].tolist(), before["names"], strict=True))}
    ids = zip(after["keys"].tolist(), after["names"], strict=True)
    return np.fromiter((known.get(id_, -1) for id_ in ids), np.int64, len(after["keys"]))


def _differ(a: dict[str, Tensor], b: dict[str, Tensor]) -> Tensor:
    """Whether anything of each row differs; both are of one shape. What one of them doesn't count is 0 there."""
    uncounted = torch.zeros(len(b["weight"]), dtype=torch.int32)
    pairs = [(a.get(kind, uncounted), b.get(kind, uncounted)) for kind in a.keys() | b.keys()]
    apart = [(one != other).view(len(other), other[:1].numel() or 1).any(dim=1) for one, other in pairs]
    return torch.stack(apart).any(dim=0)
