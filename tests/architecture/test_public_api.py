"""A public name is a promise: adding or removing one is a decision, accepted with `make snapshots`."""

import ast
import importlib
from pathlib import Path

import pytest

import outlay

STUB = Path(outlay.__file__).with_suffix(".pyi")
SNAPSHOT = Path(__file__).with_name("public_api.txt")


def public_names() -> dict[str, str]:
    """Every public name and the module that defines it, in the order of the stub."""
    imports = [node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: f"outlay.{node.module}" for node in imports for alias in node.names}


def test_the_public_names_are_those_of_the_snapshot():
    assert list(public_names()) == SNAPSHOT.read_text().split(), (
        "the public names changed: if that is intended, run `make snapshots`"
    )


def test_dir_shows_every_public_name():
    assert set(public_names()) <= set(dir(outlay))


@pytest.mark.parametrize("name", public_names())
def test_a_public_name_resolves_to_something_documented_that_its_module_defines(name):
    module = public_names()[name]
    thing = getattr(outlay, name)
    assert thing is getattr(importlib.import_module(module), name)
    assert thing.__module__ == module, f"import outlay.{name} in the stub from where it is defined"
    docstring = thing.__doc__ or ""
    assert docstring, f"outlay.{name} has no docstring"
    # dataclasses write a docstring of their own, which says nothing that the signature does not
    assert not docstring.startswith(f"{name}("), f"outlay.{name} has only a dataclass's docstring"


if __name__ == "__main__":
    SNAPSHOT.write_text("\n".join(public_names()) + "\n")
    print(f"wrote {SNAPSHOT.name}: {len(public_names())} public names")
