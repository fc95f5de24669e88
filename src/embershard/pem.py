"""Certificates and keys in files, checked before gRPC is given them: it would only say later that nothing works."""

from __future__ import annotations

import ssl
from pathlib import Path
from typing import NamedTuple

from embershard.errors import InvalidInput
from embershard.small_file import read_small

_ENCRYPTED = (b"ENCRYPTED PRIVATE KEY", b"Proc-Type: 4,ENCRYPTED")


class Pair(NamedTuple):
    """A certificate and its key."""

    chain: bytes
    """PEM: the certificate, and those between it and the authority."""
    key: bytes
    """PEM."""
    context: ssl.SSLContext
    """Serves with them."""


def read_authorities(path: Path) -> bytes:
    """Certificates of authorities, PEM.

    Raises:
        InvalidInput: naming the file.
    """
    text = _read(path)
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(cadata=text.decode())
    except (ssl.SSLError, ValueError) as error:
        raise InvalidInput(f"{path}: has no certificate of an authority in PEM, or a damaged one") from error
    return text


def read_pair(certificate: Path, key: Path) -> Pair:
    """A chain of certificates, its owner's first, and the key of that one, which isn't encrypted; PEM.

    Raises:
        InvalidInput: naming the file; also where they don't belong together, or are being written just now.
    """
    chain, secret = _read(certificate), _read(key)
    if b"-----BEGIN CERTIFICATE-----" not in chain:
        raise InvalidInput(f"{certificate}: has no certificate in PEM (-----BEGIN CERTIFICATE-----)")
    if any(mark in secret for mark in _ENCRYPTED):
        raise InvalidInput(f"{key}: is encrypted, and nobody is there to give a passphrase; write it without one")
    if b"PRIVATE KEY-----" not in secret:
        raise InvalidInput(f"{key}: has no private key in PEM (-----BEGIN PRIVATE KEY-----)")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    try:
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, OSError, ValueError) as error:
        raise InvalidInput(
            f"{certificate} and {key}: are no certificate and its key, or one of them is damaged or only half written"
        ) from error
    if (chain, secret) != (_read(certificate), _read(key)):
        raise InvalidInput(f"{certificate} and {key}: are being written just now")
    return Pair(chain, secret, context)


def _read(path: Path) -> bytes:
    try:
        return read_small(path)
    except OSError as error:
        raise InvalidInput(f"{path}: can't be read: {error.strerror}") from error
