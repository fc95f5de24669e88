"""The command line as people and machines use it: real commands against a real server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

import numpy as np
import pytest
from support.command import COMMAND, answer, call, lines, run
from support.service import Service

import embershard
import embershard_command
from embershard import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

CONFIG = """
collection = { name = "shop" }
optimizer = { kind = "sgd", learning_rate = 1.0 }
tables = [
    { name = "user", rows = 100, dim = 4, features = ["user_id"], ids = { padding = 0 } },
    { name = "zip", rows = 64, dim = 16, ids = { kind = "hashed" } },
    { name = "genre", rows = 50, dim = 4, features = ["genres"], pooling = "sum" },
]
"""
AS_CLIENT = """
import sys
for name in "torch torchrec fbgemm_gpu pydantic xxhash safetensors psutil grpc_health grpc_reflection tqdm".split():
    sys.modules[name] = None  # importing it fails, as where it isn't installed
from embershard.cli import main
sys.exit(main())
"""
ONE, TWO = [1.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 8.0]

ERRORS = [  # arguments, what is piped in, kind, a part of the message
    ("lookup --ids nope=1", "", "InvalidInput", "unknown feature 'nope'; the collection has user_id"),
    ("lookup --ids genres=1,2 --lengths genres=1", "", "InvalidInput", "lengths add up to 1, but there are 2 ids"),
    ("lookup --ids user_id=1 --keys user_id=a", "", "InvalidInput", "feature 'user_id': ids"),
    ("lookup --ids user_id=1 --fingerprint 0", "", "FingerprintMismatch", "expects '0'"),
    ("lookup --ids user_id=1 --min-version 99999 --timeout 0.5", "", "DeadlineExceeded", ""),
    ("lookup --ids user_id=1 --target 127.0.0.1:1", "", "Unavailable", "127.0.0.1:1: "),
    ("lookup --request nowhere.json", "", "InvalidInput", "nowhere.json: can't read the request: No such file"),
    ("lookup --request -", "{", "InvalidInput", "standard input: is not the JSON of a request"),
    ("lookup --request -", "[" * 100_000, "InvalidInput", "is not the JSON of a request"),
    ("lookup --request -", "[1]", "InvalidInput", "a request is an object of features"),
    ("lookup --request -", '{"genres": {"lengths": [1]}}', "InvalidInput", "feature 'genres': give a list of ids"),
    ("lookup --request -", '{"user_id": [[1], [2, 3]]}', "InvalidInput", "'ids' must be a flat list"),
    ("lookup --request -", '{"user_id": [1], "user_id": [2]}', "InvalidInput", "'user_id' is there twice"),
    ("lookup --request -", '{"user_id": {"ids": [1], "values": []}}', "InvalidInput", "unknown key 'values'"),
    ("update --request -", '{"user_id": [1]}', "InvalidInput", '"gradients", or "values", or "parents", for all'),
    ("update --request -", '{"user_id": {"ids": [1], "parents": {}}}', "InvalidInput", "parents: give a list of ids"),
    ("update --request -", '{"user_id": {"ids": [1], "parents": []}}', "InvalidInput", "0 bags of parents for 1 ids"),
    ("import nowhere.npy --feature user_id", "", "InvalidInput", "nowhere.npy: can't be read: No such file"),
    ("export nowhere out.npy --table user", "", "SnapshotError", "nowhere: there is no snapshot; give the folder"),
    ("remap . --config nowhere.toml --output out", "", "ConfigError", "nowhere.toml: can't be read"),
    ("update --request -", '{"genres": [1], "zip": {"ids": [], "gradients": []}}', "InvalidInput", "['genres']"),
    ("update --request -", '{"user_id": {"ids": [1], "gradients": [[1], [2, 3]]}}', "InvalidInput", "must be numbers"),
    ("update --request -", '{"user_id": {"ids": [1], "gradients": [[NaN, 0, 0, 0]]}}', "InvalidInput", "finite"),
    ("update --ids user_id=1 --gradients nowhere.npy", "", "InvalidInput", "nowhere.npy: can't read the array"),
]
WRONG_USAGE = """
fly | lookup | lookup --ids user_id | lookup --ids =1 | lookup --ids user_id=one | lookup --ids user_id=1 --request -
lookup --lengths user_id=1 --ids genres=1 | lookup --ids user_id=1 --target nowhere | lookup --ids user_id=1 --prov
lookup --ids user_id=1 --timeout nan | lookup --ids user_id=1 --min-version -1 | update --request - --gradients g.npy
update --ids user_id=1 | update --ids user_id=1 --ids genres=1 --gradients g.npy | serve --config c.toml --speed 3
update --ids user_id=1 --gradients g.npy --values v.npy | grow --table user | grow --table user --rows 0
grow --table user --rows 9 --capacity 9 | grow --table user --rows 9 --mean --mean-of user_id=1 | freeze
freeze --ids user_id=1 --keys user_id=a | freeze --ids user_id=1 --ids genres=1 | import f.npy | export state out.npy
import f.xyz --feature user_id --format xyz | diff state | remap state --config c.toml | drift a b --top 0
remap state --config c.toml --output out --from word | remap state --config c.toml --output o --from w=a --from w=b
rollback 3 | describe --prov | freeze --ids user_id=1 --what
"""


@pytest.fixture(scope="module")
def cli_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with Service(CONFIG, tmp_path_factory.mktemp("state")) as service:
        yield service


@pytest.fixture
def client(cli_server: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Client]:
    """A client of the server that commands find in their environment."""
    monkeypatch.setenv("EMBERSHARD_TARGET", cli_server.target)
    with Client(cli_server.target) as client:
        yield client


def save(path: Path, array: object) -> Path:
    np.save(path, np.asarray(array, np.float32))
    return path


def test_describe_tells_what_the_server_tells_and_people_a_line_per_table(client: Client) -> None:
    told, described = answer("describe"), client.describe()
    for name in ("name", "fingerprint", "version", "engine", "world_size", "rank", "server_version"):
        assert told[name] == getattr(described, name)
    assert told["limits"] == {"message_bytes": 64 * 2**20, "ids_per_request": 2**20}
    for table, of_server in zip(told["tables"], described.tables, strict=True):
        assert (table.pop("pooling"), table["dtype"]) == ("sum" if table["name"] == "genre" else "none", "float32")
        assert [table.pop(name) for name in ("factor", "scale", "normalise", "vocabulary")] == ["none"] * 3 + [None]
        assert table == {name: getattr(of_server, name) for name in table}
    told = lines("describe")
    assert told[0].startswith("collection 'shop', fingerprint ")
    assert told[1].startswith("local engine on 1 rank, of which rank 0 answers")
    assert {line.split()[0] for line in told[3:6]} == {"user", "zip", "genre"}
    assert told[-1] == "limits: 64.0 MiB a message, 1,048,576 ids a request"


def test_lookup_answers_machines_the_numbers_of_the_client(client: Client) -> None:
    told = answer("lookup", "--ids", "user_id=3,5", "--ids", "user_id=3", "--keys", "zip=90210,K1A")
    rows = client.lookup({"user_id": [3, 5, 3], "zip": ["90210", "K1A"]})
    assert told["version"] == rows.version
    for feature, dim in (("user_id", 4), ("zip", 16)):
        vectors = rows[feature].tolist()
        assert told["features"][feature] == {"dtype": "float32", "dim": dim, "pooling": "none", "vectors": vectors}


def test_lookup_shows_people_a_line_per_id_and_the_ends_of_long_vectors(client: Client) -> None:
    version, head, *rows, long_head, long_row = lines("lookup", "--ids", "user_id=1,30", "--keys", "zip=a")
    assert version.startswith("version ")
    assert head == "user_id: 2 ids, 4 × float32"
    assert [(line.split()[0], len(line.split())) for line in rows] == [("1", 5), ("30", 5)]
    assert long_head == "zip: 1 id, 16 × float32"
    assert [(word, at) for at, word in enumerate(long_row.split()) if word in ('"a"', "…")] == [('"a"', 0), ("…", 4)]
    assert len(long_row.split()) == 8


def test_lookup_shows_people_a_line_per_example_where_vectors_are_pooled(client: Client) -> None:
    flags = ("--ids", "genres=1,2,3,4,5,6,7", "--lengths", "genres=6,0,1", "--provenance")
    _, head, *bags = lines("lookup", *flags)
    assert head == "genres: 3 examples, pooled by sum, 4 × float32"
    assert bags[0].startswith("  1, 2, 3, 4, … 2 more  untrained, untrained, untrained, untrained, … 2 more  ")
    assert bags[1].split() == ["(none)", "(none)", "0", "0", "0", "0"]
    assert bags[2].split()[:2] == ["7", "untrained"]
    _, head, *rows = lines("lookup", "--ids", "user_id=1,2", "--lengths", "user_id=2,0")  # not pooled
    assert [head, *(line.split()[0] for line in rows)] == ["user_id: 2 ids, 4 × float32", "1", "2"]


def test_provenance_is_told_in_words(client: Client) -> None:
    client.assign({"user_id": [11]}, values={"user_id": [ONE]})
    flags, words = ("--ids", "user_id=0,11,12", "--provenance"), ["padding", "own_row", "untrained"]
    assert answer("lookup", *flags)["features"]["user_id"]["provenance"] == words
    assert [line.split()[1] for line in lines("lookup", *flags)[2:]] == words
    assert lines("lookup", "--ids", "user_id=", "--provenance")[1:] == ["user_id: 0 ids, 4 × float32"]


def test_a_request_in_json_has_all_that_flags_have_and_strings_with_commas(client: Client, tmp_path: Path) -> None:
    request = json.dumps({"zip": ["a,b", "c"], "genres": {"ids": [1, 2, 3], "lengths": [1, 2], "weights": [1, 0.5, 2]}})
    (tmp_path / "request.json").write_text(request)
    told = answer("lookup", "--request", tmp_path / "request.json")
    rows = client.lookup({"zip": ["a,b", "c"], "genres": ([1, 2, 3], [1, 2], [1, 0.5, 2])})
    assert [part["vectors"] for part in told["features"].values()] == [vectors.tolist() for vectors in rows.values()]
    assert answer("lookup", "--request", "-", given=request) == told
    flags = ("--ids", "genres=1,2,3", "--lengths", "genres=1,2", "--weights", "genres=1,0.5,2")
    assert answer("lookup", *flags)["features"]["genres"] == told["features"]["genres"]


def test_gradients_from_a_file_move_rows_and_the_version_printed_has_them(client: Client, tmp_path: Path) -> None:
    values = save(tmp_path / "values.npy", [ONE, TWO])
    gradients = save(tmp_path / "gradients.npy", [[1, 0, 0, 0], [0, 0, 0, 0.5]])
    answer("update", "--ids", "user_id=21,22", "--values", values)
    (line,) = lines("update", "--ids", "user_id=21,22", "--gradients", gradients)
    told = answer("lookup", "--ids", "user_id=21,22", "--min-version", line.removeprefix("version "))
    assert told["features"]["user_id"]["vectors"] == [[0.0, 2.0, 3.0, 4.0], [5.0, 6.0, 7.0, 7.5]]


def test_an_update_in_json_changes_several_features_at_once(client: Client) -> None:
    part = {"ids": [31], "gradients": [[1.0, 0.0, 0.0, 0.0]]}
    before = client.lookup({"user_id": [31], "genres": [31]})
    version = answer("update", "--request", "-", given=json.dumps({"user_id": part, "genres": part}))["version"]
    after = client.lookup({"user_id": [31], "genres": [31]})
    assert version == after.version == before.version + 1
    assert all(np.array_equal(after[name], before[name] - np.float32(part["gradients"])) for name in before)


def test_a_number_that_json_does_not_have_is_null(client: Client) -> None:
    client.assign({"user_id": [41]}, values={"user_id": [[1e6, -1e6, 1, 0]]})
    told = answer("lookup", "--ids", "user_id=41", "--dtype", "float16")
    assert told["features"]["user_id"]["vectors"] == [[None, None, 1.0, 0.0]]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8"])
def test_a_lookup_says_of_which_dtype_its_vectors_were(client: Client, dtype: str) -> None:
    assert answer("lookup", "--ids", "user_id=3", "--dtype", dtype)["features"]["user_id"]["dtype"] == dtype
    assert lines("lookup", "--ids", "user_id=3", "--dtype", dtype)[1] == f"user_id: 1 id, 4 × {dtype}"


def test_snapshot_tells_version_path_and_size(client: Client) -> None:
    told = answer("snapshot")
    files = [path for path in Path(told["path"]).iterdir() if path.name != "manifest.json"]
    assert told["version"] == client.describe().version == int(Path(told["path"]).name)
    assert told["bytes"] == sum(path.stat().st_size for path in files)
    assert lines("snapshot") == [f"version {told['version']}", f"path {told['path']}", f"bytes {told['bytes']:,}"]


@pytest.mark.parametrize(("arguments", "given", "kind", "part"), ERRORS)
def test_an_error_is_one_message_and_status_1(client: Client, arguments: str, given: str, kind: str, part: str) -> None:
    people, machines = call(*arguments.split(), given=given), call(*arguments.split(), "--json", given=given)
    assert (people[:2], machines[:2]) == ((1, ""), (1, ""))
    (line,), error = people[2].splitlines(), json.loads(machines[2])["error"]
    assert (line.startswith("embershard: "), error["kind"]) == (True, kind)
    assert part in line
    assert part in error["message"]


def test_a_file_that_is_no_array_of_numbers_is_refused(client: Client, tmp_path: Path) -> None:
    whole = save(tmp_path / "whole.npy", [ONE]).read_bytes()
    np.save(tmp_path / "objects.npy", np.asarray([{"a": 1}]), allow_pickle=True)
    np.save(tmp_path / "complex.npy", np.asarray([[1j]]))
    np.savez(tmp_path / "archive.npz", np.ones(1))
    for name, data in (("cut.npy", whole[:-3]), ("header.npy", whole.replace(b"}", b" ")), ("empty.npy", b"")):
        (tmp_path / name).write_bytes(data)
    for path in tmp_path.iterdir():
        done = run("update", "--ids", "user_id=51", "--gradients", path)
        assert done.returncode == (0 if path.name == "whole.npy" else 1), path
        assert not done.returncode or done.stderr.startswith(f"embershard: {path}: "), path


@pytest.mark.parametrize("arguments", ["", *re.split(r" \| |\n", WRONG_USAGE.strip())])
def test_wrong_usage_is_told_with_the_flags_of_the_command_and_status_2(arguments: str) -> None:
    status, output, errors = call(*arguments.split())
    assert (status, output) == (2, "")
    command = arguments.partition(" ")[0]
    assert errors.startswith(f"usage: embershard {command if command != 'fly' else ''}")


def test_only_serve_and_commands_on_snapshots_need_what_the_server_has(client: Client, tmp_path: Path) -> None:
    values = save(tmp_path / "values.npy", [ONE])
    update, vectors = f"update --ids user_id=61 --values {values}", f"import {values} --feature genres"
    for command in ("lookup --ids user_id=1", update, vectors, "describe", "serve --help"):
        done = run(*command.split(), start=(sys.executable, "-c", AS_CLIENT))
        assert (done.returncode, done.stderr) == (0, "")
    assert lines("--version") == [f"embershard {embershard.__version__}"]
    drift, remap = "drift before after", "remap state --config new.toml --output new"
    for command in ("serve --config shop.toml", "export state f.npy --table user", "diff state state", drift, remap):
        done = run(*command.split(), start=(sys.executable, "-c", AS_CLIENT))
        assert (done.returncode, done.stdout) == (1, "")
        who = "the server" if "serve" in command else f"embershard {command.split()[0]}"
        assert done.stderr.startswith(f"embershard: {who} needs torch, fbgemm-gpu-cpu, pydantic")
        assert "pip install 'embershard[cpu]'" in done.stderr


def test_serve_becomes_the_server_so_that_signals_reach_it(tmp_path: Path) -> None:
    (tmp_path / "shop.toml").write_text(CONFIG)
    flags = ["--config", tmp_path / "shop.toml", "--listen", "127.0.0.1:0", "--data-dir", tmp_path]
    with subprocess.Popen([COMMAND, "serve", *flags], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        serves = next(line for line in process.stdout if line.startswith("rank 0 of 1 (local engine) serves "))
        assert answer("describe", "--target", serves.split()[-1])["name"] == "shop"
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=60)
    assert process.returncode == 0
    assert [path.name for path in (tmp_path / "snapshots").iterdir()] == [f"{0:012d}"]


def test_doctor_finds_that_the_local_engine_works_here() -> None:
    done = run("doctor", "--json")
    told = json.loads(done.stdout)
    assert (done.returncode, done.stderr) == (1 if told["status"] == "problem" else 0, "")
    assert {"ok"} == {finding["status"] for finding in told["findings"] if finding["name"] == "local engine"}
    assert all(finding["remedy"] for finding in told["findings"] if finding["status"] != "ok")


def test_ctrl_c_ends_a_command_in_silence_and_status_130(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "request")
    start = [COMMAND, "lookup", "--request", tmp_path / "request"]
    process = subprocess.Popen(start, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    with process, (tmp_path / "request").open("w"):  # opens when the command reads its request
        process.send_signal(signal.SIGINT)
        output = process.communicate(timeout=60)
    assert (process.returncode, *output) == (130, b"", b"")


def test_ctrl_c_while_the_command_line_is_imported_is_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    class Importing(ModuleType):
        def __getattr__(self, name: str) -> object:
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "embershard.cli", Importing("embershard.cli"))
    assert embershard_command.main() == 130


def test_a_reader_that_leaves_ends_a_command_in_silence(client: Client) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([COMMAND, "describe"], stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")
