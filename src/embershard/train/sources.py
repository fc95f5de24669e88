"""Finds what a job file's `[data]` names, and opens it."""

from __future__ import annotations

import glob
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from embershard.errors import InvalidInput
from embershard.train.columns import Columns
from embershard.train.parquet import ParquetFiles
from embershard.train.schema import DataSpec
from embershard.train.source import Source
from embershard.train.split import Split
from embershard.train.synthetic import Synthetic
from embershard.train.text import TextFiles

DELIMITERS: Final = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}


def open_data(data: DataSpec, *, folder: Path, seed: int) -> tuple[Source, Source | None]:
    """What to train on, and what to evaluate on, if the job file says.

    Args:
        data: the `[data]` table.
        folder: where its files are found from.
        seed: makes synthetic data.

    Raises:
        InvalidInput: files are missing, can't be read, or lack columns or rows; files both train and evaluate.
    """
    train = open_training(data, folder=folder, seed=seed)
    evaluate = open_evaluation(data, folder=folder, seed=seed)
    if isinstance(train, Synthetic) or not isinstance(evaluate, (ParquetFiles, TextFiles)):
        return train, evaluate
    for feature, kind in evaluate.kinds.items():
        if kind != train.kinds[feature]:
            raise InvalidInput(
                f"{evaluate.title}: feature {feature!r} has {kind}, and in {train.title} {train.kinds[feature]}, which "
                "are other ids; its type in the job file makes them the same"
            )
    return train, evaluate


def open_training(data: DataSpec, *, folder: Path, seed: int) -> ParquetFiles | TextFiles | Synthetic:
    """What to train on; files that evaluate alone needn't have its columns.

    Raises:
        InvalidInput: as `open_data`.
    """
    if data.synthetic is not None:
        return Synthetic(data.synthetic, seed=seed)
    return open_files(find(data.train, folder), _columns(data, later=False))


def open_evaluation(data: DataSpec, *, folder: Path, seed: int) -> Source | None:
    """What to evaluate on, if the job file says; files that train alone needn't have its columns.

    Raises:
        InvalidInput: as `open_data`.
    """
    if data.synthetic is not None:
        return Synthetic(data.synthetic, seed=seed, evaluate=True)
    paths = find(data.train, folder)
    if data.evaluate_from is not None:
        return open_files(paths, _columns(data, later=True))
    if not data.evaluate:
        return None
    others = find(data.evaluate, folder)
    if both := {path.resolve() for path in paths} & {path.resolve() for path in others}:
        raise InvalidInput(f"{min(both)}: trains and evaluates, too; leave it out of one of them")
    return open_files(others, _columns(data, later=True))


def _columns(data: DataSpec, *, later: bool) -> Columns:
    """What to read of each file, on one side of the border in time, if there is one."""
    split = None
    if data.evaluate_from is not None:
        assert data.time is not None, "the schema sees to it"
        split = Split(column=data.time, border=data.evaluate_from, later=later)
    return Columns(features=data.features, label=data.label, dense=data.dense, split=split)


def find(patterns: Sequence[str], folder: Path) -> list[Path]:
    """The files that these name: each pattern's by their names, none twice.

    Raises:
        InvalidInput: a pattern names no file.
    """
    found: dict[Path, Path] = {}
    for pattern in patterns:
        path = folder / pattern
        matches = glob.glob(str(Path(glob.escape(str(folder))) / pattern), recursive=True)  # noqa: PTH207  # some are absolute
        files = [path] if path.is_file() else [match for match in map(Path, sorted(matches)) if match.is_file()]
        if not files:
            raise InvalidInput(f"{path}: there is no such file")
        found |= {file.resolve(): file for file in files}
    return list(found.values())


def open_files(paths: Sequence[Path], columns: Columns) -> ParquetFiles | TextFiles:
    """A source of files of one format.

    Raises:
        InvalidInput: they are of several formats or of an unknown one, can't be read, or lack columns or rows.
    """
    suffixes = {_suffix(path) for path in paths}
    if len(suffixes) > 1:
        raise InvalidInput(f"{paths[0]}: all files must be of one format, and these are {', '.join(sorted(suffixes))}")
    suffix = suffixes.pop()
    return ParquetFiles(paths, columns) if suffix == ".parquet" else TextFiles(paths, columns, DELIMITERS[suffix])


def _suffix(path: Path) -> str:
    suffix = next((suffix for suffix in (".parquet", *DELIMITERS) if path.name.lower().endswith(suffix)), None)
    if suffix is None:
        raise InvalidInput(f"{path}: the suffix tells no format; allowed are .parquet, {', '.join(DELIMITERS)}")
    return suffix
