"""The one store of results: what is finished is kept, and nothing is mixed."""

import json

import pytest

from evaluation.findings import ResultsStore
from twinset.errors import InputError

SETTINGS = {"rows": 8, "shapes": (1, 2), "about": {"machine": "a"}}


def some_results(path, settings=SETTINGS, command="first", **more) -> ResultsStore:
    return ResultsStore.open(path / "new" / "r.json", settings, command, **more)


def test_rows_come_back_as_they_were_written(tmp_path):
    store = some_results(tmp_path, mode=0o600)
    store.add(("uniform", 0), {"bits": 1.5})
    store.add(("none", 1), {"bits": None})
    again = some_results(tmp_path, command="again")
    assert again.rows == store.rows
    assert again.commands == ["first", "again"]
    assert store.path.stat().st_mode & 0o077 == 0
    assert [*again.missing([("none", 1), ("none", 2), ("x", 0)])] == [
        ("1 of 2", ("none", 2)),
        ("2 of 2", ("x", 0)),
    ]


@pytest.mark.parametrize(
    ("changed", "names"),
    [({"rows": 9}, "(rows)"), ({"about": {"machine": "b"}}, "(about)"), ({"new": 1}, "(new)")],
)
def test_rows_of_other_settings_are_refused_and_left(tmp_path, changed, names):
    some_results(tmp_path).add(("uniform", 0), {"bits": 1.5})
    before = (tmp_path / "new" / "r.json").read_bytes()
    with pytest.raises(InputError, match="other settings") as error:
        some_results(tmp_path, SETTINGS | changed)
    assert names in str(error.value) and "\n" not in str(error.value)
    assert (tmp_path / "new" / "r.json").read_bytes() == before


@pytest.mark.parametrize("content", ["[]", '{"rows": 1}', "no JSON", '{"rows": [{}]}', "\udcff"])
def test_a_foreign_file_is_refused(tmp_path, content):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "r.json").write_text(content, errors="surrogateescape")
    with pytest.raises(InputError, match="holds no results"):
        some_results(tmp_path)


def test_what_is_beside_the_rows_is_written_and_replaced(tmp_path):
    store = some_results(tmp_path)
    store.facts = {"train": 8}
    store.write(summary="word")
    kept = json.loads(store.path.read_text())
    assert kept["summary"] == "word" and some_results(tmp_path).facts == {"train": 8}


def test_two_processes_add_to_one_file(tmp_path):
    """Each began before the other had written."""
    first, second = (some_results(tmp_path, command=name) for name in ("first", "second"))
    first.facts, second.facts = {"a": 1}, {"b": 2}
    first.add(("uniform", 0), {"bits": 1.5})
    second.add(("none", 0), {"bits": 2.5})
    first.add(("none", 1), {"bits": 3.5})
    again = some_results(tmp_path)
    assert set(again.rows) == {("uniform", 0), ("none", 0), ("none", 1)}
    assert again.commands == ["first", "second"]
    assert again.facts == {"a": 1, "b": 2}
    assert [path.name for path in first.path.parent.iterdir()] == ["r.json"]


def test_a_row_made_again_elsewhere_is_not_undone(tmp_path):
    store = some_results(tmp_path)
    store.add(("uniform", 0), {"bits": 1.5})
    some_results(tmp_path).add(("uniform", 0), {"bits": 9.0})
    store.add(("none", 0), {"bits": 2.5})
    assert some_results(tmp_path).rows[("uniform", 0)] == {"bits": 9.0}
