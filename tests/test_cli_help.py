"""Every command explains itself."""

from __future__ import annotations

from argparse import ArgumentParser, _SubParsersAction

import pytest
from embershard_server.options import parser as server_parser
from support.command import call

from embershard.cli.parser import parser
from embershard.train.options import parser as job_parser

OWN = {"serve": server_parser, "train": job_parser}
"""Commands that become another program, which has the flags."""


def commands() -> dict[str, ArgumentParser]:
    """The commands whose flags are the command line's own."""
    (choices,) = (action.choices for action in parser()._actions if isinstance(action, _SubParsersAction))
    return {name: one for name, one in choices.items() if name not in OWN}


@pytest.mark.parametrize("name", [*OWN, *commands()])
def test_help_says_what_a_command_does_explains_every_flag_and_has_examples(name: str) -> None:
    one = OWN[name](f"embershard {name}") if name in OWN else commands()[name]
    shown = call(name, "--help")[1]
    assert shown.startswith(f"usage: embershard {name} ")
    assert one.description
    assert one.description in shown
    assert f"examples:\n  embershard {name}" in shown
    assert all(action.help for action in one._actions)
