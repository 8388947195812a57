"""The folders of a Brain: single-device modules never see a mesh, and no files import each other in a circle."""

import ast
import graphlib
import re
from functools import cache
from pathlib import Path

import pytest
from tests.architecture.test_public_api import names_of_facade, public_names

ROOT = Path(__file__).parents[4]
SOURCES = (ROOT / "src", ROOT / "packages" / "outlay-brain" / "src")

SINGLE_DEVICE = ("brain", "decoders", "delays", "encoders", "files", "learning_rules", "neuron", "somas", "synapses")
"""Models are single-device code."""
OF_SEVERAL = ("program", "jobs", "launcher", "layout", "devices", "arrays", "report", "train")


@cache
def imports_of(module: str) -> frozenset[str]:
    """The modules of Outlay that one imports when it is imported, not those of its functions."""
    file = _file_of(module)
    if file is None:
        return frozenset()
    names = {
        name
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("outlay")
        for name in (node.module or "", *(f"{node.module}.{alias.name}" for alias in node.names))
    }
    return frozenset(name for name in names if _file_of(name) is not None and name != "outlay")


@cache
def _file_of(module: str) -> Path | None:
    places = [source / Path(*module.split(".")) for source in SOURCES]
    files = [file for place in places for file in (place.with_suffix(".py"), place / "__init__.py") if file.is_file()]
    return files[0] if files else None


def modules_of_brain() -> list[str]:
    source = SOURCES[1]
    names = [".".join(path.relative_to(source).with_suffix("").parts) for path in source.rglob("*.py")]
    return sorted(name.removesuffix(".__init__") for name in names)


def reached_from(module: str) -> set[str]:
    reached, waiting = set(), [module]
    while waiting:
        for name in imports_of(waiting.pop()) - reached:
            reached.add(name)
            waiting.append(name)
    return reached


@pytest.mark.parametrize("room", SINGLE_DEVICE)
def test_modules_never_see_a_mesh(room):
    own = [name for name in modules_of_brain() if f"{name}.".startswith(f"outlay.brain.{room}.")]
    assert own
    folders = tuple(f"outlay.{folder}." for folder in OF_SEVERAL)
    assert not [(name, other) for name in own for other in reached_from(name) if f"{other}.".startswith(folders)]


def test_no_files_import_each_other_in_a_circle():
    names = modules_of_brain()
    assert len(names) > 60
    graphlib.TopologicalSorter({name: imports_of(name) for name in names}).prepare()  # raises a CycleError


def taken_from_outlay() -> set[tuple[str, str, str]]:
    """What the files of Brains import of Outlay, inside functions too: file, module and name."""
    files = [path for path in SOURCES[1].rglob("*.py*") if path.suffix in (".py", ".pyi")]
    return {
        (path.name, node.module or "", alias.name)
        for path in files
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ImportFrom) and not node.level
        if (node.module or "").partition(".")[0] == "outlay" and not f"{node.module}.".startswith("outlay.brain.")
        for alias in node.names
    }


def test_it_takes_from_outlay_only_what_is_public():
    public = set(public_names())
    taken = taken_from_outlay()
    assert len(taken) > 100
    private = {(file, module, name) for file, module, name in taken if _dotted(module, name) not in public}
    assert not private, "import it from outlay.kit or another public module, or make it public there"


def _dotted(module: str, name: str) -> str:
    return f"{module}.{name}".removeprefix("outlay.")


def test_the_kit_has_only_what_somebody_uses():
    example = (ROOT / "examples" / "particle_mesh.py").read_text(encoding="utf-8")
    used = {name for _, module, name in taken_from_outlay() if module == "outlay.kit"}
    used |= set(re.findall(r"\bkit\.(\w+)", example)) | {
        "Block",
        "Chip",
        "Image",
        "RunOptions",
        "RunRecord",
    }
    assert {name.rpartition(".")[2] for name in names_of_facade("kit")} == used
