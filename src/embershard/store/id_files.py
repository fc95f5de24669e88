"""The files of a snapshot that tell who is known: one a table that knows its ids by name, and one of the clients.

ids-query.safetensors      the whole state of a vocabulary, its counts and candidates, too
ids-word.safetensors       the names of a table of direct ids, in the order of its rows
clients.safetensors        what each client has sent
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from embershard import codec
from embershard.config import DirectIds
from embershard.errors import SnapshotError
from embershard.store.manifest import RESTORE

if TYPE_CHECKING:
    from embershard.config import Config

State = Mapping[str, Any]
"""Arrays, and a list of strings as `names`."""
CLIENTS = "clients.safetensors"
"""The name of the file of clients."""
_NAMES = ("text", "ends", "there")


def id_file(table: str) -> str:
    """The name of the file."""
    return f"ids-{table}.safetensors"


def write_id_files(
    folder: Path, config: Config, vocabularies: Mapping[str, State], clients: State | None
) -> Iterator[Path]:
    """Writes those of all tables that have any, and that of clients if they are known; the caller sees to the disk."""
    states = {id_file(name): state for name, state in vocabularies.items()}
    for table in config.tables:
        if isinstance(table.ids, DirectIds) and table.ids.names is not None:
            states[id_file(table.name)] = {"names": table.ids.name_list.names}
    if clients is not None:
        states[CLIENTS] = clients
    for name, state in states.items():
        arrays = {key: array for key, array in state.items() if key != "names"}
        save_file(arrays | codec.pack_strings(state["names"]), folder / name)
        yield folder / name


def read_id_file(folder: Path, table: str) -> dict[str, Any]:
    """The arrays of one table, with `names` as a list; {} if it has no such file.

    Raises:
        SnapshotError: it is damaged.
    """
    return _read(folder / id_file(table))


def read_clients(folder: Path) -> dict[str, Any]:
    """As `Clients.state`; {} if it wasn't written.

    Raises:
        SnapshotError: it is damaged.
    """
    return _read(folder / CLIENTS)


def _read(path: Path) -> dict[str, Any]:
    if not path.exists():
        return {}
    try:
        arrays = load_file(path)
        names = codec.unpack_strings(arrays)
    except (OSError, SafetensorError, KeyError, UnicodeDecodeError) as error:
        raise SnapshotError(f"{path}: can't be read ({type(error).__name__}: {error}); {RESTORE}") from error
    return {name: array for name, array in arrays.items() if name not in _NAMES} | {"names": names}


def names_of(state: dict[str, Any]) -> Iterator[tuple[int | str, int]]:
    """(id, slot or row) of every id in a file."""
    if "keys" not in state:
        yield from ((name, row) for row, name in enumerate(state["names"]))
        return
    for key, name, slot in zip(state["keys"].tolist(), state["names"], state["slots"].tolist(), strict=True):
        yield (key if name is None else name), slot
