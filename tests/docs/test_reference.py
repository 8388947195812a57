import re
from pathlib import Path

import outlay

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"


def test_the_reference_lists_exactly_the_public_names():
    pages = "".join(page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
    listed = re.findall(r"^\.\. auto(?:function|class|exception|data):: outlay\.(\w+)$", pages, re.MULTILINE)
    assert sorted(listed) == sorted(outlay.__all__)
