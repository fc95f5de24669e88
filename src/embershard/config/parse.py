"""Reads a configuration, and explains what is wrong with one."""

from __future__ import annotations

import tomllib
import warnings
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from embershard.config.collection import CollectionSpec, Config, DurabilitySpec, LimitSpec
from embershard.config.specs import (
    DirectIds,
    HashedIds,
    InitSpec,
    LowRank,
    OptimizerSpec,
    QuotientRemainder,
    VocabularyIds,
)
from embershard.config.tables import TableSpec
from embershard.errors import ConfigError


def load_config(path: str | Path) -> Config:
    """Reads a TOML file.

    Raises:
        ConfigError: naming file, table, key, the value and what is allowed.
    """
    try:
        text = Path(path).read_bytes().decode()
        data = tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"{path}: can't read the configuration: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: is not UTF-8 text: {error}") from error
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{path}: is not valid TOML: {error}") from error
    return parse_config(data, source=str(path), folder=Path(path).parent)


def parse_config(data: dict[str, Any], *, source: str = "configuration", folder: Path = Path()) -> Config:
    """Checks a configuration given as a dictionary; `source` names it in errors, `folder` is where its files are."""
    data = _filled(data, folder)
    try:
        config = TypeAdapter(Config).validate_python(data)
    except ValidationError as error:
        problems = [_explain(data, problem) for problem in error.errors(include_url=False)]
        raise ConfigError("\n".join(f"{source}: {problem}" for problem in problems)) from error
    for table in config.tables:
        if isinstance(table.factor, LowRank) and table.factor.rank >= table.dim:
            warnings.warn(
                f"{source}: table {table.name!r}: factor.rank = {table.factor.rank} isn't less than dim = {table.dim}: "
                "the factor saves nothing; leave it out, or give a smaller rank",
                stacklevel=2,
            )
    return config


def _filled(data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Makes `ids = {padding = 0}` mean direct ids, whose kind has a default like every other key, and finds files."""
    tables = data.get("tables")
    if not isinstance(tables, list):
        return data
    return {**data, "tables": [_with_ids(table, folder) for table in tables]}


def _with_ids(table: Any, folder: Path) -> Any:
    ids = table.get("ids") if isinstance(table, dict) else None
    if not isinstance(ids, dict):
        return table
    ids = {"kind": "direct", **ids}
    if isinstance(ids.get("names"), str):
        ids["names"] = folder / ids["names"]
    return {**table, "ids": ids}


def _explain(data: dict[str, Any], problem: Any) -> str:
    """One line for one problem: where, the value, what is wrong, what is allowed."""
    where: list[str] = []
    here: Any = data
    last = len(problem["loc"]) - 1
    for depth, step in enumerate(problem["loc"]):
        if isinstance(here, list) and isinstance(step, int):
            name = here[step].get("name", "") if isinstance(here[step], dict) else ""
            where.append(f"[{step}]" + (f" {name!r}" if name else ""))
        elif isinstance(here, dict) and (step in here or depth == last):
            where.append(str(step))
        else:
            continue  # the name of a union's member, not a key
        here = here[step] if isinstance(here, list) else here.get(step, {})
    place = " ".join(where).replace("tables [", "tables[") or "top level"
    message = problem["msg"].removeprefix("Value error, ")
    if problem["type"] == "missing":
        return f"{place}: this key is required"
    if problem["type"] == "unexpected_keyword_argument":
        return f"{place}: unknown key; allowed here: {', '.join(_allowed(problem['loc']))}"
    if problem["type"] == "union_tag_invalid":
        return f"{place} kind = {problem['ctx']['tag']!r}: allowed: {problem['ctx']['expected_tags']}"
    if problem["type"] == "dataclass_type":
        message = "must be a table of keys, such as { kind = … }"
    value = problem["input"]
    shown = "" if is_dataclass(value) or isinstance(value, (dict, list)) else f" = {value!r}"
    return f"{place}{shown}: {message[0].lower()}{message[1:]}"


def _allowed(location: tuple[str | int, ...]) -> list[str]:
    """The keys of the dataclass in which the last step of a location stands."""
    by_place: dict[str, Any] = {
        "collection": CollectionSpec,
        "tables": TableSpec,
        "optimizer": OptimizerSpec,
        "limits": LimitSpec,
        "durability": DurabilitySpec,
        "init": InitSpec,
        "direct": DirectIds,
        "hashed": HashedIds,
        "vocabulary": VocabularyIds,
        "low_rank": LowRank,
        "quotient_remainder": QuotientRemainder,
    }
    owner = next((by_place[step] for step in reversed(location[:-1]) if step in by_place), Config)
    return [item.name for item in fields(owner)]
