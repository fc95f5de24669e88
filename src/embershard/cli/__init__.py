"""The command line: `embershard COMMAND`; `online` and `offline` say which there are, beside those of `becoming`.

Light like the client: nothing here imports torch. This module is the edge, where errors become messages and exit
statuses:

    0    fine
    1    an error of `embershard.errors`, told on stderr; or `doctor` or `drift` found a problem, or `loadtest` failures
    2    wrong usage
    130  ended by Ctrl-C
    141  whoever read the output has left
"""

from __future__ import annotations

import io
import json
import os
import sys
from typing import TYPE_CHECKING

from embershard.cli.answer import INTERRUPTED, Answer
from embershard.cli.becoming import BECOMING
from embershard.cli.parser import parser
from embershard.errors import EmbershardError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main"]

NO_READER = 141
"""As a shell tells of SIGPIPE."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs one command; returns the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        if given and given[0] in BECOMING:
            BECOMING[given[0]](given[1:])
        options, unknown = parser().parse_known_args(given)
        if unknown:  # which the command's own usage answers, not that of all commands
            options.usage_error(f"unrecognized arguments: {' '.join(unknown)}")
        answer: Answer = options.run(options)
        _print(answer, as_json=options.json)
    except EmbershardError as error:
        _complain(error, as_json="--json" in given)
        return 1
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # What is still buffered has nowhere to go, and Python would complain of that when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NO_READER
    return answer.status


def _print(answer: Answer, *, as_json: bool) -> None:
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a terminal that lacks a character still gets its line
    for line in (json.dumps(answer.document, allow_nan=False),) if as_json else answer.lines:
        print(line)
    print(end="", flush=True)


def _complain(error: EmbershardError, *, as_json: bool) -> None:
    told = {"kind": type(error).__name__, "message": str(error)}
    if error.request_id:
        told["request_id"] = error.request_id
    text = f"embershard: {error}" + (f" [request_id {error.request_id}]" if error.request_id else "")
    print(json.dumps({"error": told}) if as_json else text, file=sys.stderr)
