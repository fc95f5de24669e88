"""`embershard credentials`: an authority, certificates and tokens for trials."""

from __future__ import annotations

import ipaddress
import os
import re
import secrets
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from embershard.bearer import ROLES, digest_of
from embershard.cli import flags
from embershard.cli.answer import Answer, need_packages
from embershard.errors import InvalidInput

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Sequence

    from embershard.cli.flags import Command

CREDENTIALS: Final = """\
examples:
  embershard credentials secrets/
  embershard credentials secrets/ --host embeddings.example --host 10.0.0.7

For trials: who has ca.key can pretend to be the server, so that in production a certificate manager should keep it.
Writes ca.pem and ca.key (an authority of its own), server.pem and server.key (for localhost, 127.0.0.1, ::1 and each
--host), client.pem and client.key (mutual TLS), read.token, update.token and admin.token, and tokens.toml, which has
their SHA-256 alone. Only you may read them. Nothing that is there is overwritten.
With --json: {"folder": "secrets", "files": ["ca.pem", …], "hosts": ["localhost", …]}.
"""
_LASTS_DAYS: Final = 365
_AUTHORITY_LASTS_DAYS: Final = 3650
_LABEL: Final = "[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?"
_ALWAYS: Final = ("localhost", "127.0.0.1", "::1")


def add_credentials(command: Command) -> None:
    """Adds the command."""
    one = command(
        "credentials",
        credentials,
        "Writes certificates and tokens for trials.",
        CREDENTIALS,
    )
    one.add_argument("folder", type=flags.file, metavar="FOLDER", help="where they go; it is made if it isn't there")
    one.add_argument(
        "--host",
        action="append",
        default=[],
        metavar="NAME",
        help="another name or address by which clients reach the server; may be repeated",
    )


def credentials(options: Namespace) -> Answer:
    """All of them, in a folder."""
    need_packages("embershard credentials", {"cryptography": "cryptography"}, "server", server=False)
    hosts = list(dict.fromkeys([*_ALWAYS, *options.host]))
    files = {**_certificates(hosts), **_tokens()}
    _write(options.folder, files)
    return Answer(
        document={"folder": str(options.folder), "files": list(files), "hosts": hosts},
        lines=_next(options.folder, hosts, hosts[len(_ALWAYS) :]),
    )


def _next(folder: Path, hosts: Sequence[str], own: Sequence[str]) -> Iterator[str]:
    """What was made, and what to do with it."""
    yield f"{folder}: an authority, certificates for {', '.join(hosts)}, and a token for each role"
    yield "next:"
    listen = "0.0.0.0" if own else "127.0.0.1"  # noqa: S104  # what the reader may type
    yield f"  embershard serve --config shop.toml --listen {listen}:50051 \\"
    yield f"      --tls-cert {folder}/server.pem --tls-key {folder}/server.key --tokens {folder}/tokens.toml"
    target = f" --target {f'[{own[0]}]' if ':' in own[0] else own[0]}:50051" if own else ""
    yield f"  embershard describe{target} --ca {folder}/ca.pem --token-file {folder}/read.token"
    yield "mutual TLS, too:"
    yield f"  embershard serve … --tls-client-ca {folder}/ca.pem"
    yield f"  embershard describe … --client-cert {folder}/client.pem --client-key {folder}/client.key"


def _write(folder: Path, files: dict[str, bytes]) -> None:
    written: list[Path] = []
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if there := sorted(name for name in files if os.path.lexists(folder / name)):
            raise InvalidInput(f"{folder}: has {', '.join(there)} already, and was left as it is: give another folder")
        for name, data in files.items():
            handle = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            written.append(folder / name)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
    except OSError as error:
        for path in written:  # so that it can be tried again
            path.unlink()
        raise InvalidInput(f"{error.filename or folder}: can't be written: {error.strerror}") from error


def _tokens() -> dict[str, bytes]:
    """A random token for each role, and the file of their digests."""
    tokens = {role: secrets.token_hex(32) for role in ROLES}
    entries = [
        f'[[tokens]]\nname = "{role}"\nrole = "{role}"\n'
        f'sha256 = "{digest_of(token).hex()}"    # of what {role}.token has\n'
        for role, token in tokens.items()
    ]
    return {f"{role}.token": f"{token}\n".encode() for role, token in tokens.items()} | {
        "tokens.toml": "\n".join(entries).encode()
    }


def _certificates(hosts: Sequence[str]) -> dict[str, bytes]:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID

    key, name = ec.generate_private_key(ec.SECP256R1()), _name("embershard trial authority")
    authority = (
        _builder(name, name, key, days=_AUTHORITY_LASTS_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_key_usage(authority=True), critical=True)
    )
    files = _pair("ca", _signed(authority, key), key)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(key.public_key())
    for file, subject, names, purpose in (
        ("server", hosts[-1] if len(hosts) > len(_ALWAYS) else hosts[0], hosts, ExtendedKeyUsageOID.SERVER_AUTH),
        ("client", "embershard trial client", ["client"], ExtendedKeyUsageOID.CLIENT_AUTH),
    ):
        own, others = ec.generate_private_key(ec.SECP256R1()), [_general(one) for one in names]
        certificate = (
            _builder(_name(subject), name, own, days=_LASTS_DAYS)
            .add_extension(x509.SubjectAlternativeName(others), critical=False)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_key_usage(authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
            .add_extension(issuer, critical=False)
        )
        files |= _pair(file, _signed(certificate, key), own)
    return files


def _builder(subject: Any, issuer: Any, key: Any, *, days: int) -> Any:
    from cryptography import x509

    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder(subject_name=subject, issuer_name=issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks differ, and a certificate that isn't valid yet helps nobody.
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _signed(builder: Any, key: Any) -> Any:
    from cryptography.hazmat.primitives import hashes

    return builder.sign(key, hashes.SHA256())


def _pair(file: str, certificate: Any, key: Any) -> dict[str, bytes]:
    from cryptography.hazmat.primitives import serialization as to

    secret = key.private_bytes(to.Encoding.PEM, to.PrivateFormat.PKCS8, to.NoEncryption())
    return {f"{file}.pem": certificate.public_bytes(to.Encoding.PEM), f"{file}.key": secret}


def _key_usage(*, authority: bool) -> Any:
    from cryptography import x509

    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=authority,
        crl_sign=authority,
        encipher_only=False,
        decipher_only=False,
    )


def _name(common_name: str) -> Any:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, common_name[:64])])


def _general(host: str) -> Any:
    from cryptography import x509

    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(_dns_name(host))


def _dns_name(host: str) -> str:
    try:
        name = host.encode("idna").decode()
    except UnicodeError:
        name = ""
    if not re.fullmatch(rf"(\*\.)?{_LABEL}(\.{_LABEL})*", name):
        raise InvalidInput(f"--host {host!r}: is no name of a host, and no address: leave port and scheme out")
    return name
