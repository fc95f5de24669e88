"""Yes and no, as environment variables say them."""

from __future__ import annotations

import os

from embershard.errors import InvalidInput

_YES, _NO = ("1", "true", "yes", "on"), ("", "0", "false", "no", "off")


def flag(variable: str) -> bool:
    """Whether a variable says yes; without it, no.

    Raises:
        InvalidInput: it says neither.
    """
    text = os.environ.get(variable, "").lower()
    if text not in (*_YES, *_NO):
        raise InvalidInput(f"{variable}={text}: is neither {_YES[0]} nor {_NO[1]}")
    return text in _YES
