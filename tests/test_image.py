"""The image's steps: what the Dockerfile installs serves, from a wheel, with nothing of the checkout in reach."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from support.image import DOCKER, build

HARMLESS = {"PATH", "LANG", "HOME", "TMPDIR"}


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_what_the_cpu_image_installs_serves_in_one_process_and_in_two(tmp_path: Path) -> None:
    made = build(DOCKER / "cpu.Dockerfile", tmp_path)
    size = sum(path.lstat().st_size for path in made.rglob("*")) / 2**20
    print(f"the environment has {size:,.0f} MiB")
    for name in ("embershard/py.typed", "embershard/v1/embershard_pb2.pyi", "embershard_server/py.typed"):
        assert list(made.glob(f"lib/python3*/site-packages/{name}"))
    assert not list(made.glob("lib/python3*/site-packages/pip")), "nothing can be installed into what runs"
    collection = shutil.copy(DOCKER.parent / "movielens.toml", tmp_path / "collection.toml")
    environment = {name: value for name, value in os.environ.items() if name in HARMLESS} | {
        "PATH": f"{made / 'bin'}:/usr/bin:/bin",
        "HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "EMBERSHARD_CONFIG": str(collection),
        "EMBERSHARD_LISTEN": "127.0.0.1:0",
        "EMBERSHARD_DATA_DIR": str(tmp_path / "data"),
    }
    start = ["dumb-init", "--single-child", "--"]
    ranks = ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", "embershard_server"]
    for command, engine in ((["embershard", "serve"], "local"), (ranks, "torchrec")):
        told = _asked([*start, *command], environment, tmp_path)
        assert told["engine"] == engine


def _asked(command: list[str], environment: dict[str, str], folder: Path) -> dict[str, str]:
    """Starts it as the image would, looks rows up by the image's own client, and has it leave by SIGTERM."""
    found = shutil.which(command[0], path=environment["PATH"])
    assert found is not None
    with subprocess.Popen(
        [found, *command[1:]], env=environment, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as server:
        try:
            assert server.stdout is not None
            lines: list[str] = []
            for line in server.stdout:
                lines.append(line)
                if match := re.match(r"rank 0 of \d+ \(\w+ engine\) serves (\S+)", line):
                    break
            else:
                pytest.fail(f"the server doesn't serve:\n{''.join(lines)}")
            target = ["--target", match[1], "--json"]

            def ask(*words: str) -> dict[str, str]:
                client = shutil.which("embershard", path=environment["PATH"])
                assert client is not None
                done = subprocess.run(
                    [client, *words, *target], env=environment, cwd=folder, capture_output=True, text=True, timeout=120
                )
                assert done.returncode == 0, done.stderr
                document: dict[str, str] = json.loads(done.stdout)
                return document

            assert ask("lookup", "--ids", "user_id=1,2,3")
            told = ask("describe")
        finally:
            server.terminate()
            rest = server.stdout.read() if server.stdout else ""
        assert "wrote " in rest, "a last snapshot"
    return told
