"""What lists files tells of those that exist: the map in docs/architecture.md, and the marks of tests."""

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


def test_repetitions_are_marked_only_where_the_newest_jax_runs_tests():
    """`any_jax` takes a test out of what the newest JAX runs: where nothing is in it, it would only look as if."""
    files = [path for folder in ("tests", "packages") for path in (ROOT / folder).rglob("test_*.py")]
    tests = {path: path.read_text() for path in files if path != Path(__file__)}
    newest = [path for path, text in tests.items() if "pytest.mark.newest" in text]
    assert len(newest) > 40
    in_vain = [path for path, text in tests.items() if "pytest.mark.any_jax" in text and path not in newest]
    assert in_vain == []


def test_every_decision_is_in_the_index_once_with_its_title_and_a_status():
    folder = ROOT / "docs/decisions"
    rows = re.findall(
        r"^\| \[(\d+\. .+)\]\((0\S+\.md)\) \| (\S.*) \|$", (folder / "index.md").read_text(), re.MULTILINE
    )
    written = {path.name: path.read_text().partition("\n")[0] for path in folder.glob("0*.md")}
    assert sorted((name, f"# {title}") for title, name, _ in rows) == sorted(written.items())
