"""The list of files in the Makefile names what exists, and the map in docs/architecture.md all folders."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_map_of_the_architecture_shows_the_folders_on_disk():
    page = (ROOT / "docs/architecture.md").read_text()
    between_markers = re.search(r"<!-- map -->(.*?)<!-- /map -->", page, re.DOTALL)
    assert between_markers, "docs/architecture.md needs a folder map between `<!-- map -->` and `<!-- /map -->`"
    mapped = re.findall(r"^[\s|*`├└│─-]*(\w+)/[`\s]", between_markers[1], re.MULTILINE)
    on_disk = [path.parent.name for path in (ROOT / "src/outlay").glob("*/__init__.py")]
    assert sorted(mapped) == sorted(on_disk)


def test_what_the_newest_jax_runs_exists():
    """pytest stops at a file that is not there, and runs none of the others."""
    listed = re.search(r"^ON_NEWEST_JAX := (.*?)\n\n", (ROOT / "Makefile").read_text(), re.DOTALL | re.MULTILINE)
    assert listed
    text = listed[1].replace("\\\n", " ")
    groups = re.findall(r"\$\(addprefix (\S+?),(.*?)\)", text)
    alone = re.findall(r"tests/\S+", re.sub(r"\$\(.*?\)", "", text))
    paths = [*(prefix + name for prefix, names in groups for name in names.split()), *alone]
    assert len(paths) > 40
    assert [path for path in paths if not (ROOT / path.partition("::")[0]).exists()] == []
