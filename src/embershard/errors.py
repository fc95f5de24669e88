"""Every error that embershard raises on purpose, and the one table between errors and gRPC status.

EmbershardError
├── InvalidInput          INVALID_ARGUMENT     the caller's data is wrong: nothing was changed
├── FingerprintMismatch   FAILED_PRECONDITION  the data belongs to another collection
├── NotFound              NOT_FOUND            what is named isn't there
├── SequenceGap           OUT_OF_RANGE         a client's earlier update never came: nothing was changed
├── Overloaded            RESOURCE_EXHAUSTED   a bound was reached: send less, or later
├── DeadlineExceeded      DEADLINE_EXCEEDED    time ran out: an update may have been applied or not
├── Unavailable           UNAVAILABLE          starting, stopping or unreachable: try again
├── Unauthenticated       UNAUTHENTICATED      nobody knows who the caller is: it has no token, or a wrong one
├── AccessDenied          PERMISSION_DENIED    the caller may not do this
├── Unsupported           UNIMPLEMENTED        the server doesn't know this call
├── SnapshotError         ABORTED              a snapshot can't be written, read or trusted
├── LogError              (never on the wire)  the update log can't be opened, read or trusted
├── ConfigError           (never on the wire)  the configuration is wrong
├── TrainingError         (never on the wire)  a training job can't go on
├── InstallError          (never on the wire)  a package is missing or doesn't belong to the others
└── InternalError         INTERNAL             a defect of embershard: please report it

A message says what is wrong, where, and what to do about it.
"""

from __future__ import annotations

__all__ = [
    "ERROR_BY_STATUS",
    "STATUS_BY_ERROR",
    "AccessDenied",
    "ConfigError",
    "DeadlineExceeded",
    "EmbershardError",
    "FingerprintMismatch",
    "InstallError",
    "InternalError",
    "InvalidInput",
    "LogError",
    "NotFound",
    "Overloaded",
    "SequenceGap",
    "SnapshotError",
    "TrainingError",
    "Unauthenticated",
    "Unavailable",
    "Unsupported",
]


class EmbershardError(Exception):
    """The root: catch this to catch everything that embershard raises on purpose."""

    request_id: str = ""
    """By which the server's log has the call, of errors that a server has told."""


class InvalidInput(EmbershardError, ValueError):
    """The caller's data is wrong; nothing was changed."""


class FingerprintMismatch(EmbershardError):
    """The data, client or snapshot belongs to another collection."""


class NotFound(EmbershardError):
    """What is named isn't there."""


class SequenceGap(EmbershardError):
    """An update's sequence number follows one of the same client that never came; nothing was changed."""


class Overloaded(EmbershardError):
    """A bound of the configuration was reached: send less, or later."""

    retry_after_s: float | None = None
    """When a later try may succeed, in seconds, where that is known."""
    reason: str = "memory"
    """In a word, which bound it is, for whoever counts: calls | identity | bytes | queue | busy | disk | memory."""


class DeadlineExceeded(EmbershardError, TimeoutError):
    """Time ran out: nothing was done if the message says so; else an update may have been applied."""


class Unavailable(EmbershardError, ConnectionError):
    """The service is starting, stopping or unreachable; a later try may succeed."""


class Unauthenticated(EmbershardError):
    """The call has no token, or one that the service doesn't know."""


class AccessDenied(EmbershardError):
    """The caller may not do this."""


class Unsupported(EmbershardError):
    """The server doesn't know this call: is it older than the client?"""


class SnapshotError(EmbershardError):
    """A snapshot can't be written, read or trusted."""


class LogError(EmbershardError):
    """The update log can't be opened, read or trusted."""


class ConfigError(EmbershardError, ValueError):
    """The configuration is wrong."""


class TrainingError(EmbershardError):
    """A training job can't go on; what it has learned until its last checkpoint is kept."""


class InstallError(EmbershardError, ImportError):
    """A package is missing, or its version doesn't belong to the others."""


class InternalError(EmbershardError):
    """A defect of embershard itself."""


STATUS_BY_ERROR: dict[type[EmbershardError], str] = {
    InvalidInput: "INVALID_ARGUMENT",
    FingerprintMismatch: "FAILED_PRECONDITION",
    NotFound: "NOT_FOUND",
    SequenceGap: "OUT_OF_RANGE",
    Overloaded: "RESOURCE_EXHAUSTED",
    DeadlineExceeded: "DEADLINE_EXCEEDED",
    Unavailable: "UNAVAILABLE",
    Unauthenticated: "UNAUTHENTICATED",
    AccessDenied: "PERMISSION_DENIED",
    Unsupported: "UNIMPLEMENTED",
    SnapshotError: "ABORTED",
    InternalError: "INTERNAL",
}
"""The one table from error to the name of a gRPC status code."""

ERROR_BY_STATUS: dict[str, type[EmbershardError]] = {status: error for error, status in STATUS_BY_ERROR.items()}
"""The same table, the way back: what a client raises for a status."""
