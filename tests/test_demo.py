"""`make demo` and `make serve`, as a new user runs them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from embershard import Client

ROOT = Path(__file__).parents[1]
# As from a shell, also where `make test` has started this: a make inside a make talks more.
SHELL = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}


@pytest.fixture(scope="module", autouse=True)
def _data() -> None:
    program = "import sys; sys.path.insert(0, 'benchmarks'); import movielens; movielens.load()"
    fetched = subprocess.run(
        [ROOT / ".venv/bin/python", "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if fetched.returncode and "DataError" in fetched.stderr:
        pytest.skip(reason=f"MovieLens can't be fetched here: {fetched.stderr.splitlines()[-1]}")
    assert fetched.returncode == 0, fetched.stderr


@pytest.mark.parametrize("ranks", ["1", pytest.param("2", marks=pytest.mark.slow)])
def test_the_demo_learns_and_ends_with_its_figures(ranks: str) -> None:
    shown = subprocess.run(
        ["make", "demo", f"RANKS={ranks}"], cwd=ROOT, env=SHELL, capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stdout + shown.stderr
    figures = json.loads(shown.stdout.splitlines()[-1])
    assert figures.keys() >= {"rmse_before", "rmse_after", "rows_per_s", "lookup_p50_ms", "lookup_p99_ms"}
    assert figures["rmse_after"] <= 0.95 < figures["rmse_before"]


def test_make_serve_serves_tells_what_and_leaves_with_a_snapshot(tmp_path: Path) -> None:
    serving = subprocess.Popen(
        ["make", "serve", "LISTEN=127.0.0.1:0", f"DATA_DIR={tmp_path}"],
        cwd=ROOT,
        env=SHELL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    assert serving.stdout is not None
    with serving.stdout as output:
        said = "".join(_until(output, "try: "))
        address = re.search(r"serves (\S+)", said)
        assert address, said
        with Client(address[1]) as client:
            assert client.lookup({"user_id": [1], "genres": ([0, 3], [2])})["genres"].shape == (1, 16)
        os.killpg(serving.pid, signal.SIGINT)  # Ctrl-C goes to all of them
        rest = output.read()
    assert serving.wait(60) in (0, 2, -signal.SIGINT, 130), rest
    for told in ("zip_code", "MiB of rows and optimizer state", f"embershard lookup --target {address[1]}"):
        assert told in said
    assert "wrote" in rest
    assert list((tmp_path / "snapshots").iterdir())


def _until(lines: Iterator[str], start: str) -> Iterator[str]:
    for line in lines:
        yield line
        if line.startswith(start):
            return
