"""Vectors in files: what is written comes back bit by bit, and what is wrong is told by file, line or row."""

from __future__ import annotations

import io
import os
import pickle
import re
import subprocess
import sys
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from pyarrow import parquet
from safetensors.numpy import save as safetensors_bytes

from embershard.errors import InstallError, InvalidInput
from embershard.formats import FORMATS, Vectors, read, write

GLOVE = Path(__file__).parents[2] / "shared" / "data" / "glove_top10k"
BINARY, TEXT = ["npy", "npz", "parquet", "safetensors", "pt"], ["word2vec", "tsv"]
ONE, TWO = np.array([[1, 2]], np.float32), np.array([[1, 2], [3, 4]], np.float32)
STRINGS = {  # that a format with ids can hold
    "npz": st.text().filter(lambda text: not text.endswith("\0")),
    **dict.fromkeys(["parquet", "safetensors"], st.text()),
    "word2vec": st.text(min_size=1).filter(lambda text: not set(text) & set(" \t\n\r\v\f")),
    "tsv": st.text().filter(lambda text: text.strip() and not set(text) & set("\t\n\r")),
}
INTEGERS = st.integers(-(2**63), 2**63 - 1) | st.sampled_from([0, -1, -(2**63), 2**63 - 1])


@st.composite
def some(draw: st.DrawFn, ids: st.SearchStrategy[Any]) -> Vectors:
    chosen, dim = draw(st.lists(ids, min_size=1, max_size=6, unique=True)), draw(st.integers(1, 4))
    numbers = st.floats(width=32, allow_nan=False, allow_infinity=False)
    return Vectors.of(chosen, draw(arrays(np.float32, (len(chosen), dim), elements=numbers)))


def path_of(name: str, folder: Path | str) -> Path:
    return Path(folder) / f"file{FORMATS[name].suffixes[0]}"


def there_and_back(name: str, vectors: Vectors, **options: Any) -> Vectors:
    with tempfile.TemporaryDirectory() as folder:
        write(path_of(name, folder), vectors)
        return read(path_of(name, folder), **options)


def assert_same(found: Vectors, expected: Vectors) -> None:
    assert (type(found.ids), list(found.ids)) == (type(expected.ids), list(expected.ids))
    np.testing.assert_array_equal(found.vectors_ND.view(np.int32), expected.vectors_ND.view(np.int32))


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_vectors_come_back_bit_by_bit_under_any_id_that_a_format_holds(name: str, data: st.DataObject) -> None:
    drawn = data.draw(some(INTEGERS))
    integers = drawn if name in STRINGS else Vectors.of(range(len(drawn)), drawn.vectors_ND)  # row numbers
    assert_same(there_and_back(name, integers, **{"integer_ids": True} if name in TEXT else {}), integers)
    if name in STRINGS:
        strings = data.draw(some(STRINGS[name]))
        assert_same(there_and_back(name, strings), strings)


def test_ids_that_a_format_cannot_hold_are_refused_with_a_better_one(tmp_path: Path) -> None:
    unfit = {"npy": [[1, 0]], "pt": ["01"], "npz": [["a", "b\0"]], "word2vec": ["a ", ["a", ""]], "tsv": ["a ", "a\n"]}
    for name, ids in ((name, ids) for name, cases in unfit.items() for ids in cases):
        with pytest.raises(InvalidInput, match=rf"{path_of(name, tmp_path)}: ids\[[01]\] .* write (npz|parquet)"):
            write(path_of(name, tmp_path), Vectors.of(list(ids), TWO))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("ids", "numbers", "message"),
    [
        ([1], TWO, "1 ids for 2 vectors"),
        ([5, 5], TWO, r"ids\[1\] is 5, and so is ids\[0\]"),
        (["a", 1], TWO, r"ids\[1\] is 1; ids are all strings or all integers"),
        (["a", "\ud800"], TWO, r"ids\[1\] is .* no text"),
        ([], np.empty((0, 2), np.float32), "0 vectors of 2 numbers"),
        ([1, 2], np.ones(2, np.float32), r"the shape \(2,\)"),
        ([1, 2], np.ones((2, 1), np.int64), "the vectors are int64"),
        ([1, 2], TWO * [[1], [np.nan]], r"vectors\[1, 0\] is nan"),
        ([1, 2], TWO * np.array([[1], [1e39]]), r"vectors\[1, 0\] is 3e\+39; .* float32's range"),
    ],
)
def test_vectors_are_checked_when_they_are_made(ids: Any, numbers: Any, message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Vectors.of(ids, numbers)
    with pytest.raises(InvalidInput):  # the constructor converts nothing
        Vectors(ids=ids, vectors_ND=numbers)


def saved(save: Any, *arguments: Any, **named: Any) -> bytes:
    file = io.BytesIO()
    save(file, *arguments, **named)
    return file.getvalue()


npy, npz = partial(saved, np.save), partial(saved, np.savez)
pt = partial(saved, lambda file, state: torch.save(state, file))
table = partial(saved, lambda file, **columns: parquet.write_table(pa.table(columns), file))
tensors = partial(saved, lambda file, **named: file.write(safetensors_bytes(named)))
keyed, KEY = partial(tensors, vectors=ONE), np.array([65], np.uint8)
BAD = [  # file, what it holds, a part of the message
    ("a.txt", b"", "there are 0 vectors"),
    ("a.txt", b"2 2\na 1 2", "the header says 2 vectors, but there are 1; is the file cut off?"),
    ("a.txt", b"1 2\n\nb 1\n", "line 3: has 1 numbers where 2 are expected"),
    ("a.txt", b"a 1 2\nb c 1 2\n", "line 2: has 3 numbers where 2 are expected; all vectors have one length, and ids"),
    ("a.txt", b"a 1 x\n", "line 1: 'x' is no number"),
    ("a.txt", b"a 1 1_0\n", "line 1: has an underscore in a number"),
    ("a.txt", b"a 1 2\nb 1 nan\n", "line 2: number 2 is nan; numbers must be finite"),
    ("a.txt", b"a 1 1e39\n", "line 1: number 2 is 1e+39"),
    ("a.txt", b"a 1\nb 2\na 3\n", "ids[2] is 'a', and so is ids[0]"),
    ("a.txt", b"a 1\n\xff 2\n", "line 2: is not UTF-8 text"),
    ("a.tsv", b"1\t\n", "line 1: '' is no number"),
    ("a.tsv", b"1\n2\n3\n", "a.metadata.tsv: has 2 labels for 3 vectors"),
    ("a.npy", npy(ONE[0]), "the shape (2,)"),
    ("a.npy", npy(ONE) + npy(ONE), "has more bytes than its header says"),
    ("a.npy", npy(ONE).replace(b"(1, 2)", b"(9, 2)"), "is no .npy file of numbers, or is damaged"),
    ("a.npz", npy(ONE), "give format='npy'"),
    ("a.npz", npz(ids=np.array([1, 2**63], np.uint64), vectors=TWO), "ids[1] is 9223372036854775808, which is beyond"),
    ("a.npz", npz(ids=[1]), "has no array 'vectors'; it has 'ids'"),
    ("a.parquet", table(id=[1]), "must have one column 'vector'; it has 'id'"),
    ("a.parquet", table(id=[1, 2], vector=[[1.0], [1.0, 2.0]]), "row 1: the vector has 2 numbers, and row 0 has 1"),
    ("a.parquet", table(id=[1, None], vector=[[1.0], [1.0]]), "row 1: the id is null"),
    ("a.parquet", table(id=[1, 2], vector=[[1.0, 2.0], [1.0, None]]), "row 1: a number of the vector is null"),
    ("a.parquet", table(id=[1], vector=[[1]]), "column 'vector' is list<element: int64>"),
    ("a.safetensors", tensors(vectors=ONE), "has no tensor 'key_offsets'; it has 'vectors'"),
    ("a.safetensors", tensors(ids=ONE, vectors=ONE), "the ids are float32 of shape (1, 2)"),
    ("a.safetensors", keyed(keys=KEY + 190, key_offsets=np.array([0, 1])), "row 0: the key is not UTF-8"),
    ("a.safetensors", keyed(keys=KEY, key_offsets=np.array([0, 2])), "'key_offsets' must rise from 0 to 1"),
    ("a.safetensors", keyed(keys=KEY, key_offsets=np.array([0.0])), "they must be uint8 and int64"),
    ("a.pt", pt(torch.nn.Embedding(1, 2)), "write it by torch.save(module.state_dict(), …)"),
    ("a.pt", pt({"weight": torch.ones(1, 2).to_sparse()}), "must be dense floats"),
]


@pytest.mark.parametrize(("name", "content", "message"), BAD)
def test_a_bad_file_is_refused_by_name(name: str, content: bytes, message: str, tmp_path: Path) -> None:
    (tmp_path / "a.metadata.tsv").write_bytes(b"x\ny\n")
    (tmp_path / name).write_bytes(content)
    with pytest.raises(InvalidInput, match=f"^{tmp_path / name}: .*{re.escape(message)}"):
        read(tmp_path / name)


@pytest.mark.parametrize("name", BINARY)
@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_still_holds_vectors(name: str, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = path_of(name, folder)
        write(path, Vectors.of([0, 1], TWO))
        whole = path.read_bytes()
        cut, at, byte = (data.draw(st.integers(0, bound)) for bound in (len(whole) - 1, len(whole) - 1, 255))
        path.write_bytes(whole[:cut])
        with pytest.raises(InvalidInput, match="file"):
            read(path)
        path.write_bytes(whole[:at] + bytes([byte]) + whole[at + 1 :])
        with suppress(InvalidInput):
            assert np.isfinite(read(path).vectors_ND).all()


class Bomb(type(Path())):  # type: ignore[misc]  # whichever kind of path this system has
    def __reduce__(self) -> tuple[Any, ...]:  # opening a pickle of it would make a folder there
        return os.mkdir, (str(self),)


@pytest.mark.parametrize("name", BINARY)
def test_no_pickle_is_ever_run(name: str, tmp_path: Path) -> None:
    bomb = Bomb(tmp_path, "ran")
    boxed = np.array([[bomb]], object)
    for content in (pickle.dumps(bomb), npy(boxed), npz(ids=[1], vectors=boxed), pt({"weight": bomb})):
        path_of(name, tmp_path).write_bytes(content)
        with pytest.raises(InvalidInput, match="file"):
            read(path_of(name, tmp_path))
    assert not bomb.exists()


def test_word2vec_text_is_read_with_and_without_header(tmp_path: Path) -> None:
    for content, ids in (
        ("2 1\na 0.5\nb 0.5\n", ("a", "b")),
        ("a 0.5\nb 0.5", ("a", "b")),  # as GloVe has it
        ("5 0.5\n", ("5",)),  # a header has two whole numbers
        ("\ufeff1 1\r\nå\u00a0\t0.5 \r\n\r\n", ("å\u00a0",)),  # a mark, Windows' line ends, a blank that parts nothing
    ):
        (tmp_path / "a.vec").write_bytes(content.encode())
        assert_same(read(tmp_path / "a.vec"), Vectors.of(ids, np.full((len(ids), 1), 0.5)))


def test_ids_in_text_are_strings_unless_integers_are_asked_for(tmp_path: Path) -> None:
    assert [there_and_back(name, Vectors.of([7, -7], TWO)).ids for name in TEXT] == [("7", "-7")] * 2
    for word in ("a", "1_0", "1.0", "9223372036854775808"):
        (tmp_path / "a.txt").write_text(f"1 0.5\n{word} 0.5\n")
        with pytest.raises(InvalidInput, match=rf"ids\[1\] is '{word}', which is no integer within int64"):
            read(tmp_path / "a.txt", integer_ids=True)


def test_the_labels_of_a_projector_stand_in_a_second_file(tmp_path: Path) -> None:
    vectors = Vectors.of(["a", "b c"], TWO)
    write(tmp_path / "words.tsv", vectors)
    texts = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert texts == {"words.tsv": "1\t2\n3\t4\n", "words.metadata.tsv": "a\nb c\n"}
    write(tmp_path / "v.tsv", vectors, metadata=tmp_path / "m.tsv")
    assert_same(read(tmp_path / "v.tsv", metadata=tmp_path / "m.tsv"), vectors)
    for metadata, problem in (("words.tsv", "several columns"), ("v.tsv", "its own"), ("no.tsv", "No such file")):
        with pytest.raises(InvalidInput, match=f"v.tsv: .*{problem}"):
            read(tmp_path / "v.tsv", metadata=tmp_path / metadata)


@pytest.mark.parametrize("kind", [torch.nn.Embedding, torch.nn.EmbeddingBag])
def test_the_state_of_an_embedding_goes_out_and_in(kind: type[torch.nn.Module], tmp_path: Path) -> None:
    module, other = kind(3, 2), kind(3, 2)
    torch.save(module.state_dict(), tmp_path / "a.pt")
    write(tmp_path / "b.pth", read(tmp_path / "a.pt"))
    other.load_state_dict(torch.load(tmp_path / "b.pth", weights_only=True))
    assert torch.equal(module.weight, other.weight)


def test_a_tensor_of_a_larger_state_is_picked_by_key(tmp_path: Path) -> None:
    state = {"model": {"user.weight": torch.ones(2, 3), "norm.weight": torch.ones(3)}, "epoch": 3}
    torch.save(state, tmp_path / "one.pt")
    assert read(tmp_path / "one.pt").vectors_ND.shape == (2, 3)
    torch.save({**state, "item.weight": torch.ones(4, 2, dtype=torch.bfloat16)}, tmp_path / "two.pt")
    assert read(tmp_path / "two.pt", key="item.weight").vectors_ND.shape == (4, 2)
    for key, problem in ((None, "has 2 matrices named weight; pick"), ("x", "has no tensor 'x'")):
        with pytest.raises(InvalidInput, match=rf"{problem}.* model\.user\.weight \[2, 3\], .*item\.weight \[4, 2\]"):
            read(tmp_path / "two.pt", key=key)


@pytest.mark.parametrize("name", FORMATS)
def test_a_file_appears_whole_or_not_at_all(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, first, second = path_of(name, tmp_path), Vectors.of([0, 1], TWO), Vectors.of([0], ONE)
    write(path, first)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    with pytest.raises(InvalidInput, match="is there already; let it be overwritten"):
        write(path, second)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: os.fdatasync(10**6))
        with pytest.raises(InvalidInput, match="can't be written: Bad file descriptor"):
            write(path, second, overwrite=True)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    write(path, second, overwrite=True)
    assert len(read(path)) == 1


@pytest.mark.parametrize("name", FORMATS)
def test_a_path_that_is_no_file_is_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for path, problem in (("no", "No such file"), ("folder", "Is a directory")):
        with pytest.raises(InvalidInput, match=f"{path}: can't be read: {problem}"):
            read(tmp_path / path, format=name)
    for path, problem in (("no/file", "can't be written"), ("pipe", "is no regular file")):
        with pytest.raises(InvalidInput, match=f"{path}: .*{problem}"):
            write(tmp_path / path, Vectors.of([0], ONE), format=name, overwrite=True)


def test_the_format_is_told_by_the_suffix_or_by_name(tmp_path: Path) -> None:
    write(tmp_path / "UPPER.NPZ", Vectors.of(["a"], ONE))
    assert read(tmp_path / "UPPER.NPZ", format="npz").ids == ("a",)
    for path, options, problem in (
        ("a.bin", {}, r"the suffix '\.bin' tells no format; name it .* npy \(\.npy\), .* word2vec \(\.txt \.vec"),
        ("a.npy", {"format": "hdf5"}, r"unknown format 'hdf5'; known are npy"),
        ("a.npy", {"key": "x"}, "the format npy takes no key"),
    ):
        with pytest.raises(InvalidInput, match=problem):
            read(tmp_path / path, **options)


def test_packages_are_imported_when_needed_and_missed_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = "import embershard.formats, sys; print({'torch', 'pyarrow', 'safetensors'} & set(sys.modules))"
    assert subprocess.check_output([sys.executable, "-c", program], text=True) == "set()\n"
    for name, package in (("parquet", "pyarrow"), ("safetensors", "safetensors"), ("pt", "torch")):
        monkeypatch.setitem(sys.modules, package, None)
        with pytest.raises(InstallError, match=f"pip install {package}"):
            read(tmp_path / "file", format=name)


@pytest.mark.skipif(not GLOVE.is_dir(), reason="needs ../shared/data/glove_top10k, which isn't here")
def test_a_real_table_goes_through_text_bit_by_bit() -> None:
    words = (GLOVE / "glove_top10k_vocab.txt").read_text().split()
    glove = Vectors.of(words, np.load(GLOVE / "glove_top10k_50d.npy", allow_pickle=False))
    for name in TEXT:
        assert_same(there_and_back(name, glove), glove)
