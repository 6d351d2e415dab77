"""Who may import whom in lts/: every room stands on a floor and looks only down.

A room is a file `lts/x.py` or a folder `lts/x/`. A file that is new to `FLOORS` fails
until it is given a place there.
"""

import ast
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# From the ground up; rooms of one floor do not see each other.
FLOORS: tuple[tuple[str, ...], ...] = (
    ("calibration", "graph", "hops", "workload"),
    ("hardware",),
    ("mesh", "tracing", "suite"),
    ("assignment", "problem", "variables"),
    ("given",),
    ("space", "layout", "plain", "shapes", "rescale", "hlo_groups", "hlo_text"),
    ("local_scatters",),
    ("pins", "expert_roles", "local_ops", "local_updates", "scattered"),
    ("specs",),
    ("cost", "apply", "hlo", "degrees"),
    ("calibrate",),
    (
        "applied",
        "compile_worker",
        "compiler",
        "shardy",
        "shardy_worker",
        "metrics",
        "operations",
    ),
    ("pipeline", "elite", "evaluate"),
    ("policy", "verify", "prepare"),
    ("methods", "phase"),
    ("report",),
    ("plan",),
    ("build_plan",),
    ("pools", "source"),
    ("api", "entry"),
    ("options",),
    ("cli",),
)
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}
# Beside the building: any room may use these, they use nothing of the search.
REFERENCE_ROOMS = {"models"}
REFERENCE_LIBRARIES = {"jax", "numpy"}
EXEMPT = {"lts/__init__.py", "lts/__main__.py"}
MAX_LINES = 400

FILES = sorted(
    path.relative_to(ROOT).as_posix() for path in (ROOT / "lts").rglob("*.py")
)


def room_of(module: str) -> str:
    """`lts.cost.tables` -> `cost`; the package itself -> ``."""
    return module.removeprefix("lts").removeprefix(".").partition(".")[0]


def imported_modules(file: str) -> list[tuple[str, bool]]:
    """(absolute module, is it at the top of the file) of every import of `file`."""
    tree = ast.parse((ROOT / file).read_text())
    package = file.removesuffix(".py").split("/")[:-1]
    modules = []
    for node in ast.walk(tree):
        at_top = node in tree.body
        if isinstance(node, ast.Import):
            modules += [(alias.name, at_top) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            parts = package[: len(package) + 1 - node.level] if node.level else []
            module = ".".join([*parts, node.module] if node.module else parts)
            # `from lts import x` and `from jax import _src` name modules, too
            modules += [(f"{module}.{alias.name}", at_top) for alias in node.names]
    return modules


def layering_faults(file: str) -> list[str]:
    """What `file` imports against the rules, as messages."""
    room = room_of(file.removesuffix(".py").replace("/", "."))
    faults = []
    for module, at_top in imported_modules(file):
        library = module.partition(".")[0]
        if module.startswith("jax._src"):
            faults.append(f"{module} is private to jax")
        if library != "lts":
            known = library in sys.stdlib_module_names | REFERENCE_LIBRARIES
            if room in REFERENCE_ROOMS and not known:
                faults.append(f"reference room imports {module}")
            continue
        target = room_of(module)
        if not at_top:
            faults.append(f"{module} is imported below the top of the file")
        if target == room or target in REFERENCE_ROOMS:
            continue
        if room in REFERENCE_ROOMS:
            faults.append(f"reference room imports {module} of the search")
        elif target not in FLOOR_OF:
            faults.append(f"{module} belongs to no floor")
        elif FLOOR_OF[target] >= FLOOR_OF[room]:
            faults.append(f"{module} is not on a lower floor")
    return faults


@pytest.mark.parametrize("file", sorted(set(FILES) - EXEMPT))
def test_file_has_a_floor_and_looks_down(file: str) -> None:
    room = room_of(file.removesuffix(".py").replace("/", "."))
    assert room in FLOOR_OF or room in REFERENCE_ROOMS, f"give {file} a floor in FLOORS"
    assert layering_faults(file) == []


@pytest.mark.parametrize("file", FILES)
def test_file_is_short_enough_to_read(file: str) -> None:
    num_lines = len((ROOT / file).read_text().splitlines())
    assert num_lines <= MAX_LINES, f"split {file}"


@pytest.mark.parametrize(
    "code, fault",
    [
        ("from lts.methods import exact", "lts.methods.exact is not on a lower floor"),
        ("from lts import plan", "lts.plan is not on a lower floor"),
        ("from ..api import search", "lts.api.search is not on a lower floor"),
        ("import lts.apply", "lts.apply is not on a lower floor"),
        ("import lts", "lts belongs to no floor"),
        ("from jax import _src", "jax._src is private to jax"),
        (
            "def f():\n    from lts.graph import OpGraph",
            "lts.graph.OpGraph is imported below the top of the file",
        ),
        ("from . import roofline\nfrom lts.graph import OpGraph\nimport numpy", None),
    ],
)
def test_a_cost_file_with_a_forbidden_import_is_found(
    code: str, fault: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lts/cost").mkdir(parents=True)
    (tmp_path / "lts/cost/tables.py").write_text(code)
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    assert layering_faults("lts/cost/tables.py") == ([fault] if fault else [])


@pytest.mark.parametrize("module", ["lts.space", "flax.linen"])
def test_a_model_file_that_uses_the_search_or_another_library_is_found(
    module: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "lts/models").mkdir(parents=True)
    (tmp_path / "lts/models/decoder.py").write_text(f"import {module}\nimport jax\n")
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (fault,) = layering_faults("lts/models/decoder.py")
    assert module in fault and "reference room" in fault
