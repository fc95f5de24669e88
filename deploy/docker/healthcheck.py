"""The image's health check: ends with status 0 once the server says that lookups are answered, without curl."""

from __future__ import annotations

import os
import ssl
import sys
import urllib.request


def main() -> None:
    """Asks /readyz where the environment says that it is; a server that was given flags instead needs its own check."""
    port = os.environ["EMBERSHARD_METRICS_LISTEN"].rpartition(":")[2]
    scheme = "https" if os.environ.get("EMBERSHARD_TLS_CERT") else "http"
    # It asks itself: there is nobody in between, and the certificate names the service, not loopback.
    trusting = ssl.create_default_context()
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    try:
        urllib.request.urlopen(f"{scheme}://127.0.0.1:{port}/readyz", timeout=4, context=trusting).close()
    except OSError as error:
        sys.exit(f"not ready: {error}")


if __name__ == "__main__":
    main()
