import os
import string
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outlay.core.error_types import BackendError, MeshError
from outlay.core.flag_check import ACCEPTED, check_flags
from outlay.core.runtime_flags import flags_of_library, merge_flags, read_flags, simulated_environment

names = st.text(string.ascii_lowercase + "_", min_size=1).map(lambda text: f"xla_{text}")
values = st.one_of(st.integers(), st.booleans(), st.text(string.ascii_letters + "/.=", min_size=1))
flags = st.dictionaries(names, values)


def text_of(flags: dict[str, object]) -> str:
    texts = {name: str(value).lower() if isinstance(value, bool) else value for name, value in flags.items()}
    return " ".join(f"--{name}={value}" for name, value in texts.items())


@pytest.mark.compiles
@given(existing=flags, needed=flags)
def test_merging_keeps_what_is_there_and_adds_what_is_missing(existing, needed):
    new = {name: value for name, value in needed.items() if name not in existing}
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


def never(*_, **__):
    raise AssertionError("XLA was asked")


@pytest.mark.parametrize("more", ["", "--xla_force_host_platform_device_count=8"])
def test_flags_that_outlay_sets_are_checked_at_no_cost(more, monkeypatch):
    monkeypatch.setattr(subprocess, "run", never)
    monkeypatch.setenv("XLA_FLAGS", simulated_environment(8, {"XLA_FLAGS": more})["XLA_FLAGS"])
    check_flags()
    monkeypatch.delenv("XLA_FLAGS")
    check_flags()


ASKED_ABOUT = "--xla_cpu_enable_fast_math=true --xla_dump_to=/tmp/dumps"


@pytest.fixture
def accepted(monkeypatch):
    """What XLA was asked about, and takes."""
    monkeypatch.setenv(ACCEPTED, "")
    monkeypatch.setenv("XLA_FLAGS", ASKED_ABOUT)
    check_flags()
    return os.environ[ACCEPTED]


@pytest.mark.processes
def test_flags_that_xla_takes_are_asked_about_once_by_a_process_and_those_that_it_starts(accepted, monkeypatch):
    monkeypatch.setenv(
        "XLA_FLAGS", f"{ASKED_ABOUT} --xla_force_host_platform_device_count=8"
    )  # as for simulated devices
    monkeypatch.setattr(subprocess, "run", never)
    check_flags()
    twice = f"--xla_cpu_enable_fast_math=bad {ASKED_ABOUT}"
    added = f"{ASKED_ABOUT} --xla_dump_hlo_as_text"
    for other in (added, twice, "--xla_cpu_enable_fast_math=true", "--xla_dump_to=/tmp"):
        monkeypatch.setenv("XLA_FLAGS", other)
        with pytest.raises(AssertionError, match="XLA was asked"):
            check_flags()


@pytest.mark.processes
def test_flags_in_a_file_are_asked_about_again_when_it_changes(accepted, monkeypatch, tmp_path):
    (tmp_path / "flags").write_text(ASKED_ABOUT)
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags"))
    monkeypatch.setattr(subprocess, "run", never)
    check_flags()
    (tmp_path / "flags").write_text(ASKED_ABOUT.replace("true", "yes"))
    with pytest.raises(AssertionError, match="XLA was asked"):
        check_flags()


REFUSED = {
    "--xla_cpu_enable_fast_mth": "XLA does not know it; did you mean 'xla_cpu_enable_fast_math'?",
    "--xla_cpu_enable_fast_math=yes": "yes is not a value of this bool flag, whose default is false",
    "--xla_gpu_autotune_level=high": "high is not a value of this int32 flag, whose default is 4",
    "--xla_force_host_platform_device_count=eight": "eight is not a value of this int32 flag, whose default is 1",
}


@pytest.mark.some_cases(1)
@pytest.mark.processes
@pytest.mark.parametrize("in_a_file", [False, True])
def test_each_flag_that_xla_refuses_is_listed_with_the_reason(in_a_file, monkeypatch, tmp_path):
    text = " ".join([*REFUSED, "--xla_dump_to=/tmp"])
    (tmp_path / "flags").write_text(text)
    monkeypatch.setenv("XLA_FLAGS", str(tmp_path / "flags") if in_a_file else text)
    with pytest.raises(BackendError, match="holds 4 flags that XLA does not take, so JAX cannot start") as caught:
        check_flags()
    assert str(caught.value).splitlines()[1:-1] == [f"  {flag}: {reason}" for flag, reason in REFUSED.items()]


@pytest.mark.processes
def test_a_file_of_flags_that_is_not_there(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "no-such-file")
    with pytest.raises(BackendError, match='Could not open file "no-such-file"'):
        check_flags()


def test_names_of_files_in_a_library_are_not_flags(tmp_path):
    library = tmp_path / "library"
    library.write_bytes(b"\0xla_cpu_fast_math\0xla_2fservice_2fhlo_2eproto\0xla_2eproto_deps\0xla_gpu_level_2\0")
    assert flags_of_library(library) == {"xla_cpu_fast_math", "xla_gpu_level_2"}
