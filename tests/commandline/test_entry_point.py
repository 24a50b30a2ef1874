"""How a command begins and ends, and how options are read and proposed."""

import shlex

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.helpers.commands import run_python
from tests.helpers.refusals import refusal
from twinset.commandline.common import read_columns
from twinset.commandline.entry_point import with_flags

LEFT = """
import os, sys
read, write = os.pipe()
os.close(read)
os.dup2(write, 1)
from twinset.commandline.app import main
sys.exit(main(sys.argv[1:]))
"""


def test_a_reader_that_leaves_is_no_error():
    done = run_python("-c", LEFT, "models")
    assert (done.returncode, done.stderr) == (1, "")


# -- label values in options -----------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_characters="="), min_size=1)
VALUES = st.text(st.characters(exclude_characters="\r\n\0", exclude_categories=["Cs"]), min_size=1)
ODD = st.sampled_from([" a", "a ", "@a", 'a"b', '"', "a,b", "a'b", "$(a)", "\\", "a b"])


@settings(deadline=None)
@given(NAMES, st.lists(VALUES | ODD, min_size=1, max_size=5))
def test_a_proposal_is_read_as_it_was_meant(name, values):
    proposed = str({name: values}).replace("`", "\\x60")  # a message's quotes
    _, word = shlex.split(with_flags(f"`labels={proposed}`"))
    assert read_columns([word], "labels") == {name: values}


def test_malformed_labels_and_bins_are_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given_labels in ("city", "=a,b", "city=", "city=@", "city=a\rb"):
        assert refusal(read_columns, [given_labels], "labels").startswith("`labels")
    for given_bins in ("stars", "stars=a,b", "stars=1,,2", "=1,2,3", "stars=1\r2"):
        assert refusal(read_columns, [given_bins], "bins").startswith("`bins")


def test_a_file_has_one_value_on_each_line(tmp_path):
    (tmp_path / "v.txt").write_text("\ufeffa, b\r\n\n@c\n", newline="")
    assert read_columns([f"city=@{tmp_path}/v.txt"], "labels") == {"city": ["a, b", "@c"]}
    (tmp_path / "v.txt").write_bytes(b"caf\xe9\n")
    assert "UTF-8" in refusal(read_columns, [f"city=@{tmp_path}/v.txt"], "labels")
