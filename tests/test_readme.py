"""The README is true: its commands exist, its collection is served, its Python runs."""

from __future__ import annotations

import re
import subprocess
from dataclasses import fields
from pathlib import Path

import pytest
from support.jobs import run_job
from support.service import Service

from embershard import Client
from embershard.config import load_config
from embershard.engine.world import SoloWorld
from embershard.train.job import load_job

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


@pytest.mark.parametrize("ranks", [0, 2], ids=["local", "torchrec-2"])
def test_the_python_examples_run_against_the_collection_example(tmp_path: Path, ranks: int) -> None:
    (collection, *_), examples = blocks("toml"), blocks("python")
    assert len(examples) == 2
    with Service(collection, tmp_path, ranks=ranks) as service:
        for example in examples:
            exec(compile(example.replace("127.0.0.1:50051", service.target), "README.md", "exec"), {})


def test_the_job_of_the_readme_trains_and_is_served(tmp_path: Path) -> None:
    collection, job, _ = blocks("toml")
    (tmp_path / "shop.toml").write_text(collection)
    (tmp_path / "job.toml").write_text(job)
    result = run_job(tmp_path / "job.toml", tmp_path / "runs/first", SoloWorld())
    with Service(collection, tmp_path / "runs/first") as service, Client(service.target) as client:
        served = client.lookup({"user_id": [1, 2, 3]}, with_counts=True)
        assert served.version == 40
        assert (served["user_id"] == result["user.weight"][[1, 2, 3]]).all()
        assert (served.updates["user_id"] == result["user.updates"][[1, 2, 3]]).all()


def test_the_keys_of_a_job_file_are_those_that_there_are(tmp_path: Path) -> None:
    collection, _, keys = blocks("toml")
    (tmp_path / "shop.toml").write_text(collection)
    (tmp_path / "job.toml").write_text(f'collection = "shop.toml"\nmodel = "dlrm"\nbatch = 8\n{keys}')
    job, _ = load_job(tmp_path / "job.toml")
    told = {*re.findall(r"(\w+) =", keys), *re.findall(r"^\[(\w+)", keys, re.MULTILINE)}
    first = {"collection", "model", "model_options", "batch", "epochs", "optimizer"}  # which the first example has
    assert {item.name for item in fields(job)} == told & {item.name for item in fields(job)} | first


def test_make_knows_every_target_that_the_readme_names() -> None:
    for target in sorted(set(re.findall(r"make ([a-z]+(?:-[a-z]+)*)", "\n".join(blocks("sh")) + README))):
        shown = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert shown.returncode == 0, f"make {target}: {shown.stderr}"


def test_every_embershard_command_of_the_readme_is_understood(tmp_path: Path) -> None:
    commands = re.findall(r"^(?:\.venv/bin/)?embershard (\w+) ?(.*?)(?: +#.*)?$", "\n".join(blocks("sh")), re.MULTILINE)
    assert {name for name, _ in commands} >= {"serve", "lookup", "describe"}
    with Service(ROOT / "deploy" / "movielens.toml", tmp_path) as service:
        for name, arguments in commands:
            if name in ("serve", "train"):
                continue  # what `make serve` does, and every test here; the next test
            command = [str(ROOT / ".venv/bin/embershard"), name, "--target", service.target, *arguments.split()]
            shown = subprocess.run(command, capture_output=True, text=True, check=False)
            assert shown.returncode == 0, shown.stderr
            assert shown.stdout


def test_the_command_for_several_ranks_is_the_one_that_the_tests_start(tmp_path: Path) -> None:
    serving, training = re.findall(r"^torchrun .*$", README, re.MULTILINE)
    words = serving.split()
    assert training.split()[:2] + training.split()[3:6] == [
        "torchrun",
        "--nproc-per-node",
        "-m",
        "embershard.train",
        "job.toml",
    ]
    assert words[:2] + words[3:6] == ["torchrun", "--nproc-per-node", "-m", "embershard_server", "--config"]
    assert words[7] == "--data-dir"


def test_the_sample_collection_is_valid_and_has_every_kind_of_feature() -> None:
    tables = load_config(ROOT / "deploy" / "movielens.toml").tables
    assert {table.ids.kind for table in tables} == {"direct", "hashed"}
    assert {table.pooling for table in tables} == {"none", "mean"}
