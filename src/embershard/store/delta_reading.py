"""Reads the files of a delta as far as one rank of a service has a use for them, whatever ranks wrote them."""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterator, Mapping, Sequence, Set
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import safe_open
from torch import Tensor
from torch.nn.functional import pad

from embershard import codec
from embershard.engine.books import updates_as
from embershard.engine.delta import PUBLISHED, Delta, NewOwners, NewRows
from embershard.errors import InvalidInput, SnapshotError
from embershard.rowwise import WIDER, floats, stored_as
from embershard.store.agreement import Agree, everywhere
from embershard.store.delta_files import FORMAT, GONE, IDS, STRINGS, WHOLE
from embershard.store.staging import check_file
from embershard.vocabulary import Owners, Sightings, Vocabulary

if TYPE_CHECKING:
    from pathlib import Path

    from embershard.config import TableSpec
    from embershard.engine.base import Engine
    from embershard.engine.placement import Group
    from embershard.engine.publication import Publication

_MOST = 2**62
"""Of counts, steps and times of ids."""
_TOLD = ("counts", "steps", "seen_s")


def read_delta(
    folder: Path, publication: Publication, engine: Engine, agree: Agree, *, rest: Callable[[], None] = lambda: None
) -> Delta:
    """Joint: what a delta changes in the tables of this engine, cut to this rank.

    `agree` is of the thread that it is done on; `rest` is called after each piece of work.

    Raises:
        SnapshotError: on every rank: a file is missing or damaged, or has what no row may be.
        InvalidInput: on every rank: the training job has other optimizers.
    """
    world = engine.world
    with everywhere(agree, f"{publication} can't be read"), ExitStack() as opened:
        for file in publication.files[world.rank :: world.size]:
            check_file(folder, file)
            rest()
        files = [opened.enter_context(safe_open(folder / file.name, "pt")) for file in publication.files]
        reader = _Reader(publication, engine, files, rest)
        optimizers = reader.optimizers()
        if lacking := [table.name for table in engine.config.tables if table.name not in optimizers]:
            raise SnapshotError(f"{publication}: doesn't tell the optimizer of table {lacking[0]!r}")
        delta = reader.delta()
    for table in engine.config.tables:
        ours, theirs = engine.config.optimizer_of(table).kind, optimizers[table.name]
        if ours != theirs:
            raise InvalidInput(
                f"{publication}: table {table.name!r} is trained by {theirs}, and served with the state of {ours}: "
                "give both the same optimizer.kind"
            )
    return delta


class _Reader:
    """The files of all ranks that wrote them, in the order of those."""

    def __init__(
        self, publication: Publication, engine: Engine, files: Sequence[Any], rest: Callable[[], None]
    ) -> None:
        self._publication, self._engine, self._rest = publication, engine, rest
        self._frozen = 0
        told = [file.metadata() or {} for file in files]
        for one in told:
            if one.get("format") != FORMAT:
                raise self._wrong(f"a file is of the format {one.get('format')!r}, and this release reads {FORMAT!r}")
            if (one["publisher"], int(one["number"])) != (publication.publisher, publication.number):
                raise self._wrong(f"a file is of publication {one['number']} of {one['publisher']!r}")
        ranks = sorted((int(one["rank"]), number) for number, one in enumerate(told))
        if [rank for rank, _ in ranks] != [*range(int(told[0]["world_size"]))]:
            raise self._wrong(f"has files of ranks {[rank for rank, _ in ranks]} of {told[0]['world_size']}")
        self._told, self._files = told, [files[number] for _, number in ranks]
        self._names = [{*file.keys()} for file in self._files]

    def optimizers(self) -> dict[str, str]:
        """{table: kind}."""
        kinds: dict[str, str] = json.loads(self._told[0]["optimizers"])
        return kinds

    def delta(self) -> Delta:
        """All that this rank has a use for."""
        engine, owned, gone, whole = self._engine, {}, {}, {}
        groups = engine.groups
        for table, vocabulary in engine.vocabularies.items():
            if _stays(engine.config.table(table)):
                self._frozen += sum(map(len, self._table(IDS, table).get("keys", []))) if not engine.world.rank else 0
                continue
            if not engine.config.table(table).owns_rows:
                if state := self._table(WHOLE, table):
                    whole[table] = self._vocabulary(table, vocabulary.capacity, state)
                continue
            if ids := self._table(IDS, table):
                (group,) = (group for group in groups if table in group.slots)
                owned[table] = self._owners(table, group, ids)
            if ids := self._table(GONE, table):
                keys, names = _array(ids, "keys"), _strings(ids)
                order = np.argsort(keys)
                gone[table] = _sightings(keys[order], names[order], np.zeros(len(keys), np.int64))
        rows = {group.name: self._rows(group) for group in groups}
        return Delta(groups=groups, rows=rows, owned=owned, gone=gone, vocabularies=whole, frozen=self._frozen)

    def _rows(self, group: Group) -> NewRows:
        """Rows of a stack by number that are this rank's."""
        like = self._engine.shards[group.name].kinds
        pieces: dict[str, list[Tensor]] = {kind: [] for kind in PUBLISHED if kind in like}
        local = [torch.empty(0, dtype=torch.int64)]
        for matrix, slot in group.slots.items():
            first, stop = slot.held(self._engine.world.rank)
            last = -1
            for file, names, numbers_n in self._having("rows", matrix):
                if numbers_n.dtype != torch.int64 or numbers_n.ndim != 1:
                    raise self._wrong(f"the rows of {matrix} are {numbers_n.dtype} {[*numbers_n.shape]}, not int64 [n]")
                borders = torch.searchsorted(numbers_n, torch.tensor([first, stop]))
                if len(numbers_n) and (numbers_n[0] <= last or (numbers_n.diff() <= 0).any()):
                    raise self._wrong(f"the rows of {matrix} don't ascend")
                last = int(numbers_n[-1]) if len(numbers_n) else last
                if last >= self._limit(matrix):
                    raise self._wrong(f"row {last:,} of {matrix} is none that is known by its number here")
                mine = slice(*borders.tolist())
                if _stays(slot.matrix.table):
                    self._frozen += mine.stop - mine.start
                    continue
                local.append(numbers_n[mine] - first + slot.local(self._engine.world.rank).start)
                for kind, of_kind in pieces.items():
                    if _uncounted(kind, f"{kind}/{matrix}", names):
                        of_kind.append(like[kind].new_zeros(mine.stop - mine.start, device="cpu"))
                        continue
                    whole = file.get_slice(f"{kind}/{matrix}")
                    if whole.get_shape()[:1] != [len(numbers_n)]:
                        raise self._wrong(f"{kind} of {matrix} has other rows than it says")
                    of_kind.append(self._checked(f"{kind}/{matrix}", whole[mine], like[kind], group))
                    self._rest()
        kinds = {kind: torch.cat([like[kind][:0].cpu(), *of_kind]) for kind, of_kind in pieces.items()}
        device = self._engine.world.device
        return NewRows(
            local_n=torch.cat(local).to(device), kinds={kind: rows.to(device) for kind, rows in kinds.items()}
        )

    def _owners(self, table: str, group: Group, ids: Mapping[str, Any]) -> NewOwners:
        keys_n, names_n = _array(ids, "keys"), _strings(ids)
        order = np.argsort(keys_n)
        told = {name: _array(ids, name) for name in _TOLD}
        if len(names_n) != len(keys_n):
            raise self._wrong(f"names of the ids of {table} are others than their keys")
        for name, numbers in told.items():
            if len(numbers) != len(keys_n) or numbers.min(initial=0) < 0 or numbers.max(initial=0) > _MOST:
                raise self._wrong(f"{name} of the ids of {table} can't be")
        if (keys_n[order][1:] == keys_n[order][:-1]).any():
            raise self._wrong(f"two ids of {table} have one key")
        counts, steps, seen_s = (told[name][order] for name in _TOLD)
        like = self._engine.shards[group.name].kinds
        kinds = {}
        for kind in (kind for kind in PUBLISHED if kind in like):
            none = [like[kind].new_zeros(len(keys_n), device="cpu")] if _uncounted(kind, kind, ids) else None
            rows = torch.cat(none or ids[kind])
            if len(rows) != len(keys_n):
                raise self._wrong(f"{kind} of the ids of {table} has other rows than there are ids")
            checked = self._checked(f"{kind}/{table}", rows, like[kind], group)
            kinds[kind] = checked.index_select(0, torch.from_numpy(order)).to(self._engine.world.device)
            self._rest()
        owners = Owners(ids=_sightings(keys_n[order], names_n[order], counts), steps_u=steps, seen_s_u=seen_s)
        return NewOwners(owners=owners, kinds=kinds)

    def _vocabulary(self, table: str, capacity: int, told: Mapping[str, Any]) -> Vocabulary:
        """A vocabulary of this state."""
        state = {name: _array(told, name) for name in told if name not in STRINGS} | {"names": _strings(told).tolist()}
        slots, keys = state["slots"], state["keys"]
        if (np.diff(slots) <= 0).any() or slots.min(initial=0) < 0 or slots.max(initial=0) >= capacity:
            raise self._wrong(f"the slots of the ids of {table} can't be")
        if len(np.unique(keys)) < len(keys):
            raise self._wrong(f"two ids of {table} have one key")
        vocabulary = Vocabulary(self._engine.config.table(table))
        vocabulary.restore(state)
        return vocabulary

    def _checked(self, name: str, rows: Tensor, like: Tensor, group: Group) -> Tensor:
        """The rows as a shard has them; those of which it stores fewer bits are rounded."""
        if name.startswith("updates/") and rows.dtype in (torch.int32, torch.uint8):
            rows = updates_as(like.dtype, rows)
        dim = (group.stored_dim,) if like.ndim > 1 else ()
        rounded = rows.dtype in WIDER.get(like.dtype, ()) and rows.shape[1:] == (group.dim,)
        if not rounded and (rows.dtype != like.dtype or rows.shape[1:] != dim):
            raise self._wrong(f"{name} has rows of {rows.dtype} {[*rows.shape[1:]]}, not {like.dtype} {[*dim]}")
        numbers = floats(rows) if dim else rows
        if numbers.numel() and numbers.is_floating_point() and not all(edge.isfinite() for edge in numbers.aminmax()):
            raise self._wrong(f"{name} has numbers that aren't finite")
        rows = stored_as(like.dtype, rows) if rounded else rows
        return pad(rows, (0, group.kernel_dim - dim[0])) if dim and group.kernel_dim != dim[0] else rows

    def _limit(self, matrix: str) -> int:
        """Rows of a matrix that are known by their number."""
        vocabulary = self._engine.vocabularies.get(matrix)
        by_id = vocabulary is not None and self._engine.config.table(matrix).owns_rows
        return vocabulary.first_row if vocabulary and by_id else self._engine.matrices[matrix].rows

    def _having(self, name: str, of: str) -> Iterator[tuple[Any, Set[str], Tensor]]:
        for file, names in zip(self._files, self._names, strict=True):
            if f"{name}/{of}" in names:
                yield file, names, file.get_tensor(f"{name}/{of}")

    def _table(self, prefix: str, table: str) -> dict[str, list[Any]]:
        """{column: a tensor a file} of those files that tell it of a table."""
        found: dict[str, list[Any]] = {}
        for file, names in zip(self._files, self._names, strict=True):
            for name in names:
                column, _, of = name.partition("/")
                if of == table and column.startswith(prefix):
                    found.setdefault(column.removeprefix(prefix), []).append(file.get_tensor(name))
            self._rest()
        return found

    def _wrong(self, what: str) -> SnapshotError:
        return SnapshotError(f"{self._publication}: {what}; publish it anew")


def _uncounted(kind: str, name: str, names: Container[str]) -> bool:
    """Whether it is what a training job doesn't count: then a row is as in a snapshot of it, not sighted."""
    return kind == "sightings" and name not in names


def _stays(table: TableSpec) -> bool:
    """Whether what is published leaves the table as it is; int8 rows have no other way to change."""
    return table.frozen and not table.serves_only


def _array(columns: Mapping[str, Sequence[Tensor]], name: str) -> Any:
    array = torch.cat([*columns[name]]).numpy()
    if array.dtype not in (np.int64, np.bool_):
        raise ValueError(f"{name} is {array.dtype}")
    return array


def _strings(columns: Mapping[str, Sequence[Tensor]]) -> Any:
    """The string of each id, or None."""
    names: list[str | None] = []
    for text, ends, there in zip(*(columns[name] for name in STRINGS), strict=True):
        names += codec.unpack_strings({"text": text.numpy(), "ends": ends.numpy(), "there": there.numpy()})
    made = np.empty(len(names), object)
    made[:] = names
    return made


def _sightings(keys_u: Any, names_u: Any, counts_u: Any) -> Sightings:
    return Sightings(keys_u=keys_u, names_u=names_u, counts_u=counts_u, demanded_u=np.ones(len(keys_u), np.bool_))
