"""A public name is a promise: adding or removing one is a decision, accepted with `make snapshots`."""

import ast
import importlib
import inspect
import operator
import re
from pathlib import Path

import pytest

import outlay

ROOT = Path(__file__).parents[2]
INNER = ("architecture", "the_cost_model", "conf", "language_model", "make_caught_mistakes")
"""Pages about the inside, or scripts that make pages."""
PACKAGE = Path(outlay.__file__).parent
RE_EXPORTED = {
    "report.CompilerOptions": "outlay.program.compiler_options",  # outlay.program is the function
    "train.as_model": "outlay.core.array_leaves",  # training gives a loss whole models by it
}
"""Names that a facade has of a folder below it: its stub can import from its own folder only."""
MOST_AT_THE_TOP = 38
"""More than that nobody holds in mind; what is not for every day stands in a facade. Three are lines of a model."""
SNAPSHOT = Path(__file__).with_name("public_api.txt")


def public_names() -> dict[str, str]:
    """Every public name, in the order of the stub and then of the facades, and the module that defines it."""
    names = _of_stub(PACKAGE / "__init__.pyi", "outlay")
    for facade in facades():
        names |= names_of_facade(facade)
    return names


def names_with_applications() -> dict[str, str]:
    """Every public name, those of applications too that are released together with Outlay and installed."""
    return {**public_names(), **(names_of_facade("brain") if "brain" in outlay.__all__ else {})}


def names_of_facade(facade: str) -> dict[str, str]:
    """The public names of a package or module in `outlay`, and the module that defines each."""
    module = importlib.import_module(f"outlay.{facade}")
    stub = Path(module.__file__ or "").with_suffix(".pyi")
    if stub.exists():
        modules = _of_stub(stub, module.__package__ or "")
    else:
        modules = {name: getattr(module, name).__module__ for name in module.__all__}
    return {f"{facade}.{name}": defined for name, defined in modules.items()}


def facades() -> list[str]:
    """The folders and files that have public names of their own, such as `outlay.arrays`."""
    imports = [
        node for node in ast.parse((PACKAGE / "__init__.pyi").read_text()).body if isinstance(node, ast.ImportFrom)
    ]
    return [alias.name for node in imports if node.module is None for alias in node.names]


def _of_stub(stub: Path, package: str) -> dict[str, str]:
    imports = [node for node in ast.parse(stub.read_text()).body if isinstance(node, ast.ImportFrom) and node.module]
    return {alias.asname or alias.name: f"{package}.{node.module}" for node in imports for alias in node.names}


def test_the_public_names_are_those_of_the_snapshot():
    assert list(public_names()) == SNAPSHOT.read_text().split(), (
        "the public names changed: if that is intended, run `make snapshots`"
    )


def test_the_top_holds_what_is_needed_every_day():
    assert len(_of_stub(PACKAGE / "__init__.pyi", "outlay")) <= MOST_AT_THE_TOP


def test_dir_shows_every_public_name():
    assert {name.partition(".")[0] for name in public_names()} <= set(dir(outlay))


def test_no_document_or_example_imports_from_the_depths():
    pages = [
        path for folder in ("docs", "examples") for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".py")
    ]
    inner = [page for page in pages if "decisions" in page.parts or "_build" in page.parts or page.stem in INNER]
    deep = [
        f"{page.relative_to(ROOT)}: {line.strip()}"
        for page in [*pages, ROOT / "README.md"]
        if page not in inner
        for line in page.read_text().splitlines()
        if re.match(r"\s*(>>> )?(from|import) outlay\.\w+\.", line)
    ]
    assert len(pages) > 40
    assert not deep, "these names are needed by users: give them a place in a facade"


@pytest.mark.parametrize("name", public_names())
def test_a_public_name_resolves_to_something_documented_that_its_module_defines(name):
    check_public_name(name, public_names()[name])


def check_public_name(name: str, module: str) -> None:
    """Check that a name is that of a documented thing, under which it shows itself."""
    thing = operator.attrgetter(name)(outlay)
    assert thing is getattr(importlib.import_module(module), name.rpartition(".")[2])
    if not (inspect.isclass(thing) or inspect.isroutine(thing)):
        return  # a constant or a type alias, which cannot say where it is defined
    # Errors are shown under the names that users catch them by.
    is_error = inspect.isclass(thing) and issubclass(thing, outlay.OutlayError)
    assert thing.__module__ == ("outlay.errors" if is_error else RE_EXPORTED.get(name, module)), (
        f"import outlay.{name} in the stub from where it is defined"
    )
    docstring = thing.__doc__ or ""
    assert docstring, f"outlay.{name} has no docstring"
    # dataclasses write a docstring of their own, which says nothing that the signature does not
    assert not docstring.startswith(f"{name}("), f"outlay.{name} has only a dataclass's docstring"


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(public_names()) + "\n")
    print(f"wrote {SNAPSHOT.name}: {len(public_names())} public names")
