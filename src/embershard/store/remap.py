"""Moves the rows of a snapshot from one list of names to another, each with all that is known of it."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from embershard.config import DirectIds
from embershard.engine.growth import resize
from embershard.engine.initial import fill_initial
from embershard.engine.local import LocalEngine
from embershard.errors import InvalidInput
from embershard.name_list import NameList, read_name_list
from embershard.store import snapshot as snapshots
from embershard.store.folder import DataDir
from embershard.store.id_files import read_id_file

if TYPE_CHECKING:
    from embershard.config import Config, TableSpec
    from embershard.engine.base import Engine
    from embershard.store.manifest import Snapshot


@dataclass(frozen=True, kw_only=True, slots=True)
class Remapped:
    """What has become of the ids of one table."""

    moved: int
    """Ids that have another row now."""
    stayed: int
    """Ids that have the same row."""
    added: int
    """Ids that only the new list has: they start as any row does."""
    gone: int
    """Ids that only the old list had: their rows are dropped."""
    unnamed: int
    """Updated rows without a name, lost because the new list puts a name there."""


def remap(
    old: Snapshot, config: Config, folder: Path, old_lists: Mapping[str, Path]
) -> tuple[Snapshot, dict[str, Remapped]]:
    """Writes a snapshot of the same version into a data directory, its rows as the configuration's lists want them.

    Rows without a name in either list stay where they are. `old_lists` has the list of each table that the snapshot
    knows no list of.

    Raises:
        FingerprintMismatch: something else than lists of names differs.
        InvalidInput: no list differs, or one is missing or not as it should be, or rows of a table can't be moved.
        SnapshotError: the data directory has snapshots already, or one can't be read or written.
        ConfigError: the data directory can't be written, or a server has it.
    """
    snapshots.check_belongs(config, old, names=False)
    lists = _lists(old, config, old_lists)
    data = DataDir(folder)
    rows = old.rows | {name: max(config.table(name).rows, old.rows[name]) for name in lists}
    with data.fresh() as world:
        engine = LocalEngine(_without_lists(config, lists).grown(old.rows), world)
        snapshots.fill(engine, old)
        resize(engine, rows)
        told = {name: _remap(engine, name, before, after) for name, (before, after) in lists.items()}
        engine.config = config.grown(rows)
        return snapshots.save(engine, None, old.version, data.snapshots, keeping=snapshots.Keeping(kept=1)), told


def _lists(old: Snapshot, config: Config, given: Mapping[str, Path]) -> dict[str, tuple[NameList, NameList]]:
    """The old and the new list of each table where they differ."""
    layouts = old.manifest["layout"]["tables"], config.layout()["tables"]
    digests = {name: tuple(layout[name]["ids"].get("names") for layout in layouts) for name in layouts[1]}
    lists = {}
    for table in config.tables:
        before, after = digests[table.name]
        if before == after:
            continue
        if after is None:
            raise InvalidInput(
                f"table {table.name!r} has a list of names in {old.path}, and none in the configuration: write "
                "ids.names there, which says where its rows are to be"
            )
        lists[table.name] = _old_list(old, table, before, given), _new_list(table)
    if strange := sorted(given.keys() - lists.keys()):
        raise InvalidInput(f"--from {strange[0]}: no list of names of such a table differs; leave it out")
    if not lists:
        raise InvalidInput(f"{old.path}: has the same lists of names as the configuration: there is nothing to move")
    return lists


def _without_lists(config: Config, lists: Collection[str]) -> Config:
    """The same before these tables have their new lists, for which they may have too few rows yet."""
    tables = [
        replace(table, ids=DirectIds(padding=table.ids.padding))
        if table.name in lists and isinstance(table.ids, DirectIds)
        else table
        for table in config.tables
    ]
    return replace(config, tables=tables)


def _new_list(table: TableSpec) -> NameList:
    assert isinstance(table.ids, DirectIds)
    assert table.ids.names is not None
    if not table.owns_rows:
        assert table.factor is not None
        raise InvalidInput(
            f"table {table.name!r}: its rows are made of factors ({table.factor.kind}) that ids share, so that they "
            "can't be moved; train it anew with the new list"
        )
    return table.ids.name_list


def _old_list(old: Snapshot, table: TableSpec, digest: str | None, given: Mapping[str, Path]) -> NameList:
    path = given.get(table.name)
    if digest is not None:
        if path is not None:
            raise InvalidInput(f"--from {table.name}={path}: {old.path} has the list itself; leave it out")
        return NameList.of(read_id_file(old.path, table.name)["names"], str(old.path))
    if path is None:
        raise InvalidInput(
            f"{old.path}: has no list of names for table {table.name!r}; give the one that its rows are in the order "
            f"of: --from {table.name}=FILE"
        )
    found, rows = read_name_list(path), old.rows[table.name]
    if len(found.names) > rows:
        raise InvalidInput(
            f"{path}: has {len(found.names):,} ids, and table {table.name!r} of {old.path} only {rows:,} rows"
        )
    return found


def _remap(engine: Engine, name: str, before: NameList, after: NameList) -> Remapped:
    source_R = torch.arange(engine.matrices[name].rows)
    source_R[: max(len(before.names), len(after.names))] = -1
    both = [key for key in after.names if key in before.rows]
    old_M, new_M = (torch.tensor([side.rows[key] for key in both], dtype=torch.int64) for side in (before, after))
    source_R[new_M] = old_M
    unnamed = engine.tensors()[f"{name}.updates"][len(before.names) : len(after.names)]
    told = Remapped(
        moved=int((old_M != new_M).sum()),
        stayed=int((old_M == new_M).sum()),
        added=len(after.names) - len(both),
        gone=len(before.names) - len(both),
        unnamed=int((unnamed > 0).sum()),
    )
    _rearrange(engine, name, source_R)
    return told


def _rearrange(engine: Engine, name: str, source_R: Tensor) -> None:
    """Row r becomes what row `source_R[r]` was; where that is -1, what it is before any update."""
    # Seeded apart from the rows that were there: one that has moved away untrained would be the same as its successor.
    matrix = replace(engine.matrices[name], name=f"{name}:remapped")
    anew_R = source_R < 0
    for key, view in engine.tensors().items():
        owner, _, kind = key.rpartition(".")
        if owner != name:
            continue
        start = torch.zeros_like(view)
        if kind == "weight":
            fill_initial(start, matrix, engine.config.collection.seed, 0)
        start[~anew_R] = view[source_R[~anew_R]]
        view.copy_(start)
