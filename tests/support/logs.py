"""Update logs as a test needs them: with a few records, closed, or left behind by a crash."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np

from embershard.config import Config, parse_config
from embershard.engine.entries import Kind
from embershard.engine.pipeline import Record
from embershard.store.log import UpdateLog


def config(learning_rate: float = 0.1) -> Config:
    return parse_config(
        {
            "collection": {"name": "test"},
            "tables": [{"name": "t", "rows": 3, "dim": 2}],
            "optimizer": {"learning_rate": learning_rate},
        }
    )


def records(first: int, count: int, size: int = 40) -> list[Record]:
    return [
        Record(version=version, kind=Kind.UPDATE, now_s=1_000 + version, request=bytes([version % 251]) * size)
        for version in range(first, first + count)
    ]


def opened(folder: Path, *, last: int = 0, mode: str = "fsync", **settings_of: float) -> UpdateLog:
    described = config(**settings_of)
    return UpdateLog(
        folder,
        mode=mode,
        about=lambda: {"layout": described.layout(), "settings": described.settings()},
        last=last,
    )


def written(folder: Path, *batches: int, size: int = 40) -> list[Record]:
    """A log that was closed, as a process leaves it that has time to."""
    log, all_of_them = opened(folder), records(1, sum(batches), size)
    for start, count in zip(np.cumsum([0, *batches]).tolist(), batches, strict=False):
        log.append(all_of_them[start : start + count]).result(30)
    log.close()
    return all_of_them


def killed(folder: Path, *batches: int) -> list[Record]:
    """A log that wasn't: all of it is in the file beside."""
    beside = folder.with_name("live")
    log, all_of_them = opened(beside), records(1, sum(batches))
    for start, count in zip(np.cumsum([0, *batches]).tolist(), batches, strict=False):
        log.append(all_of_them[start : start + count]).result(30)
    shutil.copytree(beside, folder)
    log.close()
    shutil.rmtree(beside)
    return all_of_them


def spoil(path: Path, at: int, bits: int) -> None:
    """Turns over some bits of a byte."""
    data = bytearray(path.read_bytes())
    data[at] ^= bits
    path.write_bytes(data)
