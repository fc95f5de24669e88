"""Where the time of a call goes: a clock at the seams of the code."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

from clocks import WALL, Clock


@contextmanager
def clocked(seams: Mapping[str, tuple[Any, str]], clock: Clock = WALL) -> Iterator[dict[str, float]]:
    """{name: seconds spent so far in that function, given as owner and attribute}, while the block runs."""
    spent = dict.fromkeys(seams, 0.0)
    with ExitStack() as stack:
        for name, (owner, attribute) in seams.items():
            function = getattr(owner, attribute)

            def timed(*given: Any, name: str = name, function: Any = function, **named: Any) -> Any:
                start = clock()
                try:
                    return function(*given, **named)
                finally:
                    spent[name] += clock() - start

            setattr(owner, attribute, timed)
            stack.callback(setattr, owner, attribute, function)
        yield spent
