import importlib.util
from pathlib import Path

import pytest
from tests.unit.layout.broken_rule_sets import BROKEN_RULE_SETS

DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("broken", BROKEN_RULE_SETS, ids=lambda broken: broken.name)
def test_every_broken_rule_set_is_caught_with_its_fix_and_with_nothing_else(broken):
    problems = broken.error().problems
    assert [problem.kind for problem in problems] == [broken.kind] * broken.num_problems
    for problem in problems:
        assert broken.fix in problem.fix


def test_there_are_ten_different_mistakes():
    assert len({broken.name for broken in BROKEN_RULE_SETS}) == len({b.written for b in BROKEN_RULE_SETS}) == 10


def test_the_page_of_caught_mistakes_is_what_these_rule_sets_really_say():
    spec = importlib.util.spec_from_file_location("make_caught_mistakes", DOCS / "make_caught_mistakes.py")
    assert spec is not None
    assert spec.loader is not None
    maker = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(maker)
    assert (DOCS / "caught_mistakes.md").read_text() == maker.page(), "run `python docs/make_caught_mistakes.py`"
