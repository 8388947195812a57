"""The rooms of the house: no two files of one name, and the application on top is imported by nothing below it."""

import ast
from collections import Counter
from pathlib import Path

SRC = Path(__file__).parents[2] / "src"


def test_no_two_files_have_the_same_name():
    names = Counter(path.name for path in SRC.rglob("*.py") if path.name != "__init__.py")
    assert names, "no files found: the test looks in the wrong place"
    assert not [name for name, count in names.items() if count > 1]


def test_nothing_below_it_imports_the_brain():
    importers = [
        str(path.relative_to(SRC))
        for path in SRC.rglob("*.py")
        if "brain" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("outlay.brain")
    ]
    assert not importers
