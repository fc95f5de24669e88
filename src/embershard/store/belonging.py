"""Whether a snapshot is of the collection that a configuration describes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from embershard.config import layout_difference, narrowed, spelled_out
from embershard.errors import FingerprintMismatch, SnapshotError

if TYPE_CHECKING:
    from embershard.config import Config
    from embershard.store.manifest import Snapshot


def check_belongs(config: Config, snapshot: Snapshot, *, names: bool = True, narrower: bool = False) -> None:
    """Refuses a snapshot of another collection; with `names` False, lists of names may be others, and with `narrower`
    rows may be stored in fewer bits here than there.

    Raises:
        FingerprintMismatch: with the difference spelled out.
        SnapshotError: it has the state of other optimizers.
    """
    manifest = snapshot.manifest
    there = narrowed(manifest["layout"], config.dtypes) if narrower else manifest["layout"]
    here, there = (layout if names else _without_names(layout) for layout in (config.layout(), there))
    if lines := layout_difference(here, there):
        moves = "; `embershard remap` moves rows from one list of names to another"
        rounds = "; `embershard convert` stores rows in fewer bits"
        raise FingerprintMismatch(
            f"{snapshot.path}: is of another collection, {manifest['collection']!r}, or of other settings than this, "
            f"{config.collection.name!r}: {spelled_out(lines)}; serve it with its own configuration, or give "
            "another --data-dir"
            + moves * any(".ids.names: " in line for line in lines)
            + rounds * any(".dtype: " in line for line in lines)
        )
    for table in config.tables:
        ours, theirs = config.optimizer_of(table).kind, manifest["optimizers"][table.name]
        if ours != theirs:
            raise SnapshotError(
                f"{snapshot.path}: table {table.name!r} has the optimizer state of {theirs}, and the configuration "
                f"says {ours}; set optimizer.kind = {theirs!r}"
            )


def _without_names(layout: dict[str, Any]) -> dict[str, Any]:
    tables = {
        name: {**table, "ids": {key: value for key, value in table["ids"].items() if key != "names"}}
        for name, table in layout["tables"].items()
    }
    return {**layout, "tables": tables}
