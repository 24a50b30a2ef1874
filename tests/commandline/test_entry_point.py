import subprocess
import sys

import pytest

FAULTS = """
import resource, sys
import torch
from twinset.commandline.entry_point import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept = sys.argv[1] == "keep" and keep_freed_memory()
def use(times):
    for _ in range(times):
        torch.ones(2**24)  # 64 MiB

use(30)  # the heap grows until small things no longer come between
before = faults()
use(10)
print(int(kept), faults() - before)
"""


def _faults(how):
    done = subprocess.run(
        [sys.executable, "-c", FAULTS, how], capture_output=True, text=True, check=True
    )
    kept, faults = map(int, done.stdout.split())
    return kept, faults


def test_freed_memory_is_used_again_without_new_pages():
    kept, faults = _faults("keep")
    if not kept:
        pytest.skip("no glibc")
    _, usual = _faults("give back")
    assert usual > 10 * 500  # the control: at least every huge page of 10 tensors came anew
    assert faults < usual / 10
