"""The rooms of the house: no two files of one name, nothing imports the application on top, messages in plain words."""

import ast
import re
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
        for path in (SRC / "outlay").glob("*/**/*.py")
        if "brain" not in path.parts
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("outlay.brain")
    ]
    assert not importers


def test_nothing_below_it_speaks_of_the_brain():
    """What the line offers a spiking network, it offers every graph; `plugins.py` is the registry of what plugs in."""
    words = re.compile("neuron|spike|spiking|brain|soma|synap", re.IGNORECASE)
    offenders = [
        f"{path.relative_to(SRC)}:{number}"
        for path in (SRC / "outlay").glob("*/**/*")
        if path.suffix in (".py", ".toml", ".j2", ".css") and "brain" not in path.parts and path.name != "plugins.py"
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if words.search(line.replace("JetBrains", ""))
    ]
    assert not offenders


def test_messages_count_in_words():
    """`outlay.core.quantities.counted` knows one leaf from two leaves; nobody has to read "1 leaf(s)"."""
    files = [path for path in SRC.rglob("*") if path.suffix in (".py", ".toml", ".j2")]
    lazy = [
        f"{path.relative_to(SRC)}:{number}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if re.search(r"\b[a-z]{3,}\((s|es)\)", line)
    ]
    assert len(files) > 300
    assert not lazy
