"""How a command begins and ends, and how options are read and proposed."""

import os
import shlex

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.commands import run_python
from tests.helpers.refusals import refusal
from twinset.commandline.entry_point import WAITING, flag_value, wait_briefly, with_flags
from twinset.commandline.flags import read_bins, read_labels
from twinset.table.labels import proposal

FAULTS = """
import resource, sys
import numpy
from twinset.commandline.entry_point import keep_freed_memory

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

kept = sys.argv[1] == "keep" and keep_freed_memory()
def use(times):
    for _ in range(times):
        numpy.ones(2**23)  # 64 MiB

use(30)  # the heap grows until small things no longer come between
before = faults()
use(10)
print(int(kept), faults() - before)
"""


def test_freed_memory_is_used_again_without_new_pages():
    kept, faults = map(int, run_python("-c", FAULTS, "keep").stdout.split())
    if not kept:
        pytest.skip("no glibc")
    _, usual = map(int, run_python("-c", FAULTS, "give back").stdout.split())
    assert usual > 10 * 30  # the control: at least every huge page of 10 arrays is new
    assert faults < usual / 10


LEFT = """
import os, sys
read, write = os.pipe()
os.close(read)
os.dup2(write, 1)
from twinset.commandline.app import main
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", [("plan", "--help"), ("models",)])
def test_a_reader_that_leaves_is_no_error(command):
    done = run_python("-c", LEFT, *command)
    assert (done.returncode, done.stderr) == (1, "")


MISSING = """
import sys
from twinset.commandline.app import main
for command in sys.argv[1:]:
    assert main([*command.split(), "no.csv"]) == 2
sys.exit("torch was waited for" if "torch" in sys.modules else 0)
"""


def test_a_file_that_is_not_there_is_refused_before_torch_is_imported():
    commands = ["generate", "finetune", "plan", "evaluate run --train", "audit run --members"]
    done = run_python("-c", MISSING, *commands)
    assert done.returncode == 0
    assert done.stderr == "error: no.csv: no such file; check the path\n" * len(commands)


def test_threads_wait_briefly_unless_the_environment_has_its_own_way(monkeypatch):
    for name in WAITING:
        monkeypatch.delenv(name, raising=False)  # as the command line set it before
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    wait_briefly()
    assert not WAITING.keys() & os.environ.keys()
    monkeypatch.delenv("OMP_WAIT_POLICY")
    wait_briefly()
    assert WAITING.items() <= os.environ.items()


# -- label values in options -----------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_characters="="), min_size=1)
VALUES = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), min_size=1)
ODD = st.sampled_from([" a", "a ", "@a", 'a"b', '"', "a,b", "a'b", "$(a)", "\\", "a b"])


@settings(deadline=None)
@given(NAMES, st.lists(VALUES | ODD, min_size=1, max_size=5))
def test_a_proposal_is_read_as_it_was_meant(name, values):
    (word,) = shlex.split(flag_value(str({name: values})))
    assert read_labels([word]) == {name: values}


@pytest.mark.parametrize(
    ("values", "flag"),
    [
        (["a", "b"], "--labels city=a,b"),
        (["New York", "a, b"], "--labels 'city=New York,\"a, b\"'"),
        ([1, 2.5, True], "--labels city=1,2.5,True"),
        (["a`b", "c"], "--labels"),  # what stands in backticks cannot hold one
        (["a"], "--labels"),
        (["long" * 50, "c"], "--labels"),
    ],
)
def test_a_proposal_becomes_a_flag(values, flag):
    assert with_flags(f"try {proposal('labels', 'city', values)}.") == f"try {flag}."


def test_malformed_labels_and_bins_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given_labels in ("city", "=a,b", "city=", "city=@", "city=a\rb"):
        assert refusal(read_labels, [given_labels]).startswith("`labels")
    for given_bins in ("stars", "stars=a,b", "stars=1,,2", "=1,2,3", "stars=1\r2"):
        assert refusal(read_bins, [given_bins]).startswith("`bins")


def test_a_file_has_one_value_on_each_line(tmp_path):
    (tmp_path / "v.txt").write_text("\ufeffa, b\r\n\n@c\n", newline="")
    assert read_labels([f"city=@{tmp_path}/v.txt"]) == {"city": ["a, b", "@c"]}
    (tmp_path / "v.txt").write_bytes(b"caf\xe9\n")
    assert "UTF-8" in refusal(read_labels, [f"city=@{tmp_path}/v.txt"])
