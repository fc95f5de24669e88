"""Makes checked dataclasses of what a TOML file says, and explains what is wrong with one."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from embershard.errors import ConfigError

_Spec = TypeVar("_Spec")


def read_toml(path: str | Path) -> dict[str, Any]:
    """What a TOML file says, not checked yet.

    Raises:
        ConfigError: it can't be read, or isn't TOML; names the file.
    """
    try:
        return parse_toml(Path(path).read_bytes(), source=str(path))
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error


def parse_toml(data: bytes, *, source: str) -> dict[str, Any]:
    """The same of what a file has; `source` names it in errors.

    Raises:
        ConfigError: it isn't TOML.
    """
    try:
        return tomllib.loads(data.decode())
    except UnicodeDecodeError as error:
        raise ConfigError(f"{source}: is not UTF-8 text: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{source}: is not valid TOML: {error}") from error
    except (ValueError, RecursionError) as error:  # numbers and nesting beyond what Python takes
        raise ConfigError(f"{source}: is TOML that nobody would write: {error}") from None


def checked(
    kind: type[_Spec], data: dict[str, Any], *, source: str, places: Mapping[str, type], secret: bool = False
) -> _Spec:
    """A dataclass made of `data`.

    Args:
        kind: the dataclass of the whole file.
        data: what the file says.
        source: names the file in errors.
        places: the dataclass that stands at a key, or is a union's member of this kind, by that name.
        secret: whether errors mustn't tell values.

    Raises:
        ConfigError: one line a problem, naming file, table, key, the value and what is allowed.
    """
    try:
        return TypeAdapter(kind).validate_python(data)
    except ValidationError as error:
        problems = [_explain(data, problem, kind, places, secret) for problem in error.errors(include_url=False)]
        told = ConfigError("\n".join(f"{source}: {problem}" for problem in problems))
        raise told from None if secret else error


def _explain(data: dict[str, Any], problem: Any, kind: type, places: Mapping[str, type], secret: bool) -> str:
    """One line for one problem: where, the value, what is wrong, what is allowed."""
    where: list[str] = []
    here: Any = data
    last = len(problem["loc"]) - 1
    for depth, step in enumerate(problem["loc"]):
        if isinstance(here, list) and isinstance(step, int):
            name = here[step].get("name") if isinstance(here[step], dict) else None
            name = name if (isinstance(name, str) and name.isidentifier()) or not secret else ""
            where.append(f"[{step}]" + (f" {name!r}" if name else ""))
        elif isinstance(here, dict) and (step in here or depth == last):
            where.append(str(step))
        else:
            continue  # the name of a union's member, not a key
        here = here[step] if isinstance(here, list) else here.get(step, {})
    place = " ".join(where).replace("tables [", "tables[").replace("tokens [", "tokens[") or "top level"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{place}: this key is required"
    if problem["type"] == "unexpected_keyword_argument":
        return f"{place}: unknown key; allowed here: {', '.join(_allowed(problem['loc'], kind, places))}"
    if problem["type"] == "union_tag_invalid":
        return f"{place} kind = {problem['ctx']['tag']!r}: allowed: {problem['ctx']['expected_tags']}"
    if problem["type"] == "dataclass_type":
        message = "must be a table of keys, such as { key = … }"
    value = problem["input"]
    shown = "" if secret or is_dataclass(value) or isinstance(value, (dict, list)) else f" = {value!r}"
    return f"{place}{shown}: {message[0].lower()}{message[1:]}"


def _allowed(location: tuple[str | int, ...], kind: type, places: Mapping[str, type]) -> list[str]:
    """The keys of the dataclass in which the last step of a location stands."""
    owner = next((places[str(step)] for step in reversed(location[:-1]) if str(step) in places), kind)
    return [item.name for item in fields(owner)]
