"""The image's health check: ends with status 0 once the server says that lookups are answered, without curl."""

from __future__ import annotations

import os
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection

LONGEST_S = 4.0


def main() -> None:
    """Asks /readyz where the environment says that it is; a server that was given flags instead needs its own check."""
    port = int(os.environ["EMBERSHARD_METRICS_LISTEN"].rpartition(":")[2])
    connection = HTTPConnection("127.0.0.1", port, timeout=LONGEST_S)
    if os.environ.get("EMBERSHARD_TLS_CERT"):
        # It asks itself: there is nobody in between, and the certificate names the service, not loopback.
        trusting = ssl.create_default_context()
        trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
        connection = HTTPSConnection("127.0.0.1", port, timeout=LONGEST_S, context=trusting)
    try:
        connection.request("GET", "/readyz")
        answer = connection.getresponse()
    except (OSError, HTTPException) as error:
        sys.exit(f"not ready: {error}")
    if answer.status != 200:
        sys.exit(f"not ready: {answer.status} {answer.read().decode(errors='replace')}")


if __name__ == "__main__":
    main()
