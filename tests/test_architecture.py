"""The order of the rooms: imports point down, never in a circle; and what start-up may cost.

An import counts wherever it stands: inside a function, or for the type checker alone.
"""

import ast
import re
from collections.abc import Iterable
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from tests.helpers.commands import ROOT, run_python

HEAVY = ("torch", "transformers", "datasets", "pandas", "opacus", "sklearn", "peft")
LIGHT = (*HEAVY, "typer", "rich", "numpy")
TOPS = ("twinset", "evaluation", "tests")

# `a > b`: a may import b, and b never a. Two without > between them know nothing of each other.
ROOMS = {
    "": "tests > cli > evaluation > twinset",
    "twinset": """
        api > commandline > run > pretraining sampling training > release > models > progress
        > config > policies > table > privacy > files > bounds > errors
    """,
    "twinset.privacy": "statement > clipping mechanism > accounting",
    "evaluation": """
        bench > commands papers > demo > evaluate > report > comparison audit
        > leakage fidelity > utility > policy_runs > release > findings
    """,
}
# these may lead up
DOORS = {("twinset", "twinset.api"), ("twinset.__main__", "twinset.commandline.app")}

Arrow = tuple[str, str]  # a module, and one that it imports


# Modules by their dotted names. A package's own is its `__init__`.
MODULES = {
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
    for path in [ROOT / "cli.py", *(p for top in TOPS for p in (ROOT / top).rglob("*.py"))]
}
CODE = [name for name in MODULES if name.startswith(TOPS[:2])]


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


@cache  # not while pytest collects: two workers would wait for it
def arrows() -> set[Arrow]:
    """Return every import of one of our modules by another."""
    found = set()
    for name, path in MODULES.items():
        # a module's package is the dotted name of the folder that it lies in
        package = ".".join(path.relative_to(ROOT).parent.parts)
        found |= {(name, other) for other in imports(path.read_text("utf-8"), package)}
    return {(a, b) for a, b in found if b in MODULES and b != a} - DOORS


def upward(arrows: Iterable[Arrow], house: str) -> list[str]:
    """Return the imports that lead from a room to one that is not below it."""
    floors = enumerate(ROOMS[house].split(">"))
    floor = {room: number for number, rooms in floors for room in rooms.split()}
    found, inside = [], f"{house}." if house else ""
    for module, other in arrows:
        if module.startswith(inside) and other.startswith(inside):
            here, there = (n.removeprefix(inside).split(".")[0] for n in (module, other))
            if here != there and floor.get(there, 99) <= floor.get(here, -1):
                found.append(f"{module} imports {other}")
    return found


@pytest.mark.parametrize("house", ROOMS)
def test_imports_point_down_and_every_room_has_its_floor(house):
    assert upward(arrows(), house) == []
    if house:
        entries = (ROOT / house.replace(".", "/")).iterdir()
        rooms = {path.stem for path in entries if path.suffix == ".py" or any(path.rglob("*.py"))}
        assert rooms - {"__init__", "__main__"} == set(re.findall(r"\w+", ROOMS[house]))


def test_an_import_that_points_up_is_found():
    plain = "from twinset.run.generate import generate\n"
    module = "twinset.privacy.clipping.engine"
    for source in (plain, "from twinset.run import generate\n", f"def f():\n    {plain}"):
        planted = {(module, other) for other in imports(source) & set(MODULES)}
        assert upward(planted, "twinset") == [f"{module} imports twinset.run.generate"]
    assert upward({(module, "twinset.privacy.mechanism.noise")}, "twinset.privacy")
    assert upward({("twinset.run.story", "evaluation.release")}, "")


def cycle(arrows: Iterable[Arrow]) -> list[str]:
    """Return what leads back to itself, or nothing."""
    below: dict[str, set[str]] = {}
    for module, other in arrows:
        below.setdefault(module, set()).add(other)
    try:
        TopologicalSorter(below).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def between_packages(arrows: Iterable[Arrow]) -> set[Arrow]:
    """Return the arrows between folders. A module beside the packages is a package of its own."""

    def package_of(module: str) -> str:
        is_package = MODULES.get(module, ROOT).name == "__init__.py"
        package = module if is_package else module.rpartition(".")[0]
        return module if package in ROOMS or not package else package

    ways = {(package_of(module), package_of(other)) for module, other in arrows}
    return {(here, there) for here, there in ways if here != there}


def test_no_file_and_no_package_leads_back_to_itself():
    assert cycle(arrows()) == []
    assert cycle(between_packages(arrows())) == []
    planted = {
        ("twinset.table.records", "twinset.models.adapters"),
        ("twinset.models.layers", "twinset.table"),
    }
    assert cycle(planted) == []  # a circle of packages, and not of files
    assert set(cycle(between_packages(planted))) == {"twinset.table", "twinset.models"}
    assert set(cycle({("a", "b"), ("b", "c"), ("c", "a")})) == {"a", "b", "c"}


def test_privacy_knows_nothing_of_the_rest():
    inside = "twinset.privacy."
    known = {b for a, b in arrows() if a.startswith(inside) and not b.startswith(inside)}
    assert known <= {"twinset.privacy"}


# -- what a source may not hold --------------------------------------------------------------------

NAMES_DEVICES = ("twinset.models.device", "twinset.training.distributed")  # it carries sums
GPU = re.compile(r"(cuda|mps|xpu)(:.*)?")


def devices_in(source: str) -> list[str]:
    """Return where a source names a device: in a string, as `torch.cuda`, or by `.cuda()`."""
    found = []
    for node in ast.walk(ast.parse(source)):
        places: list[ast.AST] = []  # where "cpu" is a device, and not a size or a key
        if isinstance(node, ast.Attribute) and node.attr in ("cuda", "mps"):
            found.append(ast.unparse(node))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found += [node.value] * bool(GPU.fullmatch(node.value))
        elif isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            places = [k.value for k in node.keywords if k.arg in ("device", "map_location")]
            places += node.args if name in ("to", "device") else []
        elif isinstance(node, ast.arguments):
            places = [*node.defaults, *filter(None, node.kw_defaults)]
        elif isinstance(node, ast.Compare):
            places = [*node.comparators]
        found += ["cpu" for p in places if isinstance(p, ast.Constant) and p.value == "cpu"]
    return found


def test_one_module_names_devices():
    """All others take the model's: `device=x.device`. They move what they read with `.cpu()`."""
    found = {n: devices_in(MODULES[n].read_text("utf-8")) for n in CODE if n not in NAMES_DEVICES}
    assert {name: devices for name, devices in found.items() if devices} == {}
    planted = """
x = torch.zeros(2, device="cpu").cuda() if torch.cuda.is_available() else y.to(f"cuda:{n}")
z = [torch.device("meta"), x.cpu(), x.is_cpu, "a cpu", {"cpu": 1}]
def f(device="cpu"): return x.to("cpu") if x.device.type == "cpu" else torch.device("cpu")
"""
    named = ["cuda:", "torch.cuda", "torch.zeros(2, device='cpu').cuda"]
    assert sorted(devices_in(planted)) == sorted(named + 5 * ["cpu"])


SPEAKS_FLAGS = (
    "twinset.commandline",
    "twinset.models.assets",  # pip's
    "twinset.files.environment",  # reads what was typed
)
COMMAND = re.compile(r"`\w[\w.-]* [^`]*`")  # to be typed into a shell: a program's name goes first


def text_of(node: ast.AST) -> str:
    """Return what a string says, with {} where something is put in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) or "{}" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def flags_in(source: str) -> list[str]:
    """Return the strings of a source that name a flag. Docstrings and whole commands may."""
    nodes = [*ast.walk(ast.parse(source))]
    documents = {id(n.value) for n in nodes if isinstance(n, ast.Expr)}
    parts = {id(part) for n in nodes if isinstance(n, ast.JoinedStr) for part in n.values}
    strings = [text_of(n) for n in nodes if id(n) not in documents | parts]
    return [text for text in strings if re.search(r"(?<!\S)\W?--[a-z]", COMMAND.sub("", text))]


def test_the_library_names_parameters_and_the_command_line_makes_flags_of_them():
    names = [n for n in CODE if n.startswith("twinset") and not n.startswith(SPEAKS_FLAGS)]
    assert [text for n in names for text in flags_in(MODULES[n].read_text("utf-8"))] == []
    planted = """'''--rows.'''
raise InputError(f"raise --rows above {n}")
raise InputError(f"`{name}`: is too few; `twinset sample {run} --rows 5` writes more")
raise InputError("--rows" + "; or (--no-privacy)")
"""
    assert flags_in(planted) == ["raise --rows above {}", "--rows", "; or (--no-privacy)"]


# -- start-up --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("statement", "unwanted", "loaded"),
    [
        ("import twinset.config.options", LIGHT, []),
        ("from twinset import Twinset, generate", (*HEAVY, "numpy"), []),
        ("import cli; cli.main(['generate', '--help'])", (*HEAVY, "numpy"), []),
        ("import pandas", HEAVY, ["pandas"]),  # the control
    ],
)
def test_start_up_loads_nothing_heavy(statement, unwanted, loaded):
    code = f"{statement}; import sys; sys.exit(str(sorted({set(unwanted)} & set(sys.modules))))"
    assert run_python("-c", code).stderr.strip() == str(loaded)
