"""Who may call what."""

from __future__ import annotations

from enum import IntEnum


class Role(IntEnum):
    """What a caller may do; each role may do what those before it may."""

    READ = 1
    """Look up, and ask what is served."""
    UPDATE = 2
    """Change rows, too."""
    ADMIN = 3
    """All of AdminService, too."""
