"""Writes real data as training jobs read it: Parquet files, and lists of names, in the git-ignored folder `.data/jobs`.

`movielens_jobs` and `online_retail_jobs` say what is in them.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

import movielens_jobs
import online_retail_jobs
import pyarrow.parquet as pq
from movielens import DataError, data_folder
from tqdm import tqdm

from embershard.formats.files import writing

ROWS: Final = 2**14
"""Of a row group, so that there are several to shuffle."""
DATASETS: Final = {"movielens": movielens_jobs.files, "online_retail": online_retail_jobs.files}


def prepare(dataset: str, folder: Path) -> None:
    """Writes all files of a data set, in place of those that are there.

    Raises:
        DataError: the data can't be had.
    """
    with tqdm(DATASETS[dataset](), desc=dataset, unit=" files", disable=None) as files:
        for name, made in files:
            path = folder / (f"{name}.txt" if isinstance(made, list) else f"{name}.parquet")
            path.parent.mkdir(parents=True, exist_ok=True)
            with writing(path, overwrite=True) as file:
                if isinstance(made, list):
                    file.write("".join(f"{line}\n" for line in made).encode())
                else:
                    pq.write_table(made, file, row_group_size=ROWS, write_page_checksum=True)
            of = "names" if isinstance(made, list) else f"rows of {', '.join(made.schema.names)}"
            files.write(f"{path}: {len(made):,} {of}")


def main() -> int:
    """Runs the command; returns the exit status."""
    parser = argparse.ArgumentParser(description="Writes real data as training jobs read it.")
    parser.add_argument("dataset", choices=DATASETS)
    parser.add_argument("--into", type=Path, help="folder for the files (default .data/jobs/DATASET)")
    options = parser.parse_args()
    try:
        prepare(options.dataset, options.into or data_folder() / "jobs" / options.dataset)
    except DataError as error:
        print(f"prepare: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
