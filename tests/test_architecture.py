"""The order of the rooms: imports point down, never in a circle; and what start-up may cost.

An import counts wherever it stands: inside a function, or for the type checker alone.
"""

import ast
import re
import subprocess
import sys
from collections.abc import Iterable
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
HEAVY = ("torch", "transformers", "datasets", "pandas", "opacus", "sklearn", "peft")
MOST_ENTRIES = 20

# From the top down. Rooms of one line know nothing of each other.
ROOMS = {
    "twinset": """
        api commandline
        run
        pretraining sampling training
        release
        models
        progress
        config
        policies
        table
        privacy
        files
        bounds
        errors
    """,
    "twinset.privacy": """
        statement
        clipping mechanism
        accounting
    """,
    "evaluation": """
        bench
        commands papers
        demo
        evaluate
        report
        comparison audit
        leakage fidelity
        utility
        policy_runs
        release
        findings
    """,
}
DOORS = {
    ("twinset", "twinset.api"),
    ("twinset.__main__", "twinset.commandline.app"),
}  # they may lead up

Arrow = tuple[str, str]  # a module, and one that it imports


def modules(*tops: str) -> dict[str, Path]:
    """Return modules by their dotted names; a package's own is its `__init__`."""
    files = [path for top in tops for path in (ROOT / top).rglob("*.py")] + [ROOT / "cli.py"]
    names = {path: path.relative_to(ROOT).with_suffix("").parts for path in files}
    return {".".join(p for p in parts if p != "__init__"): f for f, parts in names.items()}


MODULES = modules("twinset", "evaluation", "tests")


def imports(source: str, package: str = "") -> set[str]:
    """Return the modules that a source imports, wherever in it. `evaluation` imports relatively."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: package.count(".") + 2 - node.level] if node.level else []
            module = ".".join([*above, *filter(None, [node.module])])
            below = {f"{module}.{alias.name}" for alias in node.names}
            found |= (below & set(MODULES)) or {module}
    return found


def package_of(path: Path) -> str:
    """Return the dotted name of the folder that a module lies in."""
    return ".".join(path.relative_to(ROOT).parent.parts)


ARROWS: set[Arrow] = {
    (name, other)
    for name, path in MODULES.items()
    for other in imports(path.read_text("utf-8"), package_of(path)) & set(MODULES) - {name}
}


def room(module: str, house: str) -> str | None:
    """Return in which room of a house a module is; None: in none, or it is the house itself."""
    return (
        module.removeprefix(f"{house}.").split(".")[0] if module.startswith(f"{house}.") else None
    )


def upward(arrows: Iterable[Arrow], house: str) -> list[str]:
    """Return the imports that lead from a room to one that is not below it."""
    floors = [line.split() for line in ROOMS[house].strip().splitlines()]
    floor = {name: number for number, names in enumerate(floors) for name in names}
    found = []
    for module, other in arrows:
        here, there = room(module, house), room(other, house)
        if here in floor and there in floor and here != there and floor[there] <= floor[here]:
            found.append(f"{module} imports {other}")
    return sorted(found)


def cycle(arrows: Iterable[Arrow]) -> list[str]:
    """Return what leads back to itself; empty where nothing does."""
    below: dict[str, set[str]] = {}
    for module, other in arrows:
        below.setdefault(module, set()).add(other)
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def between_packages(arrows: Iterable[Arrow]) -> set[Arrow]:
    """Return the arrows between folders."""
    ways = {(folder(module), folder(other)) for module, other in arrows}
    return {(here, there) for here, there in ways if here != there}


def folder(module: str) -> str:
    """Return a module's package; modules beside the packages count as packages of their own."""
    is_package = MODULES.get(module, ROOT).name == "__init__.py"
    package = module if is_package else module.rpartition(".")[0]
    return module if package in ROOMS or not package else package


@pytest.mark.parametrize("house", ROOMS)
def test_imports_point_down(house):
    assert upward(ARROWS - DOORS, house) == []


@pytest.mark.parametrize("house", ROOMS)
def test_every_room_has_its_floor(house):
    top = ROOT / house.replace(".", "/")
    there = {path.stem for path in top.iterdir() if path.suffix == ".py" or is_folder(path)}
    assert there - {"__init__", "__main__"} == set(ROOMS[house].split())


def is_folder(path: Path) -> bool:
    return path.is_dir() and any(path.rglob("*.py"))


PLANTED = [  # sources of a module that import one above it
    "from twinset.run.generate import generate\n",
    "import twinset.run.generate\n",
    "from twinset.run import generate\n",
    "def f():\n    from twinset.run.generate import generate\n",
    "from typing import TYPE_CHECKING\n"
    "if TYPE_CHECKING:\n    from twinset.run.generate import generate\n",
]


def test_an_import_that_points_up_is_found():
    for source in PLANTED:
        for module in ("twinset.table.records", "twinset.privacy.clipping.engine"):
            planted = {(module, other) for other in imports(source) & set(MODULES)}
            assert upward(planted, "twinset") == [f"{module} imports twinset.run.generate"]
    statement, accounting = "twinset.privacy.statement.ledger", "twinset.privacy.accounting.events"
    for house, module, other in (
        ("twinset.privacy", accounting, statement),
        ("twinset.privacy", "twinset.privacy.clipping.engine", "twinset.privacy.mechanism.noise"),
        ("evaluation", "evaluation.findings", "evaluation.report.page"),
        ("twinset", "twinset.training.loop", "twinset.sampling.sampler"),
    ):
        assert upward({(module, other)}, house) == [f"{module} imports {other}"]


def test_no_file_and_no_package_leads_back_to_itself():
    assert cycle(ARROWS - DOORS) == []
    assert cycle(between_packages(ARROWS - DOORS)) == []


def test_a_circle_of_files_or_packages_is_found():
    files = {
        ("twinset.table.records", "twinset.models.adapters"),
        ("twinset.models.layers", "twinset.table"),
    }
    assert cycle(files) == []
    assert set(cycle(between_packages(files))) == {"twinset.table", "twinset.models"}
    assert set(cycle({("a", "b"), ("b", "c"), ("c", "a")})) == {"a", "b", "c"}


def test_nothing_below_knows_evaluation_the_command_line_or_the_tests():
    tops = {"twinset": {"evaluation", "cli", "tests"}, "evaluation": {"cli", "tests"}}
    wrong = [
        arrow
        for arrow in ARROWS - DOORS
        if arrow[1].split(".")[0] in tops.get(arrow[0].split(".")[0], ())
    ]
    assert wrong == []


def test_privacy_knows_nothing_else_of_twinset():
    inside = "twinset.privacy."
    leaving = {a for a in ARROWS if a[0].startswith(inside) and not a[1].startswith(inside)}
    assert {other for _, other in leaving} <= {"twinset.privacy"}


SPEAKS_FLAGS = (
    "twinset.commandline",
    "twinset.models.assets",  # pip's
    "twinset.files.environment",  # reads what was typed
)
COMMAND = re.compile(r"`\w[\w.-]* [^`]*`")  # to be typed into a shell: a program's name goes first


def flags_in(source: str) -> list[str]:
    """Return the strings of a source that name a flag; docstrings and whole commands may."""
    tree = ast.parse(source)
    documents = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Expr)}
    parts = {id(part) for n in ast.walk(tree) if isinstance(n, ast.JoinedStr) for part in n.values}
    strings = [text_of(n) for n in ast.walk(tree) if id(n) not in documents | parts]
    return [text for text in strings if re.search(r"(?<!\S)\W?--[a-z]", COMMAND.sub("", text))]


def text_of(node: ast.AST) -> str:
    """Return what a string says, with {} where something is put in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def test_the_library_names_parameters_and_the_command_line_makes_flags_of_them():
    names = [n for n in MODULES if n.startswith("twinset.") and not n.startswith(SPEAKS_FLAGS)]
    assert [text for n in names for text in flags_in(MODULES[n].read_text("utf-8"))] == []


def test_a_flag_in_a_message_is_found():
    source = """'''--rows.'''
raise InputError(f"raise --rows above {n}")
raise InputError(f"`{name}`: is too few; `twinset sample {run} --rows 5` writes more")
raise InputError("--rows" + "; or (--no-privacy)")
"""
    assert flags_in(source) == ["raise --rows above {}", "--rows", "; or (--no-privacy)"]


NAMES_DEVICES = (
    "twinset.models.device",
    "twinset.training.distributed",
)  # the second: what carries sums
GPU, CPU = re.compile(r"(cuda|mps|xpu)(:.*)?"), "cpu"


def devices_in(source: str) -> list[str]:
    """Return where a source names a device: in a string, as `torch.cuda`, or by `.cuda()`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and node.attr in ("cuda", "mps"):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [node.value] * bool(GPU.fullmatch(node.value))
        found += [text_of(part) for part in _devices_of(node) if text_of(part) == CPU]
    return found


def _devices_of(node: ast.AST) -> list[ast.AST]:
    """Return the parts of a node where "cpu" is a device, and not a size or a key."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        named = [k.value for k in node.keywords if k.arg in ("device", "map_location")]
        return [*named, *(node.args if name in ("to", "device") else [])]
    if isinstance(node, ast.arguments):
        return [*node.defaults, *(default for default in node.kw_defaults if default)]
    return list(node.comparators) if isinstance(node, ast.Compare) else []


def test_one_module_names_devices():
    """All others take the model's: `device=x.device`; and move what they read with `.cpu()`."""
    names = [n for n in MODULES if n.startswith(("twinset", "evaluation"))]
    found = {n: devices_in(MODULES[n].read_text("utf-8")) for n in names if n not in NAMES_DEVICES}
    assert {name: devices for name, devices in found.items() if devices} == {}


def test_a_device_that_is_named_is_found():
    source = """
x = torch.zeros(2, device="cpu").cuda() if torch.cuda.is_available() else y.to(f"cuda:{n}")
z = [torch.device("meta"), x.cpu(), x.is_cpu, "a cpu", {"cpu": 1}]
def f(device="cpu"): return x.to("cpu") if x.device.type == "cpu" else torch.device("cpu")
"""
    named = ["cuda:", "torch.cuda", "torch.zeros(2, device='cpu').cuda"]
    assert sorted(devices_in(source)) == sorted(named + 5 * ["cpu"])


def test_a_newcomer_can_overlook_the_top():
    entries = [path for path in (ROOT / "twinset").iterdir() if path.name != "__pycache__"]
    assert len(entries) <= MOST_ENTRIES


def loaded_by(statement: str, unwanted: tuple[str, ...]) -> str:
    """Return which of the modules a statement loads, in a process of its own."""
    code = f"{statement}; import sys; sys.exit(str(sorted({set(unwanted)} & set(sys.modules))))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    return done.stderr.strip()


@pytest.mark.parametrize(
    ("statement", "unwanted"),
    [
        ("import twinset.config.options", (*HEAVY, "typer", "rich", "numpy")),
        ("from twinset import Twinset, generate", (*HEAVY, "numpy")),
        ("import cli; cli.main(['--help']); cli.main(['generate', '--help'])", (*HEAVY, "numpy")),
    ],
)
def test_start_up_loads_nothing_heavy(statement, unwanted):
    assert loaded_by(statement, unwanted) == "[]"


def test_the_start_up_check_sees_a_heavy_import():
    assert loaded_by("import pandas", HEAVY) == "['pandas']"
