"""Data that can't be trained on: what is told of it, and when."""

from __future__ import annotations

import tomllib
from datetime import date, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pydantic.dataclasses import dataclass
from support.examples import write

from embershard.config.checking import checked
from embershard.config.specs import CLOSED
from embershard.errors import ConfigError, InvalidInput
from embershard.train import text
from embershard.train.batches import Stream
from embershard.train.schema import PLACES, DataSpec
from embershard.train.source import Source
from embershard.train.sources import open_data


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class Job:
    """A job file that has nothing but data."""

    data: DataSpec


def job(lines: str) -> DataSpec:
    return checked(Job, tomllib.loads(lines), source="job.toml", places=PLACES).data


USER = 'data.train = ["a"]\ndata.features.user_id = {}\n'
SYNTHETIC = "data.synthetic = { examples = 3, ids = { a = 3 } }\n"

BAD_SCHEMAS = [
    ("[data]", "data: train names no files, and there is no synthetic: give one of them"),
    ('data.train = ["a"]', "data: features is empty: name one column of ids at least"),
    ('data.train = "a"', "data train = 'a': input should be a valid list"),
    ("data.train = [3]", "data train [0] = 3: input should be a valid string"),
    (USER + "data.evaluat = []", "data evaluat: unknown key; allowed here: train, evaluate, evaluate_from"),
    (USER + "data.features.x.colum = 'a'", "data features x colum: unknown key; allowed here: column, separator"),
    (USER + "data.features.x = 3", "data features x = 3: must be a table of keys"),
    (USER + "data.features.x.max_length = 0", "data features x max_length = 0: input should be greater"),
    (USER + "data.features.x.separator = ''", "data features x separator = '': string should have at least 1"),
    (USER + "data.features.x.type = 'float'", "type = 'float': input should be 'int64', 'uint64' or 'string'"),
    (USER + "data.features.'a b' = {}", "data features a b [key] = 'a b': string should match"),
    (USER + "data.shuffle_rows = -1", "data shuffle_rows = -1: input should be greater"),
    (USER + "data.dense = ['a', 'a']", "data: dense names the column 'a' more than once"),
    (USER + "data.label = 'user_id'", "data: the column 'user_id' is the label and an input, too"),
    (USER + "data.evaluate_from = 3", "data: evaluate_from needs time"),
    (
        USER + "data.evaluate_from = '2011-10-01'",
        "evaluate_from = '2011-10-01': must be a number, a date or a date-time",
    ),
    (USER + "data.evaluate_from = true", "evaluate_from = True: must be a number"),
    (USER + "data.evaluate_from = nan", "evaluate_from = nan: must be a number"),
    (USER + "data.evaluate_from = 10:00:00", "must be a number, a date or a date-time"),
    (
        USER + "data.evaluate_from = 3\ndata.time = 'b'\ndata.evaluate = ['c']",
        "data: evaluate and evaluate_from are both",
    ),
    (USER + SYNTHETIC, "data: train is for files, and synthetic says already what there is"),
    (SYNTHETIC + "data.label = 'b'", "data: label is for files"),
    ("data.synthetic.examples = 3", "data synthetic ids: this key is required"),
    (SYNTHETIC.replace("a = 3", "a = 0"), "data synthetic ids a = 0: input should be greater"),
    (SYNTHETIC.replace("ids", "lengths = { b = 2 }, ids"), "data synthetic: lengths names the feature 'b', which ids"),
    (SYNTHETIC.replace("ids", "exponent = inf, ids"), "data synthetic exponent = inf"),
    (SYNTHETIC.replace("ids", "id = {}, ids"), "data synthetic id: unknown key; allowed here: examples"),
]


@pytest.mark.parametrize(("lines", "message"), BAD_SCHEMAS)
def test_a_wrong_schema_is_explained(lines: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        job(lines)
    assert str(caught.value).startswith("job.toml: ")
    assert message in str(caught.value)


def test_a_schema_says_what_every_example_has() -> None:
    files = job(USER + "data.dense = ['x', 'y']\ndata.label = 'z'")
    assert (files.feature_names, files.labelled, files.dense_width) == (["user_id"], True, 2)
    made = job("data.synthetic = { examples = 3, ids = { a = 3, b = 4 }, dense = 13 }")
    assert (made.feature_names, made.labelled, made.dense_width) == (["a", "b"], True, 13)


def source(folder: Path, table: dict[str, Any], suffix: str, lines: str) -> Source:
    write(folder / f"a{suffix}", pa.table(table), group=2)
    spec = job(f'data.train = ["*{suffix}"]\n' + (lines or "data.features.u = {}"))
    return open_data(spec, folder=folder, seed=0)[0]


TOLD_AT_START: list[tuple[str, dict[str, Any], str, str]] = [
    (".parquet", {"v": [1]}, "", "a.parquet: must have one column 'u'; it has 'v'"),
    (".csv", {"v": [1]}, "", "a.csv: must have one column 'u'; it has 'v'"),
    (".parquet", {"u": [1.5]}, "", "a.parquet: column 'u' is double; ids are integers or strings"),
    (".parquet", {"u": [[1.5]]}, "", "a.parquet: column 'u' is list<element: double>; ids are integers or strings"),
    (".csv", {"u": [1.5]}, "", "a.csv: column 'u' holds numbers that aren't all int64, such as 1.5; ids are"),
    (".parquet", {"u": [1]}, 'data.features.u.separator = " "', "column 'u' is int64; separator cuts text"),
    (".parquet", {"u": [1]}, "data.features.u.max_length = 3", "column 'u' has one id an example; max_length is for"),
    (".csv", {"u": [1]}, "data.features.u.max_length = 3", "column 'u' has one id an example; max_length is for"),
    (".parquet", {"u": [1], "y": ["a"]}, "data.features.u = {}\ndata.label = 'y'", "column 'y' is string; it must be"),
    (".csv", {"u": [1], "y": ["a"]}, "data.features.u = {}\ndata.dense = ['y']", "column 'y' is string; it must be"),
    (
        ".parquet",
        {"u": [1], "y": ["a"]},
        "data.features.u = {}\ndata.time = 'y'\ndata.evaluate_from = 3",
        "a.parquet: column 'y' is string; it must be numbers, as evaluate_from is",
    ),
    (
        ".csv",
        {"u": [1], "y": [3]},
        "data.features.u = {}\ndata.time = 'y'\ndata.evaluate_from = 2011-10-01",
        "a.csv: column 'y' is int64; it must be dates or timestamps, as evaluate_from is",
    ),
    (
        ".parquet",
        {"u": [1], "y": [3]},
        "data.features.u = {}\ndata.time = 'y'\ndata.evaluate_from = 3",
        "a.parquet, rows of y < 3: there is no row",
    ),
    (".parquet", {"u": pa.array([], pa.int64())}, "", "a.parquet: there is no row"),
    (".csv", {"u": pa.array([], pa.int64())}, "", "a.csv: there is no row"),
]


@pytest.mark.parametrize(("suffix", "table", "lines", "message"), TOLD_AT_START)
def test_what_the_beginning_of_a_file_tells_is_told_at_once(
    suffix: str, table: dict[str, Any], lines: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as caught:
        source(tmp_path, table, suffix, lines)
    assert str(caught.value).startswith(str(tmp_path))
    assert message in str(caught.value)


LABEL = "data.features.u = {}\ndata.label = 'y'"
FINE = [1, 2, 3]
TOLD_LATER: list[tuple[str, dict[str, Any], str, str]] = [
    (".parquet", {"u": [1, 2, None]}, "", "column 'u' row 2: the id is null"),
    (".csv", {"u": ["1", "2", None], "v": FINE}, "", "column 'u' row 2: the id is null"),
    (".parquet", {"u": [[1], [], [2, None]]}, "", "column 'u' row 2: the id is null; only a bag may be"),
    (".parquet", {"u": ["1", "2", "x"]}, 'data.features.u.type = "int64"', "column 'u' row 2: 'x' is no int64"),
    (
        ".csv",
        {"u": ["1", "2", "99999999999999999999"]},
        'data.features.u.type = "int64"',
        "row 2: '99999999999999999999' is no int64",
    ),
    (".parquet", {"u": [1, 2, -3]}, 'data.features.u.type = "uint64"', "column 'u' row 2: -3 is no uint64"),
    (
        ".csv",
        {"u": ["1 2", "3", "4 y 5 z"]},
        'data.features.u = { type = "int64", separator = " " }',
        "column 'u' row 2: 'y' is no int64",
    ),
    (
        ".parquet",
        {"u": pa.array([b"a", b"b", b"\xff"]).view(pa.string())},
        "",
        "column 'u' row 2: is no UTF-8 text",
    ),
    (".parquet", {"u": FINE, "y": [1, 2, None]}, LABEL, "column 'y' row 2: the number is null"),
    (".csv", {"u": FINE, "y": [1, 2, None]}, LABEL, "column 'y' row 2: the number is null"),
    (".parquet", {"u": FINE, "y": [1, 2, float("nan")]}, LABEL, "column 'y' row 2: is nan; numbers must be finite"),
    (".csv", {"u": FINE, "y": [1, 2, 1e300]}, LABEL, "column 'y' row 2: is 1e+300; numbers must be finite, also as"),
    (
        ".csv",
        {"u": FINE, "y": [1.0, 2.0, None]},
        "data.features.u = {}\ndata.time = 'y'\ndata.evaluate_from = 3",
        "column 'y' row 2: the time is null or NaN",
    ),
]


@pytest.mark.parametrize(("suffix", "table", "lines", "message"), TOLD_LATER)
def test_a_bad_value_is_told_with_file_column_and_row(
    suffix: str, table: dict[str, Any], lines: str, message: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidInput) as caught:
        list(Stream(source(tmp_path, table, suffix, lines), batch=1).epoch(0))
    assert str(caught.value).startswith(f"{tmp_path / 'a'}{suffix}: ")
    assert message in str(caught.value)


LATE: list[tuple[str, str]] = [
    ("x,1", "column 'u' row 1001: 'x' is no int64"),
    ("1,x", "column 'y': line 1003: CSV conversion error to double: invalid value 'x'"),
    ("1", "CSV parse error: line 1003: Expected 2 columns, got 1: 1"),
    ("1," + "9" * 500, "straddling object straddles two block boundaries of 256 bytes"),
]


@pytest.mark.parametrize(("line", "message"), LATE)
def test_what_the_first_block_of_text_does_not_show_is_told_where_it_stands(
    line: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(text, "BLOCK_BYTES", 256)
    (tmp_path / "a.csv").write_text("u,y\n" + "1,1\n" * 1001 + line + "\n")
    opened = open_data(job('data.train = ["a.csv"]\n' + LABEL), folder=tmp_path, seed=0)[0]
    with pytest.raises(InvalidInput) as caught:
        list(Stream(opened, batch=500).epoch(0))
    assert message in str(caught.value)


def test_files_must_agree_and_be_there(tmp_path: Path) -> None:
    write(tmp_path / "a.parquet", pa.table({"user_id": [1]}))
    write(tmp_path / "b.parquet", pa.table({"user_id": ["x"]}))
    write(tmp_path / "c.csv", pa.table({"user_id": [1]}))
    (tmp_path / "d.json").write_text("[]")
    (tmp_path / "e.parquet").write_text("no parquet")
    (tmp_path / "f.parquet").write_bytes((tmp_path / "a.parquet").read_bytes()[:-20])
    (tmp_path / "g.csv").write_bytes(b"")
    (tmp_path / "h.csv.gz").write_bytes(b"user_id\n1\n")
    (tmp_path / "i.csv").write_text("user_id,user_id\n1,1\n")
    for names, message in (
        (
            "'[ab].parquet'",
            "b.parquet: column 'user_id' holds strings, and that of .*a.parquet integers; all files must",
        ),
        ("'a.parquet', 'c.csv'", "a.parquet: all files must be of one format, and these are .csv, .parquet"),
        ("'d.json'", "d.json: the suffix tells no format; allowed are .parquet, .csv, .csv.gz, .tsv, .tsv.gz"),
        ("'none-*.csv'", r"none-\*.csv: there is no such file"),
        ("'e.parquet'", "e.parquet: is damaged, or of another format"),
        ("'f.parquet'", "f.parquet: is damaged, or of another format"),
        ("'g.csv'", "g.csv: Empty CSV file"),
        ("'h.csv.gz'", "h.csv.gz: can't be read: zlib inflate failed"),
        ("'i.csv'", "i.csv: must have one column 'user_id'; it has 'user_id', 'user_id'"),
    ):
        with pytest.raises(InvalidInput, match=message):
            open_data(job(f"data.train = [{names}]\ndata.features.user_id = {{}}"), folder=tmp_path, seed=0)
    both = job(USER.replace('"a"', '"a.parquet"') + 'data.evaluate = ["x/../*.parquet"]')
    (tmp_path / "x").mkdir()
    with pytest.raises(InvalidInput, match=r"a\.parquet: trains and evaluates, too"):
        open_data(both, folder=tmp_path, seed=0)


def test_what_trains_and_what_evaluates_must_hold_the_same_kind_of_ids(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", pa.table({"user_id": [1, 2]}))
    write(tmp_path / "b.csv", pa.table({"user_id": ["1", "x"]}))
    lines = 'data.train = ["a.csv"]\ndata.evaluate = ["b.csv"]\n'
    with pytest.raises(InvalidInput, match=r"b\.csv: feature 'user_id' has strings, and in .*a\.csv integers, which"):
        open_data(job(lines + "data.features.user_id = {}"), folder=tmp_path, seed=0)
    train, _ = open_data(job(lines + 'data.features.user_id.type = "string"'), folder=tmp_path, seed=0)
    (batch,) = Stream(train, batch=9).epoch(0)
    assert list(batch.features["user_id"].ids) == ["1", "2"]


def test_text_files_must_write_times_and_labels_alike(tmp_path: Path) -> None:
    write(tmp_path / "1.csv", pa.table({"u": [1], "at": [datetime(2011, 10, 1)], "y": [1]}))
    write(tmp_path / "2.csv", pa.table({"u": [1], "at": [date(2011, 10, 1)], "y": [0.5]}))
    write(tmp_path / "3.csv", pa.table({"u": [1], "at": [date(2011, 10, 1)], "y": [True]}))
    lines = "data.features.u = {}\n"
    mixed = job(f'data.train = ["[12].csv"]\n{lines}data.label = "y"')
    (batch,) = Stream(open_data(mixed, folder=tmp_path, seed=0)[0], batch=9).epoch(0)
    assert batch.labels_B is not None
    assert batch.labels_B.tolist() == [1, 0.5]
    for files, key, message in (
        (
            "[12].csv",
            "time = 'at'\ndata.evaluate_from = 2011-10-02",
            r"2\.csv: column 'at' is date32\[day\], and that of",
        ),
        ("*.csv", "label = 'y'", r"3\.csv: column 'y' is bool, and that of .*1\.csv double; write them alike"),
    ):
        with pytest.raises(InvalidInput, match=message):
            open_data(job(f'data.train = ["{files}"]\n{lines}data.{key}'), folder=tmp_path, seed=0)


def test_a_file_that_vanishes_or_rots_while_it_is_read_is_named(tmp_path: Path) -> None:
    table = {"u": list(range(1000))}
    opened = source(tmp_path, table, ".parquet", "")
    path = tmp_path / "a.parquet"
    data = bytearray(path.read_bytes())
    data[100] ^= 1
    path.write_bytes(data)
    with pytest.raises(InvalidInput, match=f"{path}: can't be read: Corrupt snappy"):
        list(Stream(opened, batch=1000).epoch(0))
    path.unlink()
    with pytest.raises(InvalidInput, match=f"{path}: can't be read: .*No such file"):
        list(Stream(opened, batch=1000).epoch(0))
