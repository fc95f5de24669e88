"""MovieLens 100K as training jobs read it.

| file | rows | columns |
|---|---|---|
| ctr/train, ctr/evaluate | ratings in the order of time; the last tenth evaluates | label: liked, 4 stars or more |
| ctr/tune, ctr/validate | ctr/train, cut once more: to choose settings by | |
| retrieval/train | who liked which film, but for everybody's last fifth | history: up to 50 that they liked before |
| retrieval/evaluate | a person a row | history; targets: the last fifth; seen: all films that they liked before |
| retrieval/tune, retrieval/validate | the same of retrieval/train alone: to choose settings by | |
| next_item/train | what people rated, one after the other | history: up to 51 films; the next begins with the last |
| next_item/validate, next_item/evaluate | a person a row: the last film but one; the last | history, seen, targets |
| items | all films | title |

People have user_id, age_group, occupation, gender and zip_code, films item_id and genres, and ratings the time `at`;
next_item has user_id, item_id and at alone. Ratings of one second keep the order of the data set.

Shapes: N ratings, P people, I films.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import movielens
import numpy as np
import pyarrow as pa
from histories import firsts, lasts, runs

if TYPE_CHECKING:
    from numpy.typing import NDArray

LIKED: Final = 4
"""Stars of a film that was liked, at least."""
CTR_SHARE: Final = 0.1
RETRIEVAL_SHARE: Final = 0.2
"""What evaluates: the last share of all ratings by time, and of everybody's films that were liked."""
LONGEST: Final = 50
"""Films in a history."""
ALL: Final = movielens.ITEMS


def files() -> Iterator[tuple[str, pa.Table]]:
    """Every file's name and what is in it.

    Raises:
        DataError: the data can't be had.
    """
    data = movielens.load()
    yield from _ctr(data)
    yield from _retrieval(data)
    yield from _next_item(data)
    items = _columns(data, item=np.arange(1, len(data.titles)))
    yield "items", pa.table(items | {"title": pa.array(data.titles[1:].tolist())})


def _ctr(data: movielens.MovieLens) -> Iterator[tuple[str, pa.Table]]:
    order = np.argsort(data.times, kind="stable")
    rows = _columns(data, user=data.users[order], item=data.items[order], at=data.times[order])
    table = pa.table(rows | {"label": pa.array((data.stars[order] >= LIKED).astype(np.float32))})
    times_N, end = data.times[order], len(order)
    for number, (train, evaluate) in enumerate((("train", "evaluate"), ("tune", "validate")), start=1):
        # Whole seconds are on one side.
        border = int(np.searchsorted(times_N, times_N[int(len(times_N) * (1 - number * CTR_SHARE))]))
        yield f"ctr/{train}", table.slice(0, border)
        yield f"ctr/{evaluate}", table.slice(border, end - border)
        end = border


def _retrieval(data: movielens.MovieLens) -> Iterator[tuple[str, pa.Table]]:
    users_N, items_N, times_N = _by_person(data, data.stars >= LIKED)
    begins_N, ends_N = firsts(users_N), lasts(users_N) + 1
    for train_name, evaluate_name in (("train", "evaluate"), ("tune", "validate")):
        borders_N = ends_N - ((ends_N - begins_N) * RETRIEVAL_SHARE).astype(np.int64)
        train = np.flatnonzero(np.arange(len(users_N)) < borders_N)
        train = train[np.argsort(times_N[train], kind="stable")]
        columns = _columns(data, user=users_N[train], item=items_N[train], at=times_N[train])
        yield f"retrieval/{train_name}", pa.table(columns | {"history": runs(begins_N[train], train, items_N, LONGEST)})
        people = np.flatnonzero((np.arange(len(users_N)) == begins_N) & (borders_N < ends_N))
        evaluate = _columns(data, user=users_N[people]) | {
            "history": runs(begins_N[people], borders_N[people], items_N, LONGEST),
            "targets": runs(borders_N[people], ends_N[people], items_N, ALL),
            "seen": runs(begins_N[people], borders_N[people], items_N, ALL),
        }
        yield f"retrieval/{evaluate_name}", pa.table(evaluate)
        ends_N = borders_N


def _next_item(data: movielens.MovieLens) -> Iterator[tuple[str, pa.Table]]:
    users_N, items_N, times_N = _by_person(data, np.ones(len(data.users), np.bool_))
    begins_N, left_N = firsts(users_N), lasts(users_N) - np.arange(len(users_N))
    begun_N = np.arange(len(users_N)) > begins_N
    # Whoever learns of all items of a history, each from those before it, so has each film to foresee once.
    starts = np.flatnonzero(((np.arange(len(users_N)) - begins_N) % LONGEST == 0) & (left_N >= 3))
    ends = np.minimum(starts + LONGEST + 1, lasts(users_N)[starts] - 1)
    histories = runs(starts, ends, items_N, LONGEST + 1)
    yield "next_item/train", pa.table({"user_id": pa.array(users_N[starts]), "history": histories})
    for name, places in (
        ("validate", np.flatnonzero(begun_N & (left_N == 1))),
        ("evaluate", np.flatnonzero(begun_N & (left_N == 0))),
    ):
        columns = {
            "user_id": pa.array(users_N[places]),
            "history": runs(begins_N[places], places, items_N, LONGEST),
            "item_id": pa.array(items_N[places]),
            "at": pa.array(times_N[places], pa.timestamp("s", "UTC")),
        }
        columns["targets"] = runs(places, places + 1, items_N, 1)
        columns["seen"] = runs(begins_N[places], places, items_N, ALL)
        yield f"next_item/{name}", pa.table(columns)


def _by_person(
    data: movielens.MovieLens, kept_N: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Users, items and times of the ratings that are kept, by person and time."""
    order = np.lexsort((data.times, data.users))
    order = order[kept_N[order]]
    return data.users[order], data.items[order], data.times[order]


def _columns(data: movielens.MovieLens, **of: NDArray[np.int64]) -> dict[str, Any]:
    """The columns of these users, items and times."""
    columns: dict[str, Any] = {}
    if (user := of.get("user")) is not None:
        columns |= {
            "user_id": pa.array(user),
            "age_group": pa.array(data.age_groups[user]),
            "occupation": pa.array(data.occupations[user]),
            "gender": pa.array(data.genders[user]),
            "zip_code": pa.array(data.zip_codes[user].tolist()),
        }
    if (item := of.get("item")) is not None:
        genres, counts = data.item_features(item)["genres"]
        offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int32())
        columns |= {"item_id": pa.array(item), "genres": pa.ListArray.from_arrays(offsets, pa.array(genres))}
    if (at := of.get("at")) is not None:
        columns["at"] = pa.array(at, pa.timestamp("s", "UTC"))
    return columns
