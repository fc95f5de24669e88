"""Reads the configuration of a collection."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Final

from embershard.config.checking import checked, read_toml
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

PLACES: Final[dict[str, type]] = {
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


def load_config(path: str | Path) -> Config:
    """Reads a TOML file.

    Raises:
        ConfigError: naming file, table, key, the value and what is allowed.
    """
    return parse_config(read_toml(path), source=str(path), folder=Path(path).parent)


def parse_config(data: dict[str, Any], *, source: str = "configuration", folder: Path = Path()) -> Config:
    """Checks a configuration given as a dictionary; `source` names it in errors, `folder` is where its files are."""
    config = checked(Config, _filled(data, folder), source=source, places=PLACES)
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
