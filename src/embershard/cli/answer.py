"""What a command has to say, and what it may need for that."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from embershard.errors import InstallError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

INTERRUPTED: Final = 130
"""The exit status, as a shell tells of SIGINT."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command has to say."""

    document: dict[str, Any]
    """For machines: printed as one JSON document."""
    lines: Iterable[str]
    """For people, made only if they are printed."""
    status: int = 0
    """The exit status."""


def need_packages(who: str, packages: Mapping[str, str], extra: str = "", *, server: bool = True) -> None:
    """Raises InstallError unless there are these packages, {package: module}, which not all need, but `who` does.

    Those that the `server` needs come with an extra for each kind of host, before which `extra` may stand; others come
    with `extra` alone.
    """
    missing = [name for name, module in packages.items() if importlib.util.find_spec(module) is None]
    if missing and not server:
        raise InstallError(f"{who} needs {', '.join(missing)}: pip install 'embershard[{extra}]'")
    if missing:
        raise InstallError(
            f"{who} needs {', '.join(missing)}: pip install 'embershard[{extra}cpu]', or 'embershard[{extra}gpu]' on a "
            "host with NVIDIA GPUs; `embershard doctor` tells more"
        )
