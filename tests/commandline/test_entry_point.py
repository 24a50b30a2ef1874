import os
import subprocess
import sys

import pytest

from tests.helpers.commands import run_python
from twinset.commandline.entry_point import WAITING, wait_briefly

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


LEFT = """
import os, sys
read, write = os.pipe()
os.close(read)
os.dup2(write, 1)
import cli
sys.exit(cli.main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", [("plan", "--help"), ("models",), ("compare", "--help")])
def test_a_reader_that_leaves_is_no_error(command):
    done = run_python("-c", LEFT, *command)
    assert (done.returncode, done.stderr) == (1, "")


MISSING = """
import sys
import cli
code = cli.main([*sys.argv[1].split(), "no.csv"])
sys.exit(code if "torch" not in sys.modules else "torch was waited for")
"""


@pytest.mark.parametrize(
    "command", ["generate", "finetune", "plan", "evaluate run --train", "audit run --members"]
)
def test_a_file_that_is_not_there_is_refused_before_torch_is_imported(command):
    done = run_python("-c", MISSING, command)
    assert (done.returncode, done.stderr) == (2, "error: no.csv: no such file; check the path\n")


def test_threads_wait_briefly_unless_the_environment_has_its_own_way(monkeypatch):
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)  # as the command line set it before
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    wait_briefly()
    assert not WAITING.keys() & os.environ.keys()
    monkeypatch.delenv("OMP_WAIT_POLICY")
    wait_briefly()
    assert WAITING.items() <= os.environ.items()
