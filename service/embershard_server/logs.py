"""How events are logged: one way for all libraries, as text or as JSON, with the id of the call that they are of."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from typing import Any

from embershard_server.watch import current

FORMATS = ("text", "json")


def set_up(*, level: str, form: str, rank: int) -> None:
    """Has everything logged to stderr: warnings of libraries, and what our own loggers say from this level on."""
    logging.captureWarnings(capture=True)
    # The libraries below log pages at level info; the level asked for is that of our own loggers.
    logging.basicConfig(level="WARNING")
    for handler in logging.getLogger().handlers:
        handler.setFormatter(formatter(form, rank=rank))
    for name in ("embershard", "embershard_server"):
        logging.getLogger(name).setLevel(level.upper())
    if form == "json":
        sys.excepthook = lambda kind, error, trace: logging.getLogger("embershard_server").critical(
            "uncaught", exc_info=(kind, error, trace)
        )


def formatter(form: str, *, rank: int) -> logging.Formatter:
    """Writes events in one of the formats."""
    return _Json(rank) if form == "json" else _Text(rank)


class _Text(logging.Formatter):
    """For people."""

    def __init__(self, rank: int) -> None:
        super().__init__(f"%(asctime)s %(levelname)s [rank {rank}] %(name)s: %(message)s%(call)s")

    def format(self, record: logging.LogRecord) -> str:
        """One event, and the lines of its exception."""
        record.call = "".join(f" [{name} {value}]" for name, value in _of_call().items())
        return super().format(record)


class _Json(logging.Formatter):
    """For whatever collects logs: an object a line."""

    def __init__(self, rank: int) -> None:
        super().__init__()
        self._rank = rank

    def format(self, record: logging.LogRecord) -> str:
        """One event, in one line."""
        told: dict[str, Any] = {
            "ts": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "rank": self._rank,
            "logger": record.name,
            "message": record.getMessage(),
            **_of_call(),
        }
        if record.exc_info:
            told["exception"] = self.formatException(record.exc_info)
        return json.dumps(told, ensure_ascii=False)


def _of_call() -> dict[str, str]:
    """By what the present call is found."""
    if (watch := current.get()) is None:
        return {}
    return {"request_id": watch.request_id} | ({"trace_id": watch.trace.id} if watch.trace else {})
