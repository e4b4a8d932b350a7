"""What is exempt from collection, in a process of its own: pytest's has exempted what it imported."""

import subprocess
import sys

import pytest

PROGRAM = """
import gc
from node.system.gc_tuning import left_out, running

if {before}:
    running()
with left_out():
    with left_out():
        assert gc.get_freeze_count() > 0
    assert gc.get_freeze_count() > 0
print(gc.get_freeze_count() > 0)
with left_out():
    pass
print(gc.get_freeze_count() > 0)
"""


@pytest.mark.parametrize(("before", "still"), [(False, "False\nFalse\n"), (True, "True\nTrue\n")])
def test_a_block_takes_back_what_it_exempted_unless_somebody_had_before(before: bool, still: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == still, done.stderr
