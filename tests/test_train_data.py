"""Files to train on: what each format holds, which rows evaluate, and what is told of data that can't be."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from support.examples import write

from embershard.errors import InvalidInput
from embershard.train import text
from embershard.train.batches import Stream
from embershard.train.schema import DataSpec, FeatureSpec
from embershard.train.source import Source
from embershard.train.sources import open_data, open_evaluation

ROWS = 500
FORMATS = [".parquet", ".csv", ".tsv", ".csv.gz", ".tsv.gz"]
USER = {"user_id": FeatureSpec()}


def ratings() -> dict[str, list[Any]]:
    """Columns as text holds them."""
    draw = np.random.default_rng(5)
    return {
        "user": draw.integers(-(2**63), 2**63 - 1, ROWS).tolist(),
        "item": [f"ö {number}" for number in draw.integers(0, 50, ROWS)],
        "zip": [f"{number:05}" for number in draw.integers(0, 99_999, ROWS)],
        "genres": [" ".join(f"g{n}" for n in range(number)) for number in draw.integers(0, 4, ROWS)],
        "history": [",".join(map(str, range(number))) for number in draw.integers(0, 9, ROWS)],
        "price": draw.random(ROWS).tolist(),
        "age": draw.integers(0, 99, ROWS).tolist(),
        "clicked": (draw.random(ROWS) < 0.5).tolist(),
        "unused": [None] * ROWS,
    }


SPEC = {
    "label": "clicked",
    "dense": ["age", "price"],
    "features": {
        "user_id": FeatureSpec(column="user"),
        "item": FeatureSpec(),
        "zip": FeatureSpec(type="string"),
        "genres": FeatureSpec(separator=" "),
        "history": FeatureSpec(separator=",", max_length=5),
    },
}


def opened(folder: Path, **keys: Any) -> tuple[Source, Source | None]:
    return open_data(DataSpec(**keys), folder=folder, seed=0)


def users(source: Source | None) -> list[int]:
    assert source is not None
    return [number for batch in Stream(source, batch=100).epoch(0) for number in batch.features["user_id"].ids]  # type: ignore[misc]  # they are integers


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_holds_the_same(suffix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", 4096)  # so that there are many blocks
    columns = ratings()
    table = pa.table(columns)
    if suffix == ".parquet":
        genres = [row.split() for row in columns["genres"]]
        history = [integers(row) or None for row in columns["history"]]
        table = table.set_column(3, "genres", pa.array(genres)).set_column(4, "history", pa.array(history))
        table = table.set_column(1, "item", table["item"].dictionary_encode())
    half = ROWS // 2
    for number in range(2):
        write(tmp_path / f"part-{number}{suffix}", table.slice(number * half, half), group=60)
    source, evaluate = opened(tmp_path, train=[f"part-*{suffix}"], **SPEC)
    stream = Stream(source, batch=ROWS)
    (batch,) = stream.epoch(0)
    assert evaluate is None
    found = {name: list(feature.ids) for name, feature in batch.features.items()}
    lengths = {
        name: feature.lengths.tolist() for name, feature in batch.features.items() if feature.lengths is not None
    }
    history = [integers(row)[-5:] for row in columns["history"]]
    assert found == {
        "user_id": columns["user"],
        "item": columns["item"],
        "zip": columns["zip"],
        "genres": " ".join(columns["genres"]).split(),
        "history": [number for bag in history for number in bag],
    }
    assert lengths == {"genres": [len(row.split()) for row in columns["genres"]], "history": list(map(len, history))}
    assert stream.cut == {"history": sum(row.count(",") >= 5 for row in columns["history"])}
    assert batch.labels_B is not None
    assert batch.labels_B.tolist() == columns["clicked"]
    assert batch.dense_BF is not None
    assert (batch.dense_BF == np.stack([columns["age"], columns["price"]], 1).astype(np.float32)).all()


def integers(row: str) -> list[int]:
    return [int(number) for number in row.split(",") if number]


def test_unsigned_ids_are_taken_by_twos_complement(tmp_path: Path) -> None:
    large = [2**64 - 1, 2**63, 7]
    table = pa.table(
        {"user_id": pa.array(large, pa.uint64()), "seen": pa.array([large, [], None], pa.list_(pa.uint64()))}
    )
    write(tmp_path / "a.parquet", table)
    write(
        tmp_path / "a.csv",
        pa.table(
            {"user_id": pa.array(large, pa.uint64()), "seen": ["18446744073709551615|9223372036854775808|7", "", None]}
        ),
    )
    parquet = {"user_id": FeatureSpec(), "seen": FeatureSpec()}
    csv = {"user_id": FeatureSpec(type="uint64"), "seen": FeatureSpec(type="uint64", separator="|")}
    for name, features in (("a.parquet", parquet), ("a.csv", csv)):
        (batch,) = Stream(opened(tmp_path, train=[name], features=features)[0], batch=9).epoch(0)
        assert list(batch.features["user_id"].ids) == [-1, -(2**63), 7]
        assert list(batch.features["seen"].ids) == [-1, -(2**63), 7]


def test_ids_of_text_are_integers_only_where_all_files_say_so(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", pa.table({"user_id": [1, 2], "bag": ["1 2", ""]}))
    write(tmp_path / "2.csv", pa.table({"user_id": ["3", "x"], "bag": ["", "  7 "]}))
    features = {"user_id": FeatureSpec(), "bag": FeatureSpec(separator=" ")}
    (batch,) = Stream(opened(tmp_path, train=["*.csv"], features=features)[0], batch=9).epoch(0)
    assert list(batch.features["user_id"].ids) == ["1", "2", "3", "x"]
    assert list(batch.features["bag"].ids) == [1, 2, 7]


TIMES: list[tuple[Any, list[Any]]] = [
    (3, [1, 2, 3, 4]),
    (2.5, [1, 2, 3, 4]),
    (3, [1.0, 2.5, 3.0, 4.0]),
    (date(2011, 10, 3), [date(2011, 10, day) for day in (1, 2, 3, 4)]),
    (date(2011, 10, 3), [datetime(2011, 10, day, hour) for day, hour in ((1, 0), (2, 23), (3, 0), (3, 1))]),
    (
        datetime(2011, 10, 3),
        [datetime(2011, 10, day, hour, tzinfo=UTC) for day, hour in ((1, 0), (2, 23), (3, 0), (3, 1))],
    ),
    (datetime(2011, 10, 3, tzinfo=UTC), [datetime(2011, 10, day) for day in (1, 2, 3, 4)]),
]


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize(("border", "times"), TIMES)
def test_time_splits_rows_of_one_file(border: Any, times: list[Any], suffix: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a{suffix}", pa.table({"user_id": [1, 2, 3, 4], "at": times}), group=3)
    train, evaluate = opened(tmp_path, train=[path.name], time="at", evaluate_from=border, features=USER)
    assert (users(train), users(evaluate)) == ([1, 2], [3, 4])
    assert evaluate is not None
    assert {train.examples, evaluate.examples} <= {2, None}


def test_whoever_begins_late_in_split_data_skips_only_what_is_on_this_side(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"user_id": list(range(100)), "at": [i % 10 for i in range(100)]}), group=7)
    train, _ = opened(tmp_path, train=["a.parquet"], time="at", evaluate_from=5, features=USER)
    options = {"batch": 4, "seed": 3, "shuffle_rows": 20}
    whole = [list(batch.features["user_id"].ids) for batch in Stream(train, **options).epoch(0)]
    late = [list(batch.features["user_id"].ids) for batch in Stream(train, **options).epoch(0, 6)]
    assert (late, len(whole)) == (whole[6:], 13)


def test_files_are_found_by_patterns_from_the_folder_of_the_job(tmp_path: Path) -> None:
    folder = tmp_path / "jobs [1]"
    (folder / "deep").mkdir(parents=True)
    for number, name in enumerate(["b.csv", "a.csv", "deep/c.csv", "[x].csv"]):
        write(folder / name, pa.table({"user_id": [number]}))
    assert users(opened(folder, train=["[ab].csv", "b.csv", "**/c.csv"], features=USER)[0]) == [1, 0, 2]
    assert users(opened(folder, train=["[x].csv"], features=USER)[0]) == [3]
    assert users(opened(folder, train=["a.csv"], evaluate=["b.csv"], features=USER)[1]) == [0]
    assert users(opened(tmp_path, train=[str(folder / "a.csv")], features=USER)[0]) == [1]


def test_what_evaluates_may_have_columns_that_what_trains_lacks(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"user_id": [1]}))
    write(tmp_path / "b.parquet", pa.table({"user_id": [2], "targets": [[3, 4]]}))
    data = DataSpec(train=["a.parquet"], evaluate=["b.parquet"], features={**USER, "targets": FeatureSpec()})
    assert users(open_evaluation(data, folder=tmp_path, seed=0)) == [2]
    with pytest.raises(InvalidInput, match=r"a\.parquet: must have one column 'targets'; it has 'user_id'"):
        open_data(data, folder=tmp_path, seed=0)
