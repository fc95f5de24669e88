"""The rows in a snapshot's files: torch reads them, checksums don't depend on who wrote them, and damage shows."""

from __future__ import annotations

import copy
import hashlib
import json
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed.checkpoint as dcp
from hypothesis import given
from hypothesis import strategies as st
from support.command import refused, shown, told
from support.implementation import Implementation
from support.ranks import Ranks
from support.scenario import collection, everything, random_updates
from support.subject import local
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

from embershard import FingerprintMismatch, SnapshotError
from embershard.engine.growth import Growth
from embershard.store import snapshot
from embershard.store.checksum import checksum_of, total
from embershard.store.manifest import open_snapshot
from embershard.store.row_files import pieces_of, read

CONFIG = collection([{"name": "t", "rows": 200, "dim": 4}, {"name": "u", "rows": 3, "dim": 3, "dtype": "float16"}])
FILE = "shard-00001-model-00001-of-00001.safetensors"


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    return Path(local(CONFIG).save(str(tmp_path / "snapshots"), 7))


@pytest.fixture
def by_three(world: Callable[[int], Ranks], tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """A snapshot that three ranks wrote, and what is in it."""
    config, ranks = everything("adagrad", "none", "direct"), Implementation(world(3))
    ranks.build(config)
    ranks.update([random_updates(np.random.default_rng(rank), config) for rank in range(3)])
    return Path(ranks.save(tmp_path, 7)), ranks.state()


def test_torch_reads_what_three_ranks_wrote(by_three: tuple[Path, dict[str, Any]]) -> None:
    path, expected = by_three
    found = {name: torch.empty(array.shape, dtype=torch.from_numpy(array).dtype) for name, array in expected.items()}
    with warnings.catch_warnings(action="ignore"):
        dcp.load(found, storage_reader=HuggingFaceStorageReader(path=str(path)), no_dist=True)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name].numpy(), array, strict=True)


def test_what_torch_writes_is_read(tmp_path: Path) -> None:
    tensors = local(CONFIG).engine.tensors()
    writer = HuggingFaceStorageWriter(path=str(tmp_path), save_distributed=True)
    with warnings.catch_warnings(action="ignore"):
        dcp.save({name: view.contiguous() for name, view in tensors.items()}, storage_writer=writer, no_dist=True)
    pieces = pieces_of(tmp_path / FILE)
    assert {piece.name: (piece.first, piece.rows) for piece in pieces} == {
        name: (0, len(view)) for name, view in tensors.items()
    }
    for name, first, rows in read(tmp_path / FILE, pieces, {piece.name: range(2, 150) for piece in pieces}):
        np.testing.assert_array_equal(rows, tensors[name][first : first + len(rows)].numpy(), strict=True)


def test_resharding_keeps_every_checksum(world: Callable[[int], Ranks], tmp_path: Path) -> None:
    config = everything("rowwise_adagrad", "none", "direct")
    random, worlds = (
        np.random.default_rng(9),
        [Implementation(None), *(Implementation(world(size)) for size in (3, 2, 1))],
    )
    worlds[0].build(config)
    worlds[0].update([random_updates(random, config)])
    first = path = Path(worlds[0].save(tmp_path / "0", 7))
    for number, implementation in enumerate(worlds[1:], 1):
        implementation.build(config)
        implementation.load(str(path))
        path = Path(implementation.save(tmp_path / str(number), 7))
        assert open_snapshot(path).world_size == implementation.size
        assert open_snapshot(path).tensors == open_snapshot(first).tensors


ROWS = st.lists(st.lists(st.integers(0, 2**32 - 1), min_size=3, max_size=3), min_size=1, max_size=9)


@given(rows=ROWS, cut=st.integers(0, 9), first=st.integers(0, 2**40))
def test_checksums_of_parts_add_up_and_every_change_shows(rows: list[list[int]], cut: int, first: int) -> None:
    rows_ND = np.array(rows, np.uint32)
    whole = total([checksum_of(rows_ND, first)])
    assert total([checksum_of(rows_ND[:cut], first), checksum_of(rows_ND[cut:], first + min(cut, len(rows)))]) == whole
    assert total([checksum_of(rows_ND, first + 1)]) != whole
    changed_ND = rows_ND.copy()
    changed_ND[cut % len(rows), 1] ^= 1 << cut
    assert total([checksum_of(changed_ND, first)]) != whole
    if (rows_ND[0] != rows_ND[-1]).any():
        assert total([checksum_of(rows_ND[[-1, *range(1, len(rows) - 1), 0]], first)]) != whole


def test_checksums_are_for_ever() -> None:
    halves = np.arange(6, dtype=np.float16).reshape(2, 3)
    assert total([checksum_of(halves, 5)]) == "61a3bed640c955c1"


def rewrite(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Edits a manifest, whose own checksum fits again."""
    manifest = json.loads((path / "manifest.json").read_text())
    del manifest["checksum"]
    change(manifest)
    checksum = hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
    (path / "manifest.json").write_text(json.dumps({**manifest, "checksum": checksum}))


def swap_rows(path: Path, tensor: str, a: int, b: int) -> None:
    """In the first rank's file, whose SHA-256 fits again."""
    (piece,) = (piece for piece in pieces_of(path / FILE) if piece.name == tensor)
    data = bytearray((path / FILE).read_bytes())
    at_a, at_b = (
        slice(piece.place + row * piece.row_bytes, piece.place + (row + 1) * piece.row_bytes) for row in (a, b)
    )
    data[at_a], data[at_b] = data[at_b], data[at_a]
    (path / FILE).write_bytes(data)
    sha256 = hashlib.sha256(data).hexdigest()
    rewrite(path, lambda manifest: manifest["files"][FILE].update(sha256=sha256))


def test_rows_that_have_changed_places_are_found(
    by_three: tuple[Path, dict[str, Any]], world: Callable[[int], Ranks]
) -> None:
    path, _ = by_three
    swap_rows(path, "wide.weight", 1, 2)
    for target in (Implementation(None), Implementation(world(2))):
        target.build(everything("adagrad", "none", "direct"))
        with pytest.raises(
            SnapshotError, match=r"the rows of wide\.weight that were read add up to another.*restore it"
        ):
            target.load(str(path))
    assert "the checksum of the rows of wide.weight is wrong" in refused("snapshot", "--verify", path)


def harmed(manifest: Any, part: Any) -> Iterator[Any]:
    """Copies of a manifest with one key of one part gone, or without a value, which has had one."""
    for key, value in list(part.items() if isinstance(part, dict) else ()):
        del part[key]
        yield copy.deepcopy(manifest)
        if value is not None:
            part[key] = None
            yield copy.deepcopy(manifest)
        part[key] = value
        yield from harmed(manifest, value)


def test_a_manifest_that_lacks_anything_is_refused(saved: Path) -> None:
    manifest = json.loads((saved / "manifest.json").read_text())
    del manifest["checksum"]
    refusals = set()
    for edited in harmed(manifest, manifest):
        rewrite(saved, lambda there, edited=edited: (there.clear(), there.update(edited)))  # type: ignore[misc]
        with pytest.raises((SnapshotError, FingerprintMismatch)) as caught:
            load_of(saved)
        refusals.add(str(caught.value).partition(": ")[2])
    assert len(refusals) > 50
    for expected in ("as layout.tables.t.rows is missing; restore it", "as files is None; restore it"):
        assert f"manifest.json is no manifest, {expected}" in "\n".join(refusals)


def load_of(path: Path) -> None:
    snapshot.load(local(CONFIG).engine, open_snapshot(path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda manifest: manifest["tensors"]["t.weight"].update(shape=[200, 5]),
            r"t\.weight is \[200, 5\], and the conf",
        ),
        (
            lambda manifest: manifest["tensors"].pop("t.sum"),
            r"t\.sum is not there, and the configuration wants \[200\]",
        ),
        (
            lambda manifest: manifest["tensors"]["t.sum"].update(dtype="int32"),
            r"files don't hold t\.sum as its manifest",
        ),
        (lambda manifest: manifest["tensors"]["t.sum"].update(checksum="0"), r"rows of t\.sum .* another checksum"),
        (lambda manifest: manifest["tensors"]["t.sum"].update(shape=[]), "a tensor has no rows"),
        (lambda manifest: manifest.update(format=2), "has format 2, and this release reads 4"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused(saved: Path, change: Any, message: str) -> None:
    rewrite(saved, change)
    with pytest.raises(SnapshotError, match=message):
        load_of(saved)


def test_a_header_that_does_not_fit_is_refused_even_if_its_checksum_is_right(saved: Path) -> None:
    data = (saved / FILE).read_bytes()
    for old, new in (
        (b'"F32"', b'"F99"'),
        (b"[200, 4]", b"[201, 4]"),
        (b"saved_offsets", b"saved_onsets "),
        (b"{", b"["),
    ):
        (saved / FILE).write_bytes(data.replace(old, new, 1))
        sha256 = hashlib.sha256((saved / FILE).read_bytes()).hexdigest()
        rewrite(saved, lambda manifest, sha256=sha256: manifest["files"][FILE].update(sha256=sha256))  # type: ignore[misc]
        with pytest.raises(SnapshotError, match=f"{FILE}: its header (can't be read|doesn't fit)"):
            load_of(saved)


def test_snapshots_are_listed_verified_and_checked_without_a_server(saved: Path) -> None:
    subject = local(CONFIG)
    subject.grow(Growth(table="t", rows=300))
    later = Path(subject.save(str(saved.parent), 12))
    data_dir, here = saved.parents[1], open_snapshot(later)
    listed = told("snapshot", "--list", data_dir)["snapshots"]
    assert [(one["version"], one["world_size"]) for one in listed] == [(7, 1), (12, 1)]
    assert [one["bytes"] for one in listed] == [open_snapshot(saved).bytes, here.bytes]
    assert shown("snapshot", "--list", data_dir)[1] == f"version 12  {here.bytes:,} bytes  1 rank  {later}"
    whole = told("snapshot", "--verify", data_dir)
    assert (whole["version"], whole["files"], whole["tensors"], whole["rows"]) == (12, 1, 6, 303)
    assert shown("snapshot", "--verify", saved)[-1] == "whole: all checksums are right (files 1, tensors 6, rows 203)"
    checked = told("snapshot", "--check", saved)
    assert checked["tensors"]["u.weight"]["rows"] == 3
    lines = shown("snapshot", "--check", saved)
    assert lines[0] == "version 7, written by 1 rank"
    assert f"  {checked['tensors']['t.sum']['checksum']}  t.sum      200 rows  float32" in lines


def test_a_damaged_snapshot_is_told_with_the_place(saved: Path) -> None:
    data = bytearray((saved / FILE).read_bytes())
    data[-1] ^= 1
    (saved / FILE).write_bytes(data)
    assert f"{saved}: the checksum of {FILE} is wrong: it is damaged" in refused("snapshot", "--verify", saved)
    (saved / "manifest.json").write_text("{}")
    (line,) = shown("snapshot", "--list", saved.parent)
    assert line.startswith(f"version 7  {saved}: manifest.json is damaged")
    assert "manifest.json is damaged" in refused("snapshot", "--check", saved)
    assert "there is no snapshot" in refused("snapshot", "--list", saved)


PEAK = """
import sys
from embershard.quiet import quieten
quieten()
from pathlib import Path
from embershard.config import parse_config
from embershard.engine.local import LocalEngine
from embershard.engine.world import SoloWorld
from embershard.store import snapshot
from embershard.store.manifest import open_snapshot

def config(rows):
    return parse_config({"collection": {"name": "large"}, "tables": [{"name": "t", "rows": rows, "dim": 64}]})

def peak():
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1]) * 1024

LocalEngine(config(10), SoloWorld())
bare = peak()
engine = LocalEngine(config(2_300_000), SoloWorld(), seeded=False)
snapshot.load(engine, open_snapshot(Path(sys.argv[1])))
print((peak() - bare) / sum(view.nbytes for view in engine.tensors().values()))
"""


@pytest.mark.slow
def test_loading_takes_little_memory_beside_the_tables(tmp_path: Path) -> None:
    path = local(collection([{"name": "t", "rows": 2_300_000, "dim": 64}], seed=0)).save(str(tmp_path), 1)
    done = subprocess.run([sys.executable, "-c", PEAK, path], capture_output=True, text=True, check=True)
    assert 1 <= float(done.stdout) < 1.3
