"""The files of a delta: one safetensors file a rank of the training job, read by any number of ranks of a service.

    rows/user, weight/user, sum/user …      rows of a matrix by number, ascending, and what they are
    ids.keys/query, ids.weight/query …      ids that own a row of a table, and what that is
    gone.keys/query …                       ids that have lost theirs
    vocabulary.keys/pair …                  the whole state of a vocabulary

What is wrong with a file is found here, beside the tick: what comes out of it can be copied into shards as it is.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import save_file

from embershard import codec
from embershard.engine.delta import PUBLISHED
from embershard.engine.publication import StagedFile

if TYPE_CHECKING:
    from pathlib import Path

    from embershard.engine.touched import Changes, Columns

FORMAT = "embershard delta 1"
IDS, GONE, WHOLE = "ids.", "gone.", "vocabulary."
"""What is told of a table, beside rows by number."""
STRINGS = ("text", "ends", "there")
_TOLD = ("keys", "counts", "steps", "seen_s", "names")
_DIGITS = 12


def write_delta_file(folder: Path, publisher: str, number: int, changes: Changes) -> StagedFile:
    """Writes a rank's file, under a name that tells it from a file of other changes.

    Raises:
        OSError: it can't be written.
    """
    arrays: dict[str, Any] = {}
    for matrix, columns in changes.rows.items():
        arrays |= _named("", matrix, columns)
    for table, columns in changes.owned.items():
        arrays |= _named(IDS, table, {name: columns[name] for name in (*_TOLD, *PUBLISHED) if name in columns})
    for prefix, tables in ((GONE, changes.gone), (WHOLE, changes.vocabularies)):
        for table, columns in tables.items():
            arrays |= _named(prefix, table, columns)
    told = {
        "format": FORMAT,
        "publisher": publisher,
        "number": str(number),
        "rank": str(changes.rank),
        "world_size": str(changes.world_size),
        "optimizers": json.dumps(dict(changes.optimizers)),
    }
    path = folder / f"delta-{changes.rank + 1:05d}"
    save_file(arrays, path, told)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    made = path.rename(folder / f"{path.name}-{digest[:_DIGITS]}.safetensors")
    return StagedFile(name=made.name, size=made.stat().st_size, sha256=digest)


def _named(prefix: str, of: str, columns: Columns) -> dict[str, Any]:
    """As arrays of a file; strings as bytes."""
    arrays = {name: np.asarray(column) for name, column in columns.items() if name != "names"}
    strings = codec.pack_strings(columns["names"]) if "names" in columns else {}
    return {f"{prefix}{name}/{of}": np.ascontiguousarray(array) for name, array in (arrays | strings).items()}
