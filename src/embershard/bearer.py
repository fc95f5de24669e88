"""Bearer tokens and their roles, as clients and servers both know them."""

from __future__ import annotations

import hashlib
import re
from typing import Final

ROLES: Final = ("read", "update", "admin")
"""What a token lets its callers do; each role may do what those before it may."""


def is_sendable(token: str) -> bool:
    """Whether it can be in a header: ASCII without spaces, and not empty."""
    return re.fullmatch(r"[!-~]+", token) is not None


def digest_of(token: str) -> bytes:
    """What is kept of a token, and compared: its SHA-256."""
    return hashlib.sha256(token.encode()).digest()
