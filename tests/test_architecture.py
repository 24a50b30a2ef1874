"""The arrows of the design: who may import whom, and what start-up may cost."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "transformers", "datasets", "pandas", "opacus", "sklearn", "peft")


def imports(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(node.module or "")
    return found


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


INSIDE = [path for path in modules("twinset") if path.name != "__main__.py"]  # it is a door


@pytest.mark.parametrize("path", INSIDE, ids=lambda p: str(p.relative_to(ROOT)))
def test_twinset_knows_neither_evaluation_nor_the_command_line(path):
    assert not {name.split(".")[0] for name in imports(path)} & {"evaluation", "cli", "tests"}


@pytest.mark.parametrize("path", modules("twinset/privacy"), ids=lambda p: p.name)
def test_privacy_knows_nothing_else_of_twinset(path):
    own = {name for name in imports(path) if name.split(".")[0] == "twinset"}
    allowed = ("twinset.privacy", "twinset.errors")
    assert all(name.startswith(allowed) for name in own), own


def test_evaluation_is_not_imported_by_what_it_measures():
    assert "twinset.prepare" in imports(ROOT / "evaluation" / "demo.py")  # the arrow there is


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import twinset.config", (*HEAVY, "typer", "rich", "numpy")),
        ("import twinset.options", (*HEAVY, "typer", "rich", "numpy")),
        ("import cli", (*HEAVY, "numpy")),
        ("import cli; cli.main(['--help'])", (*HEAVY, "numpy")),
        ("import cli; cli.main(['generate', '--help'])", (*HEAVY, "numpy")),
    ],
)
def test_start_up_loads_nothing_heavy(statement, unwanted):
    code = f"{statement}; import sys; sys.exit(str(sorted({set(unwanted)} & set(sys.modules))))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.stderr.strip() == "[]"


def test_the_start_up_check_sees_a_heavy_import():
    code = "import pandas, sys; sys.exit('pandas' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 1
