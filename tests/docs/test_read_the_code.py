"""The pages about the code name files that exist, and words that are few."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("page", ["read_the_code.md", "architecture.md"])
def test_the_files_that_a_page_names_exist(page):
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    named = re.findall(r"`((?:\w+/)+(?:\w+\.py)?)`", text)
    assert len(named) > 10
    assert not [name for name in named if not (ROOT / "src" / "outlay" / name).exists()]


def test_the_glossary_has_at_most_forty_words_in_order_and_those_of_reports_apart():
    own, in_reports = (ROOT / "docs" / "glossary.md").read_text(encoding="utf-8").split("## Words in reports")
    words, others = (re.findall(r"^`?(\w[\w <>-]*?)`?\n: ", text, re.MULTILINE) for text in (own, in_reports))
    assert 20 < len(words) <= 40
    assert 5 < len(others) <= 20
    assert (words, others) == (sorted(words), sorted(others))
