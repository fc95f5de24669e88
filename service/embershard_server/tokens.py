"""Bearer tokens, as a file or the environment tells them; nothing that is said of one says what it is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass

from embershard.bearer import ROLES, digest_of, is_sendable
from embershard.config.checking import checked, parse_toml
from embershard.config.specs import CLOSED, Name
from embershard.errors import ConfigError
from embershard.small_file import read_small

SHORTEST, FEWEST = 16, 8
"""Characters of a token, and how many of them must differ."""
VARIABLES = {role: f"EMBERSHARD_{role.upper()}_TOKEN" for role in ROLES}
"""{role: the variable that may have its token}."""

_Count = Annotated[int, Field(strict=True, ge=1, le=2**62)]


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class TokenSpec:
    """Who may call: by a token, or by its SHA-256."""

    name: Name
    """The caller's identity, in logs and metrics."""
    role: Literal["read", "update", "admin"]
    """What the caller may do; each role may do what those before it may."""
    token: Annotated[str, Field(strict=True)] | None = field(default=None, repr=False)
    """Itself; or else its sha256."""
    sha256: Annotated[str, Field(strict=True)] | None = field(default=None, repr=False)
    """64 hexadecimal digits, of the token's characters."""
    calls: _Count | None = None
    """Most calls at once on a front end, over all connections."""
    ids_per_s: _Count | None = None
    """Most ids of lookups and updates a second on a front end; a second's may come at once."""

    def __post_init__(self) -> None:
        if (self.token is None) == (self.sha256 is None):
            raise ValueError("give token or sha256: one of the two")
        if self.token is not None:
            _check_strength(self.token)
        if self.sha256 is not None and not re.fullmatch(r"[0-9A-Fa-f]{64}", self.sha256):
            raise ValueError("sha256 is not of 64 hexadecimal digits, as `printf %s TOKEN | sha256sum` prints them")

    @property
    def digest(self) -> bytes:
        """The SHA-256 of the token."""
        return bytes.fromhex(self.sha256) if self.sha256 is not None else digest_of(self.token or "")


@dataclass(frozen=True, kw_only=True, config=CLOSED)
class TokenFile:
    """All who may call."""

    tokens: Annotated[list[TokenSpec], Field(min_length=1)]
    """At least one: a file without any isn't meant to let everybody in."""

    def __post_init__(self) -> None:
        for name, count in Counter(spec.name for spec in self.tokens).items():
            if count > 1:
                raise ValueError(f"{count} tokens have the name {name!r}; each needs one of its own")
        owners: dict[bytes, str] = {}
        for spec in self.tokens:
            if (other := owners.setdefault(spec.digest, spec.name)) != spec.name:
                raise ValueError(f"{other!r} and {spec.name!r} have the same token; each needs one of its own")


def load_tokens(path: Path) -> list[TokenSpec]:
    """Those of a TOML file.

    Raises:
        ConfigError: naming file and key, and no token.
    """
    try:
        data = parse_toml(read_small(path), source=str(path))
    except OSError as error:
        raise ConfigError(f"{path}: can't be read: {error.strerror}") from error
    return checked(TokenFile, data, source=str(path), places={"tokens": TokenSpec}, secret=True).tokens


def tokens_of_environment(environment: Mapping[str, str]) -> list[TokenSpec]:
    """Those of EMBERSHARD_READ_TOKEN, EMBERSHARD_UPDATE_TOKEN and EMBERSHARD_ADMIN_TOKEN, named by their roles.

    Raises:
        ConfigError: naming the variable, and no token.
    """
    tokens = [
        {"name": role, "role": role, "token": environment[variable]}
        for role, variable in VARIABLES.items()
        if environment.get(variable)
    ]
    if not tokens:
        return []
    source = ", ".join(VARIABLES[token["role"]] for token in tokens)
    return checked(TokenFile, {"tokens": tokens}, source=source, places={"tokens": TokenSpec}, secret=True).tokens


def tokens_of(path: Path | None, environment: Mapping[str, str]) -> list[TokenSpec]:
    """Those of the file if one is given, or else of the environment; none: whoever can connect may do all.

    Raises:
        ConfigError: both have some, or what there is can't be used.
    """
    of_environment = tokens_of_environment(environment)
    if path is None:
        return of_environment
    if of_environment:
        names = ", ".join(VARIABLES[spec.role] for spec in of_environment)
        raise ConfigError(f"--tokens {path} and {names} are both given: put all tokens into the file, or leave it out")
    return load_tokens(path)


def _check_strength(token: str) -> None:
    if len(token) < SHORTEST or len({*token}) < FEWEST:
        raise ValueError(
            f"the token is easily guessed: it has fewer than {SHORTEST} characters, or fewer than {FEWEST} different "
            "ones; `openssl rand -hex 32` makes one"
        )
    if not is_sendable(token):
        raise ValueError("the token has characters that can't be sent; it is ASCII without spaces")
