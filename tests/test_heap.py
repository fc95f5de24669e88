"""Memory that is kept needn't be cleared again."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
from embershard import keep_freed_memory

if sys.argv[1] == "keep":
    keep_freed_memory()


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


for _ in range(20):  # two at a time, as an answer and what it is made of
    both = [bytes(3_000_000), bytes(3_000_001)]
    del both
begin = faults()
for _ in range(50):
    both = [bytes(3_000_000), bytes(3_000_001)]
    del both
print(faults() - begin)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have no mallopt")
def test_large_blocks_come_from_memory_that_was_kept() -> None:
    def faults(how: str) -> int:
        return int(subprocess.run([sys.executable, "-c", SCRIPT, how], capture_output=True, check=True).stdout)

    assert faults("keep") < faults("don't") // 10
