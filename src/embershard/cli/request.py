"""Requests as they are typed: flags, JSON and .npy files, all brought into one shape.

    {"user_id": {"ids": [1, 2]}, "genres": {"ids": ["jazz", "folk"], "lengths": [2], "weights": [1.0, 0.5]}}

An update has "gradients", "values" or "parents" beside "ids". In JSON, a bare list stands for `{"ids": list}`.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from tokenize import TokenError
from typing import TYPE_CHECKING, Any

import numpy as np

from embershard.errors import InvalidInput
from embershard.formats.files import about

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator

Request = dict[str, dict[str, Any]]
"""{feature: {"ids": …, "lengths": …, "weights": …, "gradients": …, …}}, of which only "ids" must be there."""

BATCH = ("ids", "lengths", "weights")
CHANGES = ("gradients", "values", "parents")
"""What an update may do; flags have the first two."""
_FILES = ("gradients", "values")
_PARENTS = ("ids", "lengths")


def read_request(options: Namespace, changes: tuple[str, ...] = ()) -> Request:
    """The request that the flags give, or the JSON that `--request` names.

    Raises:
        InvalidInput: it can't be read, or isn't of the shape above.
    """
    flags = ("ids", "keys", "lengths", "weights", *(name for name in _FILES if name in changes))
    given = [name for name in flags if getattr(options, name)]
    if options.request is None:
        if not (options.ids or options.keys):
            options.usage_error("give ids: --ids, --keys or --request")
        return _from_flags(options)
    if given:
        options.usage_error(f"--request holds the whole request: leave out --{given[0]}")
    return _from_json(options.request, (*BATCH, *changes))


def read_requests(path: Path) -> Iterator[dict[str, object]]:
    """The requests of a file, one a line as JSON of the shape above, as the client takes them.

    Raises:
        InvalidInput: the file can't be read, or a line isn't a request.
    """
    with about(path, "read"), path.open("rb") as file:
        for number, line in enumerate(file, 1):
            yield batches_of(_parsed(line, f"line {number}", BATCH))


def batches_of(request: Request) -> dict[str, object]:
    """The ids of a request, as the client takes them."""
    return {feature: tuple(part.get(name) for name in BATCH) for feature, part in request.items()}


def change_of(request: Request, options: Namespace) -> tuple[str, dict[str, object]]:
    """What an update does, from the request itself or from the .npy file of a flag: ("gradients", {feature: …}).

    Raises:
        InvalidInput: there is none, or there are two kinds, or the file can't be read.
    """
    if options.request is None:
        kind = next((name for name in _FILES if getattr(options, name)), None)
        if kind is None or len(request) != 1:
            options.usage_error("give one feature with --gradients or --values, or several with --request")
        return str(kind), {feature: _from_npy(getattr(options, str(kind))) for feature in request}
    kinds = [name for name in CHANGES if any(name in part for part in request.values())]
    if len(kinds) != 1:
        raise InvalidInput('a request gives "gradients", or "values", or "parents", for all of its features')
    change = {feature: part[kinds[0]] for feature, part in request.items() if kinds[0] in part}
    if kinds[0] == "parents":
        change = {feature: tuple(part.get(name) for name in _PARENTS) for feature, part in change.items()}
    return kinds[0], change


def ids_of(options: Namespace) -> dict[str, object]:
    """The ids of the one feature that the flags name."""
    pairs = options.ids or options.keys
    if len({feature for feature, _ in pairs}) > 1:
        options.usage_error("give the ids of one feature at a time")
    return {feature: [item for _, items in pairs for item in items] for feature, _ in pairs}


def _from_flags(options: Namespace) -> Request:
    request: Request = {}
    for name, pairs in (
        ("ids", options.ids),
        ("ids", options.keys),
        ("lengths", options.lengths),
        ("weights", options.weights),
    ):
        for feature, items in pairs:
            request.setdefault(feature, {}).setdefault(name, []).extend(items)
    for feature, part in request.items():
        if "ids" not in part:
            options.usage_error(f"feature {feature!r} has --{next(iter(part))}, but no --ids or --keys")
    return request


def _from_json(source: str, allowed: tuple[str, ...]) -> Request:
    where = "standard input" if source == "-" else source
    try:
        data = sys.stdin.buffer.read() if source == "-" else Path(source).read_bytes()
    except OSError as error:
        raise InvalidInput(f"{where}: can't read the request: {error.strerror}") from error
    return _parsed(data, where, allowed)


def _parsed(data: bytes, where: str, allowed: tuple[str, ...]) -> Request:
    try:
        document = json.loads(data, object_pairs_hook=_without_repeats)
    except (ValueError, RecursionError) as error:
        raise InvalidInput(f"{where}: is not the JSON of a request: {_told(error, data)}") from error
    if not isinstance(document, dict):
        raise InvalidInput(f'{where}: a request is an object of features, such as {{"user_id": [1, 2]}}')
    return {feature: _part(f"{where}: feature {feature!r}", part, allowed) for feature, part in document.items()}


def _told(error: Exception, data: bytes) -> str:
    if not isinstance(error, json.JSONDecodeError):
        return str(error)
    line = f"line {error.lineno}, " * (b"\n" in data.strip())  # of a line, `where` says which
    return f"{error.msg} ({line}column {error.colno})"


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made: dict[str, Any] = {}
    for key, value in pairs:
        if key in made:
            raise InvalidInput(f"{key!r} is there twice, and one of them would be lost")
        made[key] = value
    return made


def _part(where: str, part: object, allowed: tuple[str, ...]) -> dict[str, Any]:
    part = {"ids": part} if isinstance(part, list) else part
    if not isinstance(part, dict) or "ids" not in part:
        raise InvalidInput(f'{where}: give a list of ids, or an object with "ids"')
    if unknown := sorted(part.keys() - set(allowed)):
        raise InvalidInput(f"{where}: unknown key {unknown[0]!r}; allowed here: {', '.join(allowed)}")
    for name in part.keys() & set(BATCH):
        if not isinstance(part[name], list) or any(isinstance(item, (list, dict)) for item in part[name]):
            raise InvalidInput(f"{where}: {name!r} must be a flat list")
    if "parents" in part:
        part = {**part, "parents": _part(f"{where}: parents", part["parents"], _PARENTS)}
    return part


def _from_npy(path: Path) -> np.ndarray[Any, Any]:
    try:
        with path.open("rb") as file:
            array: np.ndarray[Any, Any] = np.lib.format.read_array(file, allow_pickle=False)
    except OSError as error:
        raise InvalidInput(f"{path}: can't read the array: {error.strerror or error}") from error
    except (ValueError, MemoryError, SyntaxError, TokenError) as error:  # each of them of a damaged header, too
        raise InvalidInput(f"{path}: is not an array of numbers in a .npy file: {error}") from error
    if array.dtype.kind not in "fiu":
        raise InvalidInput(f"{path}: holds {array.dtype}; gradients and values are real numbers")
    return array
