"""MovieLens 100K as arrays: who rated what, and what is known of people and films.

The data is GroupLens's (F. M. Harper and J. A. Konstan, "The MovieLens Datasets", 2015). Its terms: no commercial use
and no redistribution without permission. So nothing of it is part of this project: `load` reads the copy inside the
package `recbole`, which it has pip unpack once into the git-ignored folder `.data/` (EMBERSHARD_DATA names another).

Shapes: N ratings, B ratings or items in a batch, U users, I items, G genres. Ids of users and items begin at 1, as in
the data set, so that arrays by user or item have an unused place 0.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

PACKAGE: Final = "recbole==1.2.1"
FILES: Final = "recbole/dataset_example/ml-100k/ml-100k.{}"
RATINGS, USERS, ITEMS = 100_000, 943, 1_682

# The place of a name in these is its id in the tables of deploy/movielens.toml: append, never reorder.

AGE_GROUPS: Final = ("under 18", "18–24", "25–34", "35–44", "45–49", "50–55", "56 and over")
AGE_BORDERS: Final = (18, 25, 35, 45, 50, 56)
GENDERS: Final = ("F", "M")
OCCUPATIONS: Final = (
    "administrator", "artist", "doctor", "educator", "engineer", "entertainment", "executive", "healthcare",
    "homemaker", "lawyer", "librarian", "marketing", "none", "other", "programmer", "retired", "salesman", "scientist",
    "student", "technician", "writer",
)  # fmt: skip
GENRES: Final = (
    "unknown", "Action", "Adventure", "Animation", "Children's", "Comedy", "Crime", "Documentary", "Drama", "Fantasy",
    "Film-Noir", "Horror", "Musical", "Mystery", "Romance", "Sci-Fi", "Thriller", "War", "Western",
)  # fmt: skip


class DataError(Exception):
    """The data can't be had, or isn't what it should be."""


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class MovieLens:
    """The whole data set."""

    users: NDArray[np.int64]
    """int64 [N]: who rated,"""
    items: NDArray[np.int64]
    """int64 [N]: which film,"""
    stars: NDArray[np.float32]
    """float32 [N]: with how many stars, 1 to 5,"""
    times: NDArray[np.int64]
    """int64 [N]: and when, in seconds since 1970."""
    age_groups: NDArray[np.int64]
    """int64 [U + 1]: places in AGE_GROUPS."""
    occupations: NDArray[np.int64]
    """int64 [U + 1]: places in OCCUPATIONS."""
    genders: NDArray[np.int64]
    """int64 [U + 1]: places in GENDERS."""
    zip_codes: NDArray[np.str_]
    """str [U + 1]: as given, mostly of the United States, a few Canadian."""
    titles: NDArray[np.str_]
    """str [I + 1]: title and year; the data set has a few films twice."""
    genres: NDArray[np.bool_]
    """bool [I + 1, G]: whether a film has a genre; each has one at least."""

    def features(self, places_B: NDArray[np.int64]) -> dict[str, Any]:
        """What to look up for the ratings at these places of the data set."""
        users_B = self.users[places_B]
        return {
            "user_id": users_B,
            "age_group": self.age_groups[users_B],
            "occupation": self.occupations[users_B],
            "gender": self.genders[users_B],
            "zip_code": self.zip_codes[users_B],
            **self.item_features(self.items[places_B]),
            "global_bias": [0],
        }

    def item_features(self, items_B: NDArray[np.int64]) -> dict[str, Any]:
        """What to look up for films."""
        genres_BG = self.genres[items_B]
        return {"item_id": items_B, "genres": (np.nonzero(genres_BG)[1], genres_BG.sum(axis=1))}


def load() -> MovieLens:
    """Reads the data set; fetches it the first time.

    Raises:
        DataError: it can't be fetched, or the files aren't those of MovieLens 100K.
    """
    folder = _fetched()
    ratings = _table(folder, "inter", RATINGS)
    users = sorted(_table(folder, "user", USERS), key=lambda user: int(user["user_id"]))
    items = sorted(_table(folder, "item", ITEMS), key=lambda item: int(item["item_id"]))
    ages = [int(user["age"]) for user in users]
    genres_IG = np.zeros((ITEMS + 1, len(GENRES)), np.bool_)
    for number, item in enumerate(items, start=1):
        genres_IG[number, [GENRES.index(genre) for genre in item["class"].split()]] = True
    return MovieLens(
        users=np.array([int(rating["user_id"]) for rating in ratings]),
        items=np.array([int(rating["item_id"]) for rating in ratings]),
        stars=np.array([float(rating["rating"]) for rating in ratings], np.float32),
        times=np.array([int(rating["timestamp"]) for rating in ratings]),
        age_groups=np.array([0, *np.digitize(ages, AGE_BORDERS)]),
        genders=np.array([0, *(GENDERS.index(user["gender"]) for user in users)]),
        occupations=np.array([0, *(OCCUPATIONS.index(user["occupation"]) for user in users)]),
        zip_codes=np.array(["", *(user["zip_code"] for user in users)]),
        titles=np.array(["", *(f"{item['movie_title']} ({item['release_year']})" for item in items)]),
        genres=genres_IG,
    )


def data_folder() -> Path:
    """The git-ignored folder for data that is fetched, or made of it."""
    return Path(os.environ.get("EMBERSHARD_DATA") or Path(__file__).parents[1] / ".data")


def _fetched() -> Path:
    """The folder that holds the package, after fetching it if need be."""
    folder = data_folder() / "recbole"
    if all((folder / FILES.format(kind)).is_file() for kind in ("inter", "user", "item")):
        return folder
    print(f"fetching MovieLens 100K, once: the data files of the package {PACKAGE} (2 MB) into {folder}", flush=True)
    # Its code isn't used, so its dependencies aren't needed; its wheel is pinned, so the files are always the same.
    pip = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-compile", "--upgrade", "--target", str(folder)]
    status = subprocess.run([*pip, PACKAGE], stdout=sys.stderr, check=False).returncode
    if status:
        raise DataError(
            f"can't fetch {PACKAGE}: pip ended with status {status}, and its reason stands above. Once pip can reach a "
            f"package index, run this again; or unpack the package's wheel into {folder} yourself, so that "
            f"{FILES.format('inter')} is in there; or set EMBERSHARD_DATA to a folder that has recbole/ already"
        )
    return folder


def _table(folder: Path, kind: str, rows: int) -> list[dict[str, str]]:
    """The rows of one file, whose header gives every column a type: `user_id:token`."""
    path = folder / FILES.format(kind)
    with path.open(encoding="utf-8", newline="") as file:
        header, *lines = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
    if len(lines) != rows:
        raise DataError(f"{path} has {len(lines):,} rows, and MovieLens 100K has {rows:,}: delete {folder}, run again")
    names = [column.partition(":")[0] for column in header]
    return [dict(zip(names, line, strict=True)) for line in lines]
