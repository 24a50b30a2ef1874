from dataclasses import replace

import pytest
from typer.testing import CliRunner

from evaluation.base_models import compare as bases
from evaluation.findings import Findings, Measured
from evaluation.private_table import BASELINE, REAL, TWIN, TWIN_SMALL
from evaluation.run_command import command
from evaluation.scores import proportion
from twinset.errors import InputError


def found(epsilon: float | None, **more: int) -> Findings:
    place = {"label": "mood", "classifier": "tfidf"}
    measured = [
        Measured("utility", proportion("accuracy", hits, 100), {"rows": rows, **place})
        for rows, hits in ((REAL, 90), (TWIN, 80), (BASELINE, 70), *more.items())
    ]
    fidelity = replace(measured[1].score, name="label fidelity")
    measured.append(Measured("utility", fidelity, {"rows": TWIN, **place}))
    about = {"epsilon": epsilon, "command": f"twinset evaluate {epsilon}"}
    return Findings("evaluation", about, tuple(measured))


def test_the_table_says_what_the_evaluations_found(tmp_path):
    found(7.991).save(tmp_path / "my_table.gpt2-mini.json")
    found(None).save(tmp_path / "my_table.untrained.json")
    shown = CliRunner().invoke(command(bases.bases), [str(tmp_path)])
    assert shown.exit_code == 0
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in shown.stdout.splitlines()]
    cells = {row[3]: row for row in rows if len(row) == 9}
    assert cells["gpt2-mini"][:5] == ["my\\_table", "mood", "tfidf", "gpt2-mini", "8.00"]
    assert cells["gpt2-mini"][5:] == [
        "0.900 ± 0.060", "0.800 ± 0.078", "0.700 ± 0.088", "0.800 ± 0.078"
    ]  # fmt: skip
    assert cells["untrained"][4] == "none"
    assert "twinset evaluate 7.991" in shown.stdout


def test_a_base_of_fewer_rows_stands_beside_as_many_of_the_twin():
    (row,) = bases._rows("table", "base", found(8.0, **{TWIN_SMALL: 75}))
    assert row[-2] == "0.700 ± 0.088; twin of as many rows 0.750 ± 0.084"


def test_an_empty_folder_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no TABLE.BASE.json"):
        bases.bases(tmp_path)
