"""How a client shows who it is, and knows whom it talks to: TLS, certificates and tokens."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import grpc.aio

from embershard.bearer import is_sendable
from embershard.environment import flag
from embershard.errors import InvalidInput
from embershard.loopback import is_loopback
from embershard.pem import read_authorities, read_pair

Metadata = tuple[tuple[str, str], ...]
"""What goes with a call, beside its messages."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Security:
    """TLS, the client's certificate for mutual TLS, and its token; files are PEM, read when a client is made.

        Client("embeddings.example:50051", security=Security(ca="ca.pem", token=token))

    A client that is given none does what the environment says (`from_environment`).

    Raises:
        InvalidInput: what doesn't go together, or a token that can't be sent.
    """

    tls: bool = False
    """Whether to speak TLS; `ca` and `certificate` say so, too. Without `ca`, authorities are the system's."""
    ca: str | Path | None = None
    """The authorities that the server's certificate must be of."""
    certificate: str | Path | None = None
    """The client's own certificate chain, for mutual TLS."""
    key: str | Path | None = None
    """The key of that."""
    token: str | None = field(default=None, repr=False)
    """Sent with each call, never in plaintext but to this machine itself."""
    server_name: str | None = None
    """In place of the target's name in the server's certificate, where it is reached by another."""

    def __post_init__(self) -> None:
        if (self.certificate is None) != (self.key is None):
            given, missing = ("key", "certificate") if self.certificate is None else ("certificate", "key")
            raise InvalidInput(f"the client's {given} is given without its {missing}: a certificate has a key")
        if self.server_name is not None and not self.encrypts:
            raise InvalidInput("a server_name is what a certificate says: give tls or ca, too")
        if self.token is not None and not is_sendable(self.token):
            raise InvalidInput("the token has characters that can't be sent, or none; it is ASCII without spaces")

    @classmethod
    def from_environment(cls, **given: Any) -> Security:
        """What the environment says; whatever is given, and isn't None, comes first.

        EMBERSHARD_TLS=1, EMBERSHARD_CA, EMBERSHARD_CLIENT_CERT, EMBERSHARD_CLIENT_KEY, EMBERSHARD_TOKEN or
        EMBERSHARD_TOKEN_FILE, EMBERSHARD_SERVER_NAME.

        Raises:
            InvalidInput: it says what can't be.
        """
        fields = {name: os.environ.get(f"EMBERSHARD_{variable}") or None for name, variable in _VARIABLES.items()}
        given = {name: value for name, value in given.items() if value is not None}
        if "token" not in given:
            fields["token"] = _token_of_environment()
        return cls(**{"tls": flag("EMBERSHARD_TLS"), **fields, **given})

    @property
    def encrypts(self) -> bool:
        """Whether it speaks TLS."""
        return self.tls or self.ca is not None or self.certificate is not None

    @property
    def metadata(self) -> Metadata:
        """What goes with each call."""
        return () if self.token is None else (("authorization", f"Bearer {self.token}"),)

    def channel(self, target: str, options: Sequence[tuple[str, Any]], *, aio: bool = False) -> Any:
        """A channel of gRPC, of either kind.

        Raises:
            InvalidInput: a file can't be used; or a token would go over a network in plaintext.
        """
        module = grpc.aio if aio else grpc
        if not self.encrypts:
            if self.token is not None:
                self._check_unheard(target)
                options = [*options, ("grpc.enable_http_proxy", 0)]
            return module.insecure_channel(target, options=options)
        if self.server_name is not None:
            options = [*options, ("grpc.ssl_target_name_override", self.server_name)]
        return module.secure_channel(target, self._credentials(), options=options)

    def _check_unheard(self, target: str) -> None:
        if not is_loopback(target):
            raise InvalidInput(
                f"{target}: the token would go there in plaintext, to be read by whoever is on the network: give the "
                "authority of the server's certificate (ca, --ca FILE, EMBERSHARD_CA), or tls (--tls, "
                "EMBERSHARD_TLS=1) where the system knows it"
            )

    def _credentials(self) -> grpc.ChannelCredentials:
        roots = None if self.ca is None else read_authorities(Path(self.ca))
        if self.certificate is None or self.key is None:
            return grpc.ssl_channel_credentials(roots)
        pair = read_pair(Path(self.certificate), Path(self.key))
        return grpc.ssl_channel_credentials(roots, pair.key, pair.chain)


def opened(
    target: str, options: Sequence[tuple[str, Any]], security: Security | None, *, aio: bool = False
) -> tuple[Any, Metadata]:
    """A channel as `security` says, or else the environment; and what goes with each call.

    Raises:
        InvalidInput: as `Security.channel` and `Security.from_environment`.
    """
    security = security or Security.from_environment()
    return security.channel(target, options, aio=aio), security.metadata


_VARIABLES: Mapping[str, str] = {
    "ca": "CA",
    "certificate": "CLIENT_CERT",
    "key": "CLIENT_KEY",
    "server_name": "SERVER_NAME",
}


def read_token(path: Path) -> str:
    """The token that a file has, alone; space around it doesn't count.

    Raises:
        InvalidInput: naming the file, and never what is in it.
    """
    try:
        token = path.read_text("ascii").strip()
    except OSError as error:
        raise InvalidInput(f"{path}: can't be read: {error.strerror}") from error
    except UnicodeDecodeError:
        token = ""
    if not is_sendable(token):
        raise InvalidInput(f"{path}: is no file of a token alone, ASCII without spaces") from None
    return token


def _token_of_environment() -> str | None:
    token, file = os.environ.get("EMBERSHARD_TOKEN"), os.environ.get("EMBERSHARD_TOKEN_FILE")
    if token and file:
        raise InvalidInput("EMBERSHARD_TOKEN and EMBERSHARD_TOKEN_FILE are both set: set one of them")
    return read_token(Path(file)) if file else token or None
