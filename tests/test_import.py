"""Files of vectors into a running service, and out of its snapshots again."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from support.command import refused, shown, told
from support.service import Service

from embershard import Client, formats
from embershard.formats import Vectors

GLOVE = Path(__file__).parents[2] / "shared" / "data" / "glove_top10k"
CONFIG = """
collection = { name = "files" }
limits = { message_bytes = 65_536 }
tables = [
    { name = "user", rows = 2_000, dim = 4, features = ["user_id"], ids = { padding = 0 } },
    { name = "half", rows = 20, dim = 4, dtype = "float16" },
    { name = "zip", rows = 16, dim = 4, ids = { kind = "hashed" } },
    { name = "query", rows = 80, dim = 4, ids = { kind = "vocabulary", fallback_rows = 8, padding = "<pad>" } },
    { name = "full", rows = 12, dim = 4, ids = { kind = "vocabulary", fallback_rows = 8 } },
    { name = "large", rows = 20, dim = 20_000 },
    { name = "low", rows = 20, dim = 4, factor = { kind = "low_rank", rank = 2 } },
    { name = "still", rows = 20, dim = 4, frozen = true },
    { name = "word", rows = 10_000, dim = 50, ids = { names = "words.txt" } },
    { name = "term", rows = 10_100, dim = 50, ids = { kind = "vocabulary", fallback_rows = 100 } },
]
"""
WORDS = ["jazz", "folk", "rock"]
NUMBERS = np.arange(12, dtype=np.float32).reshape(3, 4) + 1


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    folder = tmp_path_factory.mktemp("state")
    vocabulary = GLOVE / "glove_top10k_vocab.txt"
    (folder / "words.txt").write_text(vocabulary.read_text() if vocabulary.exists() else "jazz\nfolk\n")
    with Service(CONFIG, folder) as service:
        yield service


@pytest.fixture
def client(server: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of the server that commands find in their environment."""
    monkeypatch.setenv("EMBERSHARD_TARGET", server.target)
    with Client(server.target) as client:
        yield client


def file_of(path: Path, ids: object, vectors: object = NUMBERS) -> Path:
    formats.write(path, Vectors.of(ids, np.asarray(vectors, np.float32)))  # type: ignore[arg-type]  # lists, too
    return path


@pytest.mark.parametrize("name", ["v.npz", "v.parquet", "v.txt", "v.tsv", "v.safetensors"])
def test_strings_of_every_format_are_given_rows_of_a_vocabulary(client: Client, tmp_path: Path, name: str) -> None:
    words = [f"{word} of {name}".replace(" ", "_") for word in WORDS]
    done = told("import", file_of(tmp_path / name, words), "--feature", "query")
    rows = client.lookup({"query": words}, min_version=done["version"], with_provenance=True)
    np.testing.assert_array_equal(rows["query"], NUMBERS)
    assert rows.provenance["query"].tolist() == [1, 1, 1]
    assert done == {"version": rows.version, "rows": 3, "left_out": 0}


@pytest.mark.parametrize(
    ("name", "flags"),
    [
        ("i.npz", ()),
        ("i.parquet", ()),
        ("i.safetensors", ()),
        ("i.txt", ["--integer-ids"]),
        ("i.tsv", ["--integer-ids"]),
    ],
)
def test_integers_of_every_format_are_rows(client: Client, tmp_path: Path, name: str, flags: list[str]) -> None:
    done = told("import", file_of(tmp_path / name, [7, 1_999, 1]), "--feature", "user_id", *flags)
    np.testing.assert_array_equal(
        client.lookup({"user_id": [7, 1_999, 1]}, min_version=done["version"])["user_id"], NUMBERS
    )


@pytest.mark.parametrize("name", ["n.npy", "n.pt"])
def test_a_file_without_ids_is_in_the_order_of_rows(client: Client, tmp_path: Path, name: str) -> None:
    lines = shown("import", file_of(tmp_path / name, range(3)), "--feature", "half")
    rows = client.lookup({"half": range(3)})
    np.testing.assert_array_equal(rows["half"], NUMBERS)
    assert lines == [f"version {rows.version}", "rows 3"]


def test_a_format_whose_name_does_not_tell_it_is_named(client: Client, tmp_path: Path) -> None:
    path = file_of(tmp_path / "v.txt", WORDS).rename(tmp_path / "v.out")
    assert "tells no format" in refused("import", path, "--feature", "query")
    assert told("import", path, "--feature", "query", "--format", "word2vec")["rows"] == 3


def test_a_large_file_goes_in_messages_that_the_limits_allow(client: Client, tmp_path: Path) -> None:
    vectors = np.random.default_rng(3).normal(size=(2_000, 4)).astype(np.float32)
    vectors[0] = 0  # the padding id, as torch.nn.Embedding(padding_idx=0) has it
    before = client.describe().version
    done = told("import", file_of(tmp_path / "users.npy", range(2_000), vectors), "--feature", "user_id")
    assert (done["rows"], done["left_out"]) == (1_999, 1)
    assert done["version"] - before == -(-1_999 * (16 + 8) // (65_536 - 256))
    rows = client.lookup({"user_id": range(2_000)}, min_version=done["version"])
    np.testing.assert_array_equal(rows["user_id"], vectors)


REFUSED = {
    "another dim": ("user_id", [1, 2, 3], np.ones((3, 5)), "has vectors of dim 5, and table 'user' has dim 4"),
    "out of range": ("user_id", [1, 2_000, 3], NUMBERS, "row 1: id 2000 is out of range; table 'user' has rows 0 to"),
    "negative": ("user_id", [1, 2, -3], NUMBERS, "row 2: id -3 is out of range"),
    "unknown feature": ("user", [1, 2, 3], NUMBERS, "unknown feature 'user'; the collection has user_id, half"),
    "strings": ("user_id", WORDS, NUMBERS, "rows 0 to 2: 127.0.0.1:*: feature 'user_id': table 'user' takes integer"),
    "unknown name": ("word", ["jazz", "no such"], np.ones((2, 50)), "ids[1] = 'no such' isn't in the list of names"),
    "padding": ("user_id", [1, 0, 3], NUMBERS, "row 1: id 0 is the padding id, which answers zeros; leave it out"),
    "padding string": ("query", ["a", "b", "<pad>"], NUMBERS, "row 2: id '<pad>' is the padding id"),
    "only padding": ("user_id", [0], np.zeros((1, 4)), "has only the padding id"),
    "too large": ("half", [1, 2, 3], NUMBERS * [[1], [1], [1e5]], "row 2: a number is larger than 65504; table 'half'"),
    "hashed": ("zip", [1, 2, 3], NUMBERS, "table 'zip' has hashed ids, which share rows"),
    "factors": ("low", [1, 2, 3], NUMBERS, "the rows of table 'low' are made of factors (low_rank)"),
    "frozen": ("still", [1, 2, 3], NUMBERS, "table 'still' is frozen by its configuration"),
    "no room": ("full", range(5), np.ones((5, 4)), "5 of its ids own no row in table 'full' yet, which has room for 4"),
    "large rows": ("large", [0], np.ones((1, 20_000)), "row 0: has 80,008 bytes, more than fits into a message"),
}


@pytest.mark.parametrize("problem", REFUSED)
def test_what_does_not_fit_is_refused_before_anything_is_written(client: Client, tmp_path: Path, problem: str) -> None:
    feature, ids, vectors, part = REFUSED[problem]
    before = client.describe().version
    message = refused("import", file_of(tmp_path / "v.npz", ids, vectors), "--feature", feature)
    first, _, rest = part.partition("*")
    assert first in message
    assert rest in message
    assert client.describe().version == before


BAD_FILES = {
    "ragged": ("a 1 2 3 4\nb 1 2 3\n", "v.txt: line 2: has 3 numbers where 4 are expected"),
    "NaN": ("a 1 2 3 4\nb 1 2 nan 4\n", "v.txt: line 2: number 3 is nan"),
    "repeated": ("a 1 2 3 4\nb 1 2 3 4\na 1 2 3 4\n", "v.txt: ids[2] is 'a', and so is ids[0]"),
    "words": ("a 1 2 3 four\n", "v.txt: line 1: 'four' is no number"),
    "empty": ("", "v.txt: "),
}


@pytest.mark.parametrize("problem", BAD_FILES)
def test_a_bad_file_is_refused_with_the_line_and_nothing_is_changed(
    client: Client, tmp_path: Path, problem: str
) -> None:
    text, part = BAD_FILES[problem]
    (tmp_path / "v.txt").write_text(text)
    before = client.describe().version
    assert part in refused("import", tmp_path / "v.txt", "--feature", "query")
    assert client.describe().version == before


def test_what_only_the_server_finds_is_told_with_how_far_the_import_came(client: Client, tmp_path: Path) -> None:
    wide = np.random.default_rng(4).normal(size=(1_000, 50)).astype(np.float32)
    path = file_of(tmp_path / "wide.npy", range(1_000), wide)
    client.freeze({"word": [700]})
    message = refused("import", path, "--feature", "word")
    chunk = (65_536 - 256) // 208
    assert f"wide.npy: rows {2 * chunk} to {3 * chunk - 1}: " in message
    assert f"; the {2 * chunk} rows before are written, the import can be repeated" in message
    np.testing.assert_array_equal(client.lookup({"word": [0, 2 * chunk - 1]})["word"], wide[[0, 2 * chunk - 1]])
    client.freeze({"word": [700]}, thaw=True)
    assert told("import", path, "--feature", "word")["rows"] == 1_000


def test_an_import_may_be_repeated_even_into_a_full_vocabulary(client: Client, tmp_path: Path) -> None:
    path = file_of(tmp_path / "v.npz", range(4), np.ones((4, 4)))
    assert [told("import", path, "--feature", "full")["rows"] for _ in range(2)] == [4, 4]
    assert "1 of its ids own no row" in refused(
        "import", file_of(tmp_path / "w.npz", range(1, 5), np.ones((4, 4))), "--feature", "full"
    )


@pytest.mark.skipif(not GLOVE.is_dir(), reason="needs ../shared/data/glove_top10k, which isn't here")
@pytest.mark.parametrize("table", ["word", "term"])
def test_glove_goes_in_as_text_and_comes_out_bit_for_bit(client: Client, tmp_path: Path, table: str) -> None:
    words = (GLOVE / "glove_top10k_vocab.txt").read_text().split()
    rows_ND = np.load(GLOVE / "glove_top10k_50d.npy", allow_pickle=False)
    done = told("import", file_of(tmp_path / "glove.txt", words, rows_ND), "--feature", table)
    assert done["rows"] == 10_000
    np.testing.assert_array_equal(
        client.lookup({table: ["king", "queen"]})[table], rows_ND[[words.index("king"), words.index("queen")]]
    )
    snapshot = told("snapshot")["path"]
    for name in ("out.safetensors", "out.tsv"):
        told("export", snapshot, tmp_path / name, "--table", table)
        found = formats.read(tmp_path / name)
        order = [found.ids.index(word) for word in words] if table == "term" else slice(None)  # type: ignore[union-attr]
        assert sorted(found.ids) == sorted(words)
        np.testing.assert_array_equal(found.vectors_ND[order], rows_ND)
