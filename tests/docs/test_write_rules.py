import re
from pathlib import Path

import pytest

from outlay.core.paths import matches

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "write_rules.md"
ROWS = re.findall(r"^\| (`.*`) \| (.*) \| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize(("pattern", "matching", "others"), ROWS, ids=[row[0] for row in ROWS])
def test_the_table_of_patterns_is_true(pattern, matching, others):
    pattern = pattern.strip("`")
    assert all(matches(pattern, path) for path in re.findall(r"`(.*?)`", matching))
    assert not any(matches(pattern, path) for path in re.findall(r"`(.*?)`", others))


def test_the_table_of_patterns_is_found():
    assert len(ROWS) >= 5
