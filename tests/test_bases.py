from pathlib import Path

import pytest
from typer.testing import CliRunner

from evaluation import bases
from evaluation.findings import Findings
from twinset.errors import InputError

FOLDER = Path(__file__).parents[1] / "evaluation" / "examples" / "bases"


def test_the_table_says_what_the_evaluations_found():
    shown = CliRunner().invoke(bases.app, [str(FOLDER)])
    assert shown.exit_code == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.stdout.splitlines()]
    cells = {tuple(row[:4]): row[4:] for row in rows if len(row) == 9}
    found = Findings.load(FOLDER / "imdb_short.gpt2-mini.json")
    place = {"rows": "twin", "label": "sentiment", "classifier": "tfidf"}
    score = found.find("accuracy", **place)
    told = cells["imdb\\_short", "sentiment", "tfidf", "gpt2-mini"]
    assert told[0] == "8.00" and told[2].startswith(f"{score.value:.3f} ± ")
    assert found.about["command"] in shown.stdout


def test_an_empty_folder_is_told(tmp_path):
    with pytest.raises(InputError, match="holds no TABLE.BASE.json"):
        bases.bases(tmp_path)
