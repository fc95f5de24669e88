"""Stores the rows of a snapshot in fewer bits."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from embershard.config import narrowed
from embershard.engine.local import LocalEngine
from embershard.errors import InvalidInput
from embershard.store import snapshot as snapshots
from embershard.store.folder import DataDir

if TYPE_CHECKING:
    from embershard.config import Config
    from embershard.store.manifest import Snapshot


def convert(old: Snapshot, config: Config, folder: Path) -> tuple[Snapshot, dict[str, tuple[str, str]]]:
    """Writes a snapshot of the same version into a data directory, its rows in the configuration's dtypes; and tells
    what of each table has changed, {table: (dtype before, dtype after)}. int8 rows have no optimizer state any more.

    Raises:
        FingerprintMismatch: something else differs, or a table would be stored in more bits.
        InvalidInput: nothing differs.
        SnapshotError: the data directory has snapshots already, or one can't be read or written.
        ConfigError: the data directory can't be written, or a server has it.
    """
    layout = old.manifest["layout"]
    fitted = config.fitted(narrowed(layout, config.dtypes))
    snapshots.check_belongs(fitted, old, narrower=True)
    dtypes = {name: (str(table["dtype"]), config.dtypes[name]) for name, table in layout["tables"].items()}
    changed = {name: pair for name, pair in dtypes.items() if pair[0] != pair[1]}
    if not changed:
        raise InvalidInput(f"{old.path}: has the dtypes of the configuration: there is nothing to convert")
    data = DataDir(folder)
    with data.fresh() as world:
        engine = LocalEngine(fitted, world, seeded=False)
        snapshots.fill(engine, old)
        made = snapshots.save(engine, None, old.version, data.snapshots, keeping=snapshots.Keeping(kept=1))
    return made, changed
