"""embershard: learned lookup tables for recommenders, sharded row-wise, served over gRPC.

This package is light: the client needs numpy, grpcio and protobuf, and importing it never imports torch.
"""

from importlib.metadata import version as _version

from embershard.client import AsyncClient, Client, Security
from embershard.errors import (
    AccessDenied,
    ConfigError,
    DeadlineExceeded,
    EmbershardError,
    FingerprintMismatch,
    InstallError,
    InternalError,
    InvalidInput,
    LogError,
    Overloaded,
    SequenceGap,
    SnapshotError,
    Unauthenticated,
    Unavailable,
    Unsupported,
)
from embershard.heap import keep_freed_memory
from embershard.types import Provenance, Rows

__version__ = _version("embershard")

__all__ = [
    "AccessDenied",
    "AsyncClient",
    "Client",
    "ConfigError",
    "DeadlineExceeded",
    "EmbershardError",
    "FingerprintMismatch",
    "InstallError",
    "InternalError",
    "InvalidInput",
    "LogError",
    "Overloaded",
    "Provenance",
    "Rows",
    "Security",
    "SequenceGap",
    "SnapshotError",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
    "__version__",
    "keep_freed_memory",
]
