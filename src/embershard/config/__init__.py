"""The configuration of a collection: keyword-only dataclasses, checked on construction, read from one TOML file."""

from embershard.config.collection import CollectionSpec, Config, DurabilitySpec, LimitSpec
from embershard.config.layout import difference, fingerprint_of, layout_difference, narrowed, spelled_out
from embershard.config.parse import load_config, parse_config
from embershard.config.specs import (
    MAX_ROWS,
    DirectIds,
    HashedIds,
    InitSpec,
    LowRank,
    OptimizerSpec,
    QuotientRemainder,
    VocabularyIds,
)
from embershard.config.tables import SERVES_ONLY, Matrix, TableSpec

__all__ = [
    "MAX_ROWS",
    "SERVES_ONLY",
    "CollectionSpec",
    "Config",
    "DirectIds",
    "DurabilitySpec",
    "HashedIds",
    "InitSpec",
    "LimitSpec",
    "LowRank",
    "Matrix",
    "OptimizerSpec",
    "QuotientRemainder",
    "TableSpec",
    "VocabularyIds",
    "difference",
    "fingerprint_of",
    "layout_difference",
    "load_config",
    "narrowed",
    "parse_config",
    "spelled_out",
]
