import dataclasses

import pytest
from tests.unit.report.explain.programs import training

from outlay.core.error_types import ExplainError
from outlay.report.explain.budgets import broken_budgets, read_kind, read_size
from outlay.report.explain.explain import explain


@pytest.fixture(scope="module")
def explanation():
    return explain(training())


def test_a_program_within_its_limits(explanation):
    assert broken_budgets(explanation) == ()
    limits = {"max_bytes": explanation.bytes_per_step, "max_memory": explanation.memory.peak, "forbid": ["all-to-all"]}
    assert broken_budgets(explanation, **limits) == ()


def test_every_broken_limit_is_named(explanation):
    broken = broken_budgets(
        explanation, max_bytes=1024, max_memory=2048, forbid=["all-gather", "all-to-all", "all-reduce"]
    )
    assert len(broken) == 4
    assert broken[0] == "a device sends 84.0 KiB a step, limit 1.0 KiB"
    assert broken[1].endswith("limit 2.0 KiB")
    assert broken[2].startswith("all-gather is forbidden, but runs twice: params.w0 at ")
    assert "programs.py" in broken[2]
    assert broken[3].startswith("all-reduce is forbidden")


def test_what_is_not_known_keeps_no_limit(explanation):
    unread = dataclasses.replace(
        explanation, hlo=dataclasses.replace(explanation.hlo, skipped=((3, "?"),)), memory=None
    )
    broken = broken_budgets(unread, max_bytes=2**40, max_memory=2**40, forbid=["all-to-all"])
    assert [text.partition(":")[0] for text in broken] == [
        "cannot check what a device sends",
        "cannot check the memory of a device",
        "all-to-all is forbidden, but cannot be checked",
    ]
    without_text = dataclasses.replace(explanation, hlo=None, collectives=())
    assert broken_budgets(without_text, max_bytes=2**40) == broken[:1]


@pytest.mark.parametrize(
    ("text", "expected"), [("10GiB", 10 * 2**30), ("1.5MB", 1_500_000), ("64 kib", 65536), ("7", 7)]
)
def test_sizes(text, expected):
    assert read_size(text) == expected


@pytest.mark.parametrize("text", ["", "GiB", "-3MB", "3 meters"])
def test_no_sizes(text):
    with pytest.raises(ExplainError, match="is not a size"):
        read_size(text)


def test_no_kind():
    assert read_kind("all-to-all") == "all-to-all"
    with pytest.raises(ExplainError, match="no kind of collective 'all-gahter': did you mean 'all-gather'"):
        read_kind("all-gahter")
