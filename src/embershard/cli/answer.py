"""What a command has to say, and what it may need for that."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embershard import doctor
from embershard.errors import InstallError

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command has to say."""

    document: dict[str, Any]
    """For machines: printed as one JSON document."""
    lines: Iterable[str]
    """For people, made only if they are printed."""
    status: int = 0
    """The exit status."""


def need_server_packages(who: str) -> None:
    """Raises InstallError unless the packages are there that only the server needs, and `who`."""
    if missing := [name for name, module in doctor.SERVER.items() if importlib.util.find_spec(module) is None]:
        raise InstallError(
            f"{who} needs {', '.join(missing)}: pip install 'embershard[cpu]', or 'embershard[gpu]' on a host "
            "with NVIDIA GPUs; `embershard doctor` tells more"
        )
