"""What a server refuses before anybody connects: plaintext to others, files that don't fit, weak tokens."""

from __future__ import annotations

import http.client
import http.server
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from embershard_server import allowance as module
from embershard_server.__main__ import main
from embershard_server.address import check_plaintext
from embershard_server.allowance import Allowance
from embershard_server.options import parser
from embershard_server.tls import Certificates, certificates_of
from embershard_server.tokens import load_tokens, tokens_of
from support.command import call
from support.service import Service

from embershard import Client, ConfigError, Overloaded
from embershard.loopback import is_loopback

TOKEN = "Tr0ub4dor-and-three-correct-horses"
CONFIG = 'collection = { name = "c" }\ntables = [{ name = "user", rows = 10, dim = 4, features = ["user_id"] }]\n'

# Plaintext.


@pytest.mark.parametrize(
    ("address", "alone"),
    [
        ("127.0.0.1:50051", True),
        ("127.9.9.9:0", True),
        ("[::1]:50051", True),
        ("[::ffff:127.0.0.1]:50051", True),
        ("localhost:50051", True),
        ("LOCALHOST:50051", True),
        ("unix:/run/embershard.sock", True),
        ("unix-abstract:embershard", True),
        ("dns:///localhost:50051", True),
        ("dns:localhost:50051", True),
        ("dns://8.8.8.8/127.0.0.1:50051", True),
        ("ipv4:127.0.0.1:50051", True),
        ("ipv4:127.0.0.1:50051,127.0.0.2:50051", True),
        ("ipv6:[::1]:50051", True),
        ("ipv6:%5B::1%5D:50051", True),
        ("ipv4:127.0.0.1:50051,10.0.0.1:50051", False),
        ("0.0.0.0:50051", False),
        ("[::]:50051", False),
        ("10.0.0.7:50051", False),
        ("embeddings.example:50051", False),
        ("localhost.example:50051", False),
        ("127.0.0.1.example:50051", False),
        ("dns:///embeddings.example:50051", False),
        ("xds:///localhost:50051", False),
        ("128.0.0.1:50051", False),
        ("", False),
    ],
)
def test_an_address_is_this_machine_alone_or_not(address: str, alone: bool) -> None:
    assert is_loopback(address) is alone


def test_the_server_speaks_plaintext_to_others_only_when_it_is_asked_to(tmp_path: Path, capsys: Any) -> None:
    (tmp_path / "c.toml").write_text(CONFIG)
    flags = ["--config", str(tmp_path / "c.toml"), "--data-dir", str(tmp_path / "state")]
    assert main([*flags, "--listen", "0.0.0.0:0"]) == 2
    assert "--listen 0.0.0.0:0: others reach it" in (said := capsys.readouterr().err)
    assert "give --tls-cert and --tls-key" in said
    assert "--plaintext" in said
    with Service(CONFIG, tmp_path, listen="0.0.0.0:0", flags=["--plaintext"]) as service:
        port = service.target.rpartition(":")[2]
        with Client(f"127.0.0.1:{port}") as client:
            assert client.describe().name == "c"
        service.wait_said("no tokens are given: whoever reaches it may read, change and administer")


def test_plaintext_is_allowed_by_name_or_where_nobody_else_hears_it() -> None:
    for address, encrypted, allowed in (("127.0.0.1:1", 0, 0), ("0.0.0.0:1", 1, 0), ("0.0.0.0:1", 0, 1)):
        check_plaintext(address, flag="--metrics-listen", encrypted=bool(encrypted), allowed=bool(allowed))
    with pytest.raises(ConfigError, match=r"^--metrics-listen"):
        check_plaintext("0.0.0.0:1", flag="--metrics-listen", encrypted=False, allowed=False)


# Flags and files of the server.


@pytest.mark.parametrize(
    ("cert", "key", "ca", "message"),
    [
        ("a.pem", None, None, "--tls-cert .*a.pem: give --tls-key, too"),
        (None, "a.key", None, "--tls-key .*a.key: give --tls-cert, too"),
        (None, None, "ca.pem", "--tls-client-ca .*ca.pem: give --tls-cert and --tls-key, too"),
        ("gone", "a.key", None, "gone: can't be read: No such file.*--tls-cert and --tls-key take"),
        ("a.pem", "gone", None, "gone: can't be read"),
        ("garbage", "a.key", None, "garbage: has no certificate in PEM"),
        ("a.key", "a.pem", None, "a.key: has no certificate in PEM"),
        ("a.pem", "garbage", None, "garbage: has no private key in PEM"),
        ("a.pem", "b.key", None, "a.pem and .*b.key: are no certificate and its key"),
        ("a.pem", "encrypted.key", None, "encrypted.key: is encrypted"),
        ("a.pem", "a.key", "garbage", "garbage: has no certificate of an authority"),
        ("a.pem", "a.key", "a.key", "a.key: has no certificate of an authority"),
    ],
)
def test_files_that_do_not_belong_together_are_named(
    pki: Path, cert: str | None, key: str | None, ca: str | None, message: str
) -> None:
    files = [None if name is None else pki / name for name in (cert, key, ca)]
    with pytest.raises(ConfigError, match=message):
        certificates_of(*files)


def test_https_has_the_same_certificate_and_renews_it(pki: Path, tmp_path: Path) -> None:
    certificate, key = tmp_path / "tls.pem", tmp_path / "tls.key"

    def show(name: str) -> int:
        certificate.write_bytes((pki / f"{name}.pem").read_bytes())
        key.write_bytes((pki / f"{name}.key").read_bytes())
        return x509.load_pem_x509_certificate(certificate.read_bytes()).serial_number

    def met() -> int:
        context = ssl.create_default_context(cafile=str(pki / "ca.pem"))
        connection = http.client.HTTPSConnection("127.0.0.1", server.server_port, context=context)
        connection.connect()
        shown = connection.sock.getpeercert()
        connection.close()
        return int(shown["serialNumber"], 16)

    first = show("a")
    made = Certificates(certificate=certificate, key=key, client_ca=pki / "ca.pem")
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler) as server:
        server.RequestHandlerClass.log_message = lambda *_: None  # type: ignore[method-assign]
        server.socket = made.https_context().wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            assert met() == first
            second = show("b")
            assert met() == second != first
            key.write_bytes(b"garbage")
            assert met() == second
        finally:
            server.shutdown()
            thread.join()


# Tokens in files and variables.


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "tokens.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "tokens: this key is required"),
        ("tokens = []", "tokens: .*at least 1 item"),
        (f'tokens = ["{TOKEN}"]', r"tokens\[0\]: must be a table of keys"),
        (f'[[tokens]]\nname = "a"\nrole = "read"\ntoken = "{TOKEN}"\nmore = 1', r"tokens\[0\] 'a' more: unknown key"),
        (
            f'[[tokens]]\nname = "a"\nrole = "root"\ntoken = "{TOKEN}"',
            r"tokens\[0\] 'a' role: .*'read', 'update' or",
        ),
        (f'[[tokens]]\nname = "a"\ntoken = "{TOKEN}"', r"tokens\[0\] 'a' role: this key is required"),
        (f'[[tokens]]\nrole = "read"\ntoken = "{TOKEN}"', r"tokens\[0\] name: this key is required"),
        ('[[tokens]]\nname = "a"\nrole = "read"', "give token or sha256: one of the two"),
        (
            f'[[tokens]]\nname = "a"\nrole = "read"\ntoken = "{TOKEN[:15]}"',
            r"'a'.*easily guessed",
        ),
        ('[[tokens]]\nname = "a"\nrole = "read"\ntoken = "ababababababababab"', "'a'.*easily guessed"),
        (f'[[tokens]]\nname = "a"\nrole = "read"\ntoken = "{TOKEN} {TOKEN}"', "'a'.*characters that can't be sent"),
        (f'[[tokens]]\nname = "a"\nrole = "read"\nsha256 = "{TOKEN}"', "'a'.*sha256 is not of 64 hexadecimal digits"),
        (f'[[tokens]]\nname = "a"\nrole = "read"\ntoken = ["{TOKEN}"]', r"'a' token: .*valid string"),
        (
            f'[[tokens]]\nname = "a"\nrole = "read"\ntoken = "{TOKEN}"\ncalls = 0',
            "'a' calls: .*greater than",
        ),
        (f'[[tokens]]\nname = "a"\nrole = "read"\ntoken = "{TOKEN}"\n' * 2, "2 tokens have the name 'a'"),
        (
            "".join(f'[[tokens]]\nname = "{name}"\nrole = "read"\ntoken = "{TOKEN}"\n' for name in "ab"),
            "'a' and 'b' have the same token",
        ),
        (f"[[tokens]]\ntoken = {TOKEN}", "is not valid TOML"),
        (f'[[tokens]]\ntoken = "{TOKEN}\n', "is not valid TOML"),
    ],
)
def test_a_file_of_tokens_that_cannot_be_used_is_explained_without_telling_tokens(
    tmp_path: Path, text: str, message: str
) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_tokens(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert TOKEN[:15] not in "".join(map(str, (caught.value, repr(caught.value), caught.value.__cause__)))


def test_tokens_come_from_a_file_or_the_environment_and_show_themselves_nowhere(tmp_path: Path) -> None:
    path = written(tmp_path, f'[[tokens]]\nname = "ranking"\nrole = "read"\ntoken = "{TOKEN}"\ncalls = 5')
    environment = {"EMBERSHARD_UPDATE_TOKEN": f"{TOKEN}-update", "EMBERSHARD_READ_TOKEN": ""}
    (of_file,), (of_environment,) = tokens_of(path, {}), tokens_of(None, environment)
    assert (of_file.name, of_file.role, of_file.calls) == ("ranking", "read", 5)
    assert (of_environment.name, of_environment.role) == ("update", "update")
    assert tokens_of(None, {}) == []
    digest = written(tmp_path, f'[[tokens]]\nname = "a"\nrole = "read"\nsha256 = "{of_file.digest.hex().upper()}"')
    assert load_tokens(digest)[0].digest == of_file.digest
    with pytest.raises(ConfigError, match=r"--tokens .* and EMBERSHARD_UPDATE_TOKEN are both given"):
        tokens_of(path, environment)
    with pytest.raises(ConfigError, match=r"^EMBERSHARD_READ_TOKEN: .*easily guessed") as caught:
        tokens_of(None, {"EMBERSHARD_READ_TOKEN": TOKEN[:9]})
    assert TOKEN[:9] not in str(caught.value)
    assert TOKEN not in repr([of_file, of_environment])


def test_help_tells_no_secret_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("TOKEN", "READ_TOKEN", "UPDATE_TOKEN", "ADMIN_TOKEN"):
        monkeypatch.setenv(f"EMBERSHARD_{name}", TOKEN)
    assert TOKEN not in parser("embershard serve").format_help() + "\n".join(shown_help("lookup", "train", "publish"))


def shown_help(*commands: str) -> list[str]:
    return [call(command, "--help")[1] for command in commands]


# Limits.


def test_ids_of_an_identity_come_back_with_time(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: now[0])
    allowance = Allowance("a")
    allowance.spend(10**12)  # no bound
    allowance.limit(None, 100)
    allowance.spend(60)
    allowance.spend(140)  # what is larger than what is left goes through whole
    with pytest.raises(Overloaded) as caught:
        allowance.spend(1)
    assert caught.value.retry_after_s == 1.0
    now[0] += 1.01
    allowance.spend(1)
    now[0] += 1_000  # no more than a second's is saved
    allowance.spend(100)
    with pytest.raises(Overloaded):
        allowance.spend(1)
