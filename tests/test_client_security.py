"""What a client needs to be trusted and to trust, from arguments, files and the environment; credentials for trials."""

from __future__ import annotations

import importlib.util
import pickle
import stat
from pathlib import Path
from typing import Any

import pytest
from support.command import refused, shown, told
from support.jobs import DLRM, collection, run_job, write_job
from support.service import Service

from embershard import AsyncClient, Client, InvalidInput, Security
from embershard.engine.world import SoloWorld
from embershard.errors import TrainingError

TOKEN = "Tr0ub4dor-and-three-correct-horses"
CONFIG = 'collection = { name = "c" }\ntables = [{ name = "user", rows = 10, dim = 4, features = ["user_id"] }]\n'


@pytest.mark.parametrize("target", ["10.0.0.7:50051", "embeddings.example:50051", "ipv4:127.0.0.1:1,10.0.0.7:1"])
@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_a_token_is_not_sent_to_others_in_plaintext(target: str, kind: Any) -> None:
    with pytest.raises(
        InvalidInput, match=r"the token would go there in plaintext.*--ca FILE, EMBERSHARD_CA"
    ) as caught:
        kind(target, security=Security(token=TOKEN))
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"certificate": "client.pem"}, "the client's certificate is given without its key"),
        ({"key": "client.key"}, "the client's key is given without its certificate"),
        ({"server_name": "x"}, "give tls or ca, too"),
        ({"token": f"{TOKEN}\n"}, "the token has characters that can't be sent"),
        ({"token": ""}, "the token has characters that can't be sent"),
    ],
)
def test_what_a_client_cannot_be_given(given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput, match=message) as caught:
        Security(**given)
    assert TOKEN not in str(caught.value)


def test_a_client_finds_its_security_in_the_environment(
    pki: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert Security.from_environment() == Security()
    for name, value in (("TLS", "1"), ("CA", pki / "ca.pem"), ("TOKEN", TOKEN), ("SERVER_NAME", "x")):
        monkeypatch.setenv(f"EMBERSHARD_{name}", str(value))
    found = Security.from_environment(server_name="y", token=None)
    assert found == Security(tls=True, ca=str(pki / "ca.pem"), token=TOKEN, server_name="y")
    assert TOKEN not in repr(found)
    assert pickle.loads(pickle.dumps(found)) == found
    (tmp_path / "token").write_text(f"  {TOKEN}\n")
    monkeypatch.setenv("EMBERSHARD_TOKEN_FILE", str(tmp_path / "token"))
    with pytest.raises(InvalidInput, match="EMBERSHARD_TOKEN and EMBERSHARD_TOKEN_FILE are both set"):
        Security.from_environment()
    monkeypatch.delenv("EMBERSHARD_TOKEN")
    assert Security.from_environment().token == TOKEN
    (tmp_path / "token").write_text(f"{TOKEN} and {TOKEN}")
    with pytest.raises(InvalidInput, match="is no file of a token alone") as caught:
        Security.from_environment()
    assert TOKEN not in str(caught.value)
    monkeypatch.setenv("EMBERSHARD_TLS", "maybe")
    with pytest.raises(InvalidInput, match="EMBERSHARD_TLS=maybe: is neither 1 nor 0"):
        Security.from_environment(token=TOKEN)


def test_a_client_names_files_that_it_cannot_use(pki: Path) -> None:
    for given, message in (
        ({"ca": pki / "garbage"}, "garbage: has no certificate of an authority"),
        ({"ca": pki / "gone"}, "gone: can't be read"),
        ({"certificate": pki / "a.pem", "key": pki / "b.key"}, "are no certificate and its key"),
    ):
        with pytest.raises(InvalidInput, match=message):
            Client("localhost:1", security=Security(**given))


def test_credentials_for_trials_serve_and_are_not_overwritten(tmp_path: Path) -> None:
    folder = tmp_path / "secrets"
    made = told("credentials", folder, "--host", "embeddings.example", "--host", "10.0.0.7")
    assert made["hosts"] == ["localhost", "127.0.0.1", "::1", "embeddings.example", "10.0.0.7"]
    assert sorted(path.name for path in folder.iterdir()) == sorted(made["files"])
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    before = {path: path.read_bytes() for path in folder.iterdir()}
    assert "has admin.token, ca.key" in refused("credentials", folder)
    assert {path: path.read_bytes() for path in folder.iterdir()} == before
    for name, host, listen in (("here", "localhost", "127.0.0.1"), ("others", "embeddings.example", "0.0.0.0")):
        lines = shown("credentials", tmp_path / name, "--host", host)
        (serve,) = (line for line in lines if "--config" in line)
        assert f"--listen {listen}:50051" in serve
        assert any("--tls-cert" in line for line in lines)
    for bad in ("a..b", "", "a.example:50051", "https://a.example", "10.0.0.0/8", "a\nb"):
        assert f"--host {bad!r}: is no name of a host" in refused("credentials", tmp_path / "bad", "--host", bad)
    assert not (tmp_path / "bad").exists()
    server = [
        "--tls-cert",
        folder / "server.pem",
        "--tls-key",
        folder / "server.key",
        "--tokens",
        folder / "tokens.toml",
    ]
    with Service(CONFIG, tmp_path / "state", flags=[*server, "--tls-client-ca", folder / "ca.pem"]) as service:
        client = [
            "--client-cert",
            folder / "client.pem",
            "--client-key",
            folder / "client.key",
            "--ca",
            folder / "ca.pem",
        ]
        asked = ["versions", "--target", service.target, *client, "--token-file"]
        assert told(*asked, folder / "admin.token")["versions"]
        assert "needs a token of role 'admin'" in refused(*asked, folder / "update.token")
        named = ["describe", "--target", service.target, *client, "--server-name", "embeddings.example", "--token-file"]
        assert told(*named, folder / "read.token")["name"] == "c"


def test_who_has_no_token_is_called_by_the_certificate_in_logs(tmp_path: Path) -> None:
    told("credentials", tmp_path)
    server = ["--tls-cert", tmp_path / "server.pem", "--tls-key", tmp_path / "server.key"]
    with Service(CONFIG, tmp_path / "state", flags=[*server, "--tls-client-ca", tmp_path / "ca.pem"]) as service:
        own = {"certificate": tmp_path / "client.pem", "key": tmp_path / "client.key"}
        with Client(service.target, security=Security(ca=tmp_path / "ca.pem", **own)) as client:
            client.list_versions()  # without tokens, a certificate is enough
        service.wait_said("certificate 'embershard trial client' calls ListVersions")


def test_a_job_publishes_with_the_token_of_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tokens.toml").write_text(f'[[tokens]]\nname = "job"\nrole = "admin"\ntoken = "{TOKEN}"\n')
    with Service(collection(), tmp_path / "state", flags=["--tokens", tmp_path / "tokens.toml"]) as service:
        publish = f'[publish]\ntarget = "{service.target}"\n'
        path = write_job(tmp_path, DLRM, tables=collection(), epochs=1, more=publish)
        with pytest.raises(TrainingError, match="the call has no token"):
            run_job(path, tmp_path / "refused", SoloWorld())
        monkeypatch.setenv("EMBERSHARD_TOKEN", TOKEN)
        run_job(path, tmp_path / "run", SoloWorld())
        with Client(service.target) as client:
            assert client.describe().published.publisher.startswith("run-run-")
        service.wait_said("job calls Publish")
    told = [file.read_bytes() for file in (tmp_path / "run").rglob("*") if file.is_file()]
    assert told
    assert not any(TOKEN.encode() in data for data in told)


def test_credentials_need_a_package_and_say_which(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    assert "needs cryptography: pip install 'embershard[server]'" in refused("credentials", tmp_path / "new")
    assert not (tmp_path / "new").exists()
