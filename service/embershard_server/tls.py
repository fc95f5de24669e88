"""The server's certificate and key, and the authority of its clients, read again whenever the files change."""

from __future__ import annotations

import logging
import ssl
import threading
from pathlib import Path
from typing import Any, NamedTuple

import grpc

from embershard.errors import ConfigError, InvalidInput
from embershard.pem import Pair, read_authorities, read_pair
from embershard_server.files import stamp_of

logger = logging.getLogger(__name__)


class _Read(NamedTuple):
    """What the files had."""

    pair: Pair
    authorities: bytes | None


class Certificates:
    """What the server shows to clients, and what theirs must be of; from any thread.

    Whoever connects after the files have changed meets what is in them then. Files that can't be used, such as a new
    certificate beside the old key, leave what was there before, and are told once; they are tried again for each
    connection, so that who renews them may write them in any order.
    """

    def __init__(self, *, certificate: Path, key: Path, client_ca: Path | None = None) -> None:
        """With `client_ca`, clients must have a certificate of this authority.

        Raises:
            ConfigError: a file can't be used.
        """
        self._certificate, self._key, self._client_ca = certificate, key, client_ca
        self._files = [path for path in (certificate, key, client_ca) if path is not None]
        self._lock = threading.Lock()
        self._stamps = [stamp_of(path) for path in self._files]
        self._problem = ""
        try:
            self._read = self._read_files()
        except InvalidInput as error:
            raise ConfigError(
                f"{error}; --tls-cert and --tls-key take a certificate chain and its key, --tls-client-ca the "
                "authority of the clients' certificates, all PEM (`embershard credentials` makes some for trials)"
            ) from error
        self._told = self._read

    @property
    def problem(self) -> str:
        """Why files, which have changed, can't be used; "": they can."""
        self._current()
        return self._problem

    @property
    def expires_s(self) -> float:
        """When the server's own certificate does, in seconds since 1970."""
        from cryptography import x509

        return x509.load_pem_x509_certificate(self._current().pair.chain).not_valid_after_utc.timestamp()

    def server_credentials(self) -> grpc.ServerCredentials:
        """For a gRPC server, which asks again at each handshake."""
        return grpc.dynamic_ssl_server_credentials(
            _configuration(self._read), self._renewal, require_client_authentication=self._client_ca is not None
        )

    def https_context(self) -> ssl.SSLContext:
        """For an HTTPS server with the same certificate, renewed likewise; it asks clients for none."""

        def renew(connection: ssl.SSLSocket | ssl.SSLObject, _name: str | None, _context: ssl.SSLContext) -> None:
            connection.context = self._current().pair.context

        context = self._current().pair.context
        context.sni_callback = renew
        return context

    def _renewal(self) -> Any:
        """What gRPC is to show from now on, if it is new."""
        read = self._current()
        if read is self._told:
            return None
        self._told = read
        return _configuration(read)

    def _current(self) -> _Read:
        with self._lock:
            stamps = [stamp_of(path) for path in self._files]
            if stamps == self._stamps and not self._problem:
                return self._read
            self._stamps = stamps
            try:
                self._read, problem = self._read_files(), ""
            except InvalidInput as error:
                problem = str(error)
            if problem and problem != self._problem:
                logger.error("files of TLS have changed and can't be used; what was there before stays: %s", problem)
            elif not problem:
                logger.info("files of TLS have changed, and new connections meet what is in them: %s", self._files[0])
            self._problem = problem
            return self._read

    def _read_files(self) -> _Read:
        authorities = None if self._client_ca is None else read_authorities(self._client_ca)
        return _Read(read_pair(self._certificate, self._key), authorities)


def certificates_of(certificate: Path | None, key: Path | None, client_ca: Path | None) -> Certificates | None:
    """Those that the flags name; None: plaintext.

    Raises:
        ConfigError: a flag is missing, or a file can't be used.
    """
    given = {"--tls-cert": certificate, "--tls-key": key}
    missing = " and ".join(flag for flag, path in given.items() if path is None)
    if certificate is not None and key is not None:
        return Certificates(certificate=certificate, key=key, client_ca=client_ca)
    for flag, path in (given | {"--tls-client-ca": client_ca}).items():
        if path is not None:
            raise ConfigError(f"{flag} {path}: give {missing}, too: TLS needs a certificate and its key")
    return None


def _configuration(read: _Read) -> Any:
    return grpc.ssl_server_certificate_configuration([(read.pair.key, read.pair.chain)], read.authorities)
