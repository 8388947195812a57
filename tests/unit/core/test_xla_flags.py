import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.core import runtime_flags
from outlay.core.error_types import BackendError, MeshError
from outlay.core.runtime_flags import check_flags, merge_flags, read_flags, simulated_environment

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


@pytest.fixture
def nothing_is_asked(monkeypatch):
    def never(*_):
        raise AssertionError("the library was searched, or XLA was asked")

    monkeypatch.setattr(runtime_flags, "flags_of_library", never)
    monkeypatch.setattr(runtime_flags, "refusal_of_flags", never)


@pytest.mark.parametrize("more", ["", "--xla_force_host_platform_device_count=8"])
def test_flags_that_outlay_sets_are_checked_at_no_cost(more, monkeypatch, nothing_is_asked):
    monkeypatch.setenv("XLA_FLAGS", simulated_environment(8, {"XLA_FLAGS": more})["XLA_FLAGS"])
    check_flags()
    monkeypatch.delenv("XLA_FLAGS")
    check_flags()


def test_flags_that_are_in_the_library_are_not_tried_out(monkeypatch):
    monkeypatch.setattr(runtime_flags, "refusal_of_flags", None)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_enable_fast_math=true --xla_dump_to=/tmp/dumps")
    check_flags()


def test_flags_in_a_file_are_checked_too(monkeypatch, tmp_path):
    (tmp_path / "flags").write_text("--xla_dump_to=/tmp\n--xla_nonsense=1\n")
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    monkeypatch.setattr(runtime_flags, "refusal_of_flags", lambda _: "Unknown flag in XLA_FLAGS: --xla_nonsense=1")
    with pytest.raises(BackendError, match=r"holds 1 flag that XLA does not know.*\n  --xla_nonsense=1"):
        check_flags()
