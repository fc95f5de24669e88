"""The documentation is true: code is run, commands are run or checked, links lead somewhere, and parts are current."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any, cast

import pytest
from embershard_server.options import parser as server_parser
from support.command import call
from support.jobs import run_job
from support.pages import PAGES, ROOT, Block, anchors, blocks, links, prose
from support.reader import JOB_HEAD, Reader, Redis, dry_run, make_snapshots, remove
from support.service import Service
from support.subject import local
from test_cli_help import OWN, commands

from embershard import Client
from embershard.config import load_config
from embershard.engine.touched import Touched
from embershard.engine.world import SoloWorld
from embershard.publisher import Publisher
from embershard.store.manifest import open_snapshot
from embershard.train.job import load_job

README, DOCS = ROOT / "README.md", ROOT / "docs"
SERVED = {"migration.md": "films.toml"}
"""Which collection a page's service has; of the others it is the README's."""


def block_of(page: Path, language: str, number: int = 0) -> Block:
    return [block for block in blocks(page) if block.language == language][number]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where a reader works: all pages share it, as their services are shared."""
    made = tmp_path_factory.mktemp("reader")
    (made / "shop.toml").write_text(block_of(README, "toml").text)
    (made / "films.toml").write_text(block_of(DOCS / "migration.md", "toml").text)
    yield made
    remove(made)


@pytest.fixture(scope="module")
def served(folder: Path) -> Iterator[Callable[[str], Service]]:
    """Services by their collection's file, each started once; `secured` in place of a file has TLS and tokens."""
    started: dict[str, Service] = {}

    def of(name: str) -> Service:
        if name not in started:
            with pytest.MonkeyPatch.context() as patch:
                patch.setenv("EMBERSHARD_METRICS_LISTEN", "127.0.0.1:0")
                if name == "secured":
                    secure(folder / "secrets", patch)
                config = folder / ("shop.toml" if name == "secured" else name)
                started[name] = Service(config, folder / f"{Path(name).stem}-state").wait()
            if name != "secured":
                table = load_config(config).tables[0]
                make_snapshots(started[name], table.features[0], table.dim)
        return started[name]

    yield of
    for service in started.values():
        service.stop()


def secure(secrets: Path, patch: pytest.MonkeyPatch) -> None:
    """Has the next server use the credentials of a folder, which is made if it isn't there."""
    if not secrets.exists():
        assert call("credentials", secrets)[0] == 0
    for name, file in (("TLS_CERT", "server.pem"), ("TLS_KEY", "server.key"), ("TOKENS", "tokens.toml")):
        patch.setenv(f"EMBERSHARD_{name}", str(secrets / file))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_reader_can_do_what_a_page_says(
    page: Path, folder: Path, served: Callable[[str], Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    service = served(SERVED.get(page.name, "shop.toml"))
    redis = ModuleType("redis")
    redis.Redis = Redis  # type: ignore[attr-defined]  # that is how a module is stood in for
    monkeypatch.setitem(sys.modules, "redis", redis)
    monkeypatch.chdir(folder)
    monkeypatch.setenv("EMBERSHARD_TARGET", service.target)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(sys.path))
    names = train_as_told(folder) if page.name == "training.md" else {}
    reader = Reader(folder, service, lambda: served("secured"), **names)
    for block in blocks(page):
        reader.read(block)


def train_as_told(folder: Path) -> dict[str, Any]:
    """What `embershard train job.toml --folder runs/first` does, in this process; and what its fragment has."""
    (folder / "job.toml").write_text(block_of(DOCS / "training.md", "toml").text)
    run_job(folder / "job.toml", folder / "runs/first", SoloWorld())
    job = local(load_config(folder / "shop.toml"))
    snapshot = open_snapshot(Path(job.save(str(folder / "runs/nightly"), 1)))
    return {"Publisher": Publisher, "Touched": Touched, "engine": job.engine, "snapshot": snapshot}


def test_python_examples_run_on_two_ranks_as_well(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with Service(block_of(README, "toml").text, tmp_path, ranks=2) as service:
        for page in (README, DOCS / "clients.md"):
            reader = Reader(tmp_path, service, lambda: pytest.fail("these need no TLS"))
            for block in blocks(page):
                if block.language == "python" and "Security" not in block.text:
                    reader.read(block)


@pytest.mark.parametrize(
    ("language", "text"), [("sh", "rm -r shop-state\n"), ("js", "lookup()\n"), ("", "make serve\n")]
)
def test_what_no_rule_covers_is_an_error(language: str, text: str, folder: Path) -> None:
    block = Block(page=README, line=1, language=language, text=text, saved_as="")
    reader = Reader(folder, cast("Service", None), lambda: pytest.fail("nothing is served here"))
    with pytest.raises(AssertionError, match=r"README\.md:1"):
        reader.read(block)


def test_the_job_of_the_training_page_trains_and_is_served(tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text(block_of(README, "toml").text)
    (tmp_path / "job.toml").write_text(block_of(DOCS / "training.md", "toml").text)
    result = run_job(tmp_path / "job.toml", tmp_path / "runs/first", SoloWorld())
    with Service(tmp_path / "shop.toml", tmp_path / "runs/first") as service, Client(service.target) as client:
        served = client.lookup({"user_id": [1, 2, 3]}, with_counts=True)
        assert served.version == 40
        assert (served["user_id"] == result["user.weight"][[1, 2, 3]]).all()
        assert (served.updates["user_id"] == result["user.updates"][[1, 2, 3]]).all()


def test_the_keys_of_a_job_file_are_those_that_there_are(tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text(block_of(README, "toml").text)
    keys = block_of(DOCS / "training.md", "toml", 1).text
    (tmp_path / "job.toml").write_text(JOB_HEAD + keys)
    job, _ = load_job(tmp_path / "job.toml")
    told = {*re.findall(r"(\w+) =", keys), *re.findall(r"^\[(\w+)", keys, re.MULTILINE)}
    first = {"collection", "model", "model_options", "batch", "epochs", "optimizer"}  # which the first example has
    assert {item.name for item in fields(job)} == told & {item.name for item in fields(job)} | first


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links(page):
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(file), f"{page.name}: {target}"


def test_alerts_and_charts_link_to_entries_of_the_runbook() -> None:
    entries = anchors(DOCS / "operations.md")
    for file in (ROOT / "deploy").rglob("*"):
        if file.suffix in (".yml", ".yaml", ".json", ".txt"):
            for entry in re.findall(r"operations\.md#([\w-]+)", file.read_text()):
                assert entry in entries, f"{file.relative_to(ROOT)}: #{entry}"


def test_messages_that_the_runbook_quotes_are_those_that_there_are() -> None:
    text = prose(DOCS / "operations.md")
    quoted = re.findall(r"^\| `([^`|]* [^`|]*)`", text, re.MULTILINE)
    quoted += [part for told in re.findall(r"`([^`]* can't be written)`", text) for part in told.split(": ")]
    assert len(quoted) > 5
    sources = "".join(path.read_text() for folder in ("src", "service") for path in (ROOT / folder).rglob("*.py"))
    assert [message for message in quoted if message not in re.sub(r'"\s+f?"', "", sources)] == []


def test_every_page_is_in_the_index() -> None:
    told = {(DOCS / target).resolve() for target in links(DOCS / "README.md")}
    assert {page for page in DOCS.glob("*.md") if page.name != "README.md"} <= told


def test_every_command_and_every_flag_of_the_server_is_told() -> None:
    text = "".join(page.read_text() for page in PAGES)
    assert {name for name in (*OWN, *commands()) if f"embershard {name}" not in text} == set()
    named = {name for page in PAGES for name in re.findall(r"`embershard ([a-z]+)", prose(page))}
    assert named <= {*OWN, *commands()}
    assert {flag for flag in flags(server_parser("embershard serve")) if f"`{flag}" not in text} == set()


def flags(parser: ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings if option != "-h"} - {"--help"}


def test_make_knows_every_target_that_pages_name() -> None:
    named = {target for page in PAGES for target in re.findall(r"`make ([a-z-]+)[^`]*`", prose(page))}
    assert named >= {"check", "demo", "bench"}
    for target in sorted(named):
        dry_run(f"make {target}")


def test_extras_that_pages_install_are_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    named = {
        extra
        for page in PAGES
        for listed in re.findall(r"'(?:\.|embershard)\[([a-z,]+)\]'", page.read_text())
        for extra in listed.split(",")
    }
    assert named <= extras.keys()


def test_generated_parts_are_current() -> None:
    shown = subprocess.run(
        [sys.executable, ROOT / "tools/document.py", "--check"], capture_output=True, text=True, check=False
    )
    assert shown.returncode == 0, shown.stderr


def test_the_sample_collection_is_valid_and_has_every_kind_of_feature() -> None:
    tables = load_config(ROOT / "deploy" / "movielens.toml").tables
    assert {table.ids.kind for table in tables} == {"direct", "hashed"}
    assert {table.pooling for table in tables} == {"none", "mean"}
