"""Commands that become another program: the same process, so that signals go straight to it."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from embershard import doctor
from embershard.cli.answer import need_packages


def serve(arguments: Sequence[str]) -> NoReturn:
    """Becomes the server.

    Raises:
        InstallError: its packages are missing.
    """
    from embershard_server.options import parser

    parser("embershard serve").parse_args(arguments)  # answers --help, and refuses wrong flags in this command's name
    need_packages("the server", doctor.SERVER)
    _become("embershard_server", arguments)


def train(arguments: Sequence[str]) -> NoReturn:
    """Becomes a training job.

    Raises:
        InstallError: its packages are missing.
    """
    from embershard.train.options import parser

    parser("embershard train").parse_args(arguments)
    need_packages("a training job", doctor.SERVER | doctor.TRAIN, "train,")
    _become("embershard.train", arguments)


def _become(module: str, arguments: Sequence[str]) -> NoReturn:
    os.execv(sys.executable, [sys.executable, "-m", module, *arguments])  # noqa: S606  # no shell is meant


BECOMING = {"serve": serve, "train": train}
"""{command: what it does}."""
