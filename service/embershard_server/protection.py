"""How callers are known, and know to whom they talk, as the flags say."""

from __future__ import annotations

import logging
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from embershard.errors import ConfigError
from embershard.loopback import is_loopback
from embershard_server.access import Access
from embershard_server.address import check_plaintext
from embershard_server.tls import Certificates, certificates_of
from embershard_server.tokens import tokens_of

if TYPE_CHECKING:
    import argparse
    import ssl

logger = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Protection:
    """Of a rank's front end, and of its metrics."""

    certificates: Certificates | None
    """Without any it speaks plaintext."""
    access: Access | None
    """Without any whoever can connect may do all."""

    @property
    def https(self) -> ssl.SSLContext | None:
        """For metrics; None: plaintext."""
        return self.certificates.https_context() if self.certificates else None


PLAIN = Protection(certificates=None, access=None)
"""None at all."""


def protection_of(options: argparse.Namespace, addresses: dict[str, str]) -> Protection:
    """What the flags say; `addresses` is {flag: what it gave}, --listen among them.

    Raises:
        ConfigError: flags don't go together, a file can't be used, or others would hear what is said in plaintext.
    """
    certificates = certificates_of(options.tls_cert, options.tls_key, options.tls_client_ca)
    if certificates and options.plaintext:
        raise ConfigError("--plaintext and --tls-cert are both given: a front end speaks the one or the other")
    for flag, address in addresses.items():
        check_plaintext(address, flag=flag, encrypted=certificates is not None, allowed=options.plaintext)
    tokens = tokens_of(options.tokens, os.environ)
    if not (tokens or is_loopback(addresses["--listen"])):
        who = "whoever has a certificate of --tls-client-ca" if options.tls_client_ca else "whoever reaches it"
        logger.warning(
            "no tokens are given: %s may read, change and administer what %s serves", who, addresses["--listen"]
        )
    return Protection(certificates=certificates, access=Access(tokens, options.tokens) if tokens else None)
