"""The files of a snapshot that tell which ids own which rows: one a table, of a vocabulary or a list of names.

ids-query.safetensors      the whole state of a vocabulary, its counts and candidates, too
ids-word.safetensors       the names of a table of direct ids, in the order of its rows
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from embershard import codec
from embershard.config import DirectIds
from embershard.errors import SnapshotError

if TYPE_CHECKING:
    from embershard.config import Config
    from embershard.vocabulary import Vocabulary

_NAMES = ("text", "ends", "there")


def id_file(table: str) -> str:
    """The name of the file."""
    return f"ids-{table}.safetensors"


def write_id_files(folder: Path, config: Config, vocabularies: dict[str, Vocabulary]) -> None:
    """Writes those of all tables that have any."""
    for table in config.tables:
        if table.name in vocabularies:
            state = vocabularies[table.name].state()
            names = codec.pack_strings(state.pop("names"))
            save_file(state | names, folder / id_file(table.name))
        elif isinstance(table.ids, DirectIds) and table.ids.names is not None:
            save_file(codec.pack_strings(table.ids.name_list.names), folder / id_file(table.name))


def read_id_file(folder: Path, table: str) -> dict[str, Any]:
    """The arrays of one table, with `names` as a list; {} if it has no such file.

    Raises:
        SnapshotError: it is damaged.
    """
    path = folder / id_file(table)
    if not path.exists():
        return {}
    try:
        arrays = load_file(path)
    except (OSError, SafetensorError) as error:
        raise SnapshotError(f"{path}: can't be read: {error}") from error
    state: dict[str, Any] = {name: array for name, array in arrays.items() if name not in _NAMES}
    return state | {"names": codec.unpack_strings(arrays)}


def names_of(state: dict[str, Any]) -> Iterator[tuple[int | str, int]]:
    """(id, slot or row) of every id in a file."""
    if "keys" not in state:
        yield from ((name, row) for row, name in enumerate(state["names"]))
        return
    for key, name, slot in zip(state["keys"].tolist(), state["names"], state["slots"].tolist(), strict=True):
        yield (key if name is None else name), slot
