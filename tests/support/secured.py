"""A service that speaks mutual TLS and wants tokens, and all that belongs and doesn't belong to it."""

from __future__ import annotations

import secrets
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import trustme
from cryptography import x509

from embershard import Security
from support.service import Service

CONFIG = """
collection = { name = "secured" }
tables = [{ name = "user", rows = 10_000, dim = 4, features = ["user_id"] }]
"""
ROLES = ("read", "update", "admin")


class Secured:
    """Files of a service and its clients; the files of the server may be changed while it runs."""

    def __init__(self, folder: Path, ranks: int) -> None:
        self.folder, self.authority, self.other = folder, trustme.CA(), trustme.CA()
        self.tokens = {role: secrets.token_urlsafe(24) for role in ROLES} | {
            name: secrets.token_hex(16) for name in ("few_calls", "few_ids", "wrong")
        }
        self.told: list[str] = []
        """All that clients were told."""
        self.authority.cert_pem.write_to_path(folder / "ca.pem")
        self.other.cert_pem.write_to_path(folder / "other.pem")
        self.show(self.issue(self.authority))
        for name, authority, expired in (
            ("client", self.authority, False),
            ("foreign", self.other, False),
            ("expired", self.authority, True),
        ):
            _write(folder / f"{name}.pem", folder / f"{name}.key", self.issue(authority, "client", expired=expired))
        self.write_tokens(self.tokens)
        for name, token in self.tokens.items():
            (folder / f"{name}.token").write_text(f"{token}\n")
        flags: list[str | Path] = ["--tls-cert", folder / "server.pem", "--tls-key", folder / "server.key"]
        flags += ["--tls-client-ca", folder / "ca.pem", "--tokens", folder / "tokens.toml"]
        self.service = Service(CONFIG, folder / "state", ranks=ranks, flags=flags)

    def issue(self, authority: trustme.CA, *names: str, expired: bool = False) -> trustme.LeafCert:
        """A certificate, of a server on this machine unless it is told whose."""
        now = datetime.now(UTC)
        begin, end = (now - timedelta(days=9), now - timedelta(days=1)) if expired else (None, None)
        return authority.issue_cert(*(names or ("localhost", "127.0.0.1")), not_before=begin, not_after=end)

    def show(self, certificate: trustme.LeafCert) -> int:
        """Has the server show a certificate from now on; returns its serial number."""
        _write(self.folder / "server.pem", self.folder / "server.key", certificate)
        return x509.load_pem_x509_certificate(certificate.cert_chain_pems[0].bytes()).serial_number

    def write_tokens(self, tokens: dict[str, str]) -> None:
        """What the server's file has; a wrong one isn't in it."""
        limits = {"few_calls": "calls = 2", "few_ids": "ids_per_s = 100"}
        entries = [
            f'[[tokens]]\nname = "{name}"\nrole = "{name if name in ROLES else "read"}"\ntoken = "{token}"\n'
            + limits.get(name, "")
            for name, token in tokens.items()
            if name != "wrong"
        ]
        put(self.folder / "tokens.toml", "\n".join(entries).encode())

    def security(self, token: str | None = "admin", **changes: Any) -> Security:
        """What belongs to the service, with the token of this name, but for what is changed."""
        right = Security(
            ca=self.folder / "ca.pem",
            certificate=self.folder / "client.pem",
            key=self.folder / "client.key",
            token=self.tokens[token] if token else None,
        )
        return replace(right, **changes)

    def of_client(self, name: str) -> dict[str, Path]:
        """The certificate of a client."""
        return {"certificate": self.folder / f"{name}.pem", "key": self.folder / f"{name}.key"}

    @property
    def address(self) -> str:
        """Of the last rank."""
        return self.service.addresses[self.service.size - 1]

    def raw(self) -> grpc.Channel:
        """A connection that sends no token by itself."""
        channel: grpc.Channel = self.security(None).channel(self.address, [])
        return channel

    def metadata(self, token: str | None) -> tuple[tuple[str, str], ...]:
        return (("authorization", f"Bearer {self.tokens[token]}"),) if token else ()


def _write(chain: Path, key: Path, certificate: trustme.LeafCert) -> None:
    put(chain, b"".join(pem.bytes() for pem in certificate.cert_chain_pems))
    put(key, certificate.private_key_pem.bytes())


def put(path: Path, data: bytes) -> None:
    """Has a file whole at once, as whoever renews them should: nobody meets half of it."""
    fresh = path.with_name(f"{path.name}.new")
    fresh.write_bytes(data)
    fresh.replace(path)
