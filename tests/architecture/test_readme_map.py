"""The folder map in README.md names the folders that exist, all of them and no others."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_map_in_the_readme_shows_the_folders_on_disk():
    readme = (ROOT / "README.md").read_text()
    between_markers = re.search(r"<!-- map -->(.*?)<!-- /map -->", readme, re.DOTALL)
    assert between_markers, "README.md needs a folder map between `<!-- map -->` and `<!-- /map -->`"
    mapped = re.findall(r"^[\s|*`├└│─-]*(\w+)/[`\s]", between_markers[1], re.MULTILINE)
    on_disk = [path.parent.name for path in (ROOT / "src/outlay").glob("*/__init__.py")]
    assert sorted(mapped) == sorted(on_disk)
