"""Whether calls are traced, which OpenTelemetry's own environment variables say."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING

from embershard.errors import ConfigError, InstallError

if TYPE_CHECKING:
    from embershard_server.spans import Tracing

logger = logging.getLogger(__name__)

ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")
"""Variables that have calls traced."""


def tracing(rank: int) -> Tracing | None:
    """What traces this rank's calls, if they are to be.

    Raises:
        ConfigError: OpenTelemetry's variables say what can't be.
        InstallError: they are, and a package is missing.
    """
    asked = [name for name in ENDPOINTS if os.environ.get(name)]
    if not asked or os.environ.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return None
    try:
        from embershard_server.spans import Tracing
    except ImportError as error:
        raise InstallError(
            f"{asked[0]} asks for traces, and {error.name} isn't installed: pip install 'embershard[tracing]', or "
            "unset it"
        ) from error
    logger.info("traces calls, to what %s says", asked[0])
    try:
        return Tracing(rank)
    except Exception as error:  # whatever the SDK says of a variable
        raise ConfigError(f"OpenTelemetry's environment variables (OTEL_…) can't be used: {error}") from error
