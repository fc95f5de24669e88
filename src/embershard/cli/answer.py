"""What a command has to say, and what it may need for that."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from embershard.errors import InstallError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a command has to say."""

    document: dict[str, Any]
    """For machines: printed as one JSON document."""
    lines: Iterable[str]
    """For people, made only if they are printed."""
    status: int = 0
    """The exit status."""


def need_packages(who: str, packages: Mapping[str, str], extra: str = "") -> None:
    """Raises InstallError unless there are these packages, {package: module}, which not all need, but `who` does."""
    if missing := [name for name, module in packages.items() if importlib.util.find_spec(module) is None]:
        raise InstallError(
            f"{who} needs {', '.join(missing)}: pip install 'embershard[{extra}cpu]', or 'embershard[{extra}gpu]' on a "
            "host with NVIDIA GPUs; `embershard doctor` tells more"
        )
