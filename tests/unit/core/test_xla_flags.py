import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.core.error_types import MeshError
from outlay.core.runtime_flags import merge_flags, read_flags

names = st.text(string.ascii_lowercase + "_", min_size=1).map(lambda text: f"xla_{text}")
values = st.one_of(st.integers(), st.booleans(), st.text(string.ascii_letters + "/.=", min_size=1))
flags = st.dictionaries(names, values)


def text_of(found: dict[str, object]) -> str:
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in found.items()}
    return " ".join(f"--{name}={value}" for name, value in texts.items())


@pytest.mark.compiles
@given(existing=flags, wanted=flags)
def test_merging_keeps_what_is_there_and_adds_what_is_missing(existing, wanted):
    new = {name: value for name, value in wanted.items() if name not in existing}
    merged = merge_flags(text_of(existing), new)
    assert merged.startswith(text_of(existing))
    assert read_flags(merged) == read_flags(text_of({**existing, **new}))
    assert merge_flags(merged, new) == merged


def test_flags_that_are_set_alike_are_not_repeated():
    assert merge_flags("--xla_a --xla_b=8", {"xla_a": True, "xla_b": 8}) == "--xla_a --xla_b=8"


def test_conflicts_are_listed_all_with_both_values_and_the_fix():
    with pytest.raises(MeshError, match="--xla_a=1 is set, but 2 is needed") as caught:
        merge_flags("--xla_a=1 --xla_b=x", {"xla_a": 2, "xla_b": "y"})
    assert "fix: remove --xla_b=x from XLA_FLAGS, or set it to y" in str(caught.value)


def test_the_last_mention_of_a_flag_counts_as_in_xla():
    with pytest.raises(MeshError, match="--xla_a=2 is set, but 1 is needed"):
        merge_flags("--xla_a=1 --xla_a=2", {"xla_a": 1})
