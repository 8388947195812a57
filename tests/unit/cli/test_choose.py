"""`outlay choose` as a user meets it; real processes compile for simulated devices."""

import json
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.unit.cli.command import LINE, OUTLAY, ROOT, command_here, environment
from tests.unit.devices.compilers import needs_gpu_compiler
from typer.testing import CliRunner

from outlay.cli.main import app

pytestmark = pytest.mark.processes

VARIED = f"{ROOT}/tests/unit/recipes/varied.py:varied"
FEW = ("--layout", "dp", "--layout", "fsdp", "--accumulate", "1", "--no-remat", "--processes", "2")


@pytest.mark.thorough  # test_compile_only.py compiles for such GPUs
@needs_gpu_compiler
def test_gpus_that_are_not_here_are_chosen_for_with_their_own_compiler(tmp_path, own_cache):
    finished = command_here(
        *("choose", VARIED, "--target", "h100:1x2", "--layout", "tp", "--accumulate", "1", "--no-remat", "--json"),
        *("--html", "page.html"),
        cwd=tmp_path,
    )
    assert finished.exit_code == 0, finished.stderr
    chosen = json.loads(finished.stdout)["chosen"]
    assert chosen["mesh"] == "data=1,model=2"
    assert chosen["price"]["capacity"] > 70 * 2**30
    assert chosen["price"]["bytes_by_axes"]["model"] > 0
    assert chosen["price"]["crossing"] == []
    page = (tmp_path / "page.html").read_text()
    assert "priced: " in page
    assert "A step in the order of execution" in page


@pytest.fixture(scope="module")
def chosen(tmp_path_factory):
    """A search, and the same one again."""
    folder = tmp_path_factory.mktemp("choose")
    arguments = ("choose", VARIED, "--target", "cpu:8", *FEW)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("JAX_PLATFORMS", "cpu")  # which the command sets
        first = command_here(*arguments, "--html", "choose.html", cwd=folder)
        again = command_here(*arguments, "--json", cwd=folder)
    return folder, first, again


def test_choose_ranks_compiled_candidates_and_prints_the_next_commands(chosen):
    _, first, _ = chosen
    assert first.exit_code == 0, first.stderr
    assert first.stdout.startswith("cpu:8: ")
    assert "  chosen: the fastest that fits\n" in first.stdout
    assert "x the time: " in first.stdout
    paragraph = " ".join(first.stdout.split())
    assert "to run it arithmetic ruled out" in paragraph
    assert "samples are split. A step takes" in paragraph
    assert ". Next is " in paragraph
    assert f"outlay run {VARIED} --accumulate 1 --no-remat --layout chosen.toml" in first.stdout
    assert "--target cpu:8" in first.stdout


def test_the_page_has_a_dot_for_each_candidate(chosen):
    folder, first, _ = chosen
    assert "wrote choose.html: open it in a browser" in first.stderr
    assert (folder / "choose.html").read_text().count("<circle") == 2


def test_progress_goes_to_stderr(chosen):
    _, first, _ = chosen
    assert "compiling 2 candidates for cpu:8" in first.stderr
    assert "2/2  " in first.stderr
    assert "2/2" not in first.stdout
    assert "\x1b" not in first.stdout + first.stderr


def test_the_same_question_again_compiles_nothing(chosen):
    folder, _, again = chosen
    assert again.exit_code == 0, again.stderr
    assert again.stderr.count("kept from before") == 2
    compiled = [each for each in json.loads(again.stdout)["considered"] if each["price"]]
    assert [each["was_kept"] for each in compiled] == [True, True]
    assert len(list((folder / "cache" / "outlay" / "compiled").iterdir())) == 2


def test_the_file_runs_on_its_mesh(chosen):
    folder, _, _ = chosen
    text = (folder / "chosen.toml").read_text()
    assert text.startswith(f"# Chosen by outlay choose {VARIED}")
    assert 'mesh = "data=8"' in text
    shown = command_here("show", VARIED, "--layout", "chosen.toml", "--devices", "8", cwd=folder)
    assert "mesh data=8" in shown.stdout, shown.stderr


@pytest.fixture
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # which the command sets


@pytest.mark.thorough  # test_search.py has a search in which nothing fits
def test_no_candidate_fits(tmp_path, own_cache, monkeypatch):
    (tmp_path / "targets.toml").write_text('[small]\nlike = "cpu"\nmemory_bytes = 52000\n')
    monkeypatch.setenv("OUTLAY_TARGETS", "targets.toml")
    failed = command_here(
        *("choose", VARIED, "--target", "small:4", "--layout", "dp", "--accumulate", "1", "--no-remat"),
        *("--mesh", "data=4"),
        cwd=tmp_path,
    )
    assert failed.exit_code == 2
    assert "error: none of the 1 candidates that were compiled can run on small:4 (50.8 KiB a device)" in failed.stderr
    assert "nearest: dp data=4, " in failed.stderr
    assert "KiB a device too much" in failed.stderr
    fits = "--accumulate 1 --no-remat --target small:4 --layout fsdp --mesh data=4"
    assert "fix: what should fit, by arithmetic: about " in failed.stderr
    assert f"KiB: outlay explain {VARIED} {fits}" in failed.stderr
    assert failed.stdout == ""
    assert not (tmp_path / "chosen.toml").exists()


IN_A_WORKER = 'sys.argv[0].endswith("choose.py")'
SLEEPS = f"""
import os, sys, time
from tests.unit.recipes.small import line

def sleeps():
    if {IN_A_WORKER}:
        open(str(os.getpid()), "w")
        time.sleep(600)
    return line()
"""
FAILS = f"""
import sys
from tests.unit.recipes.small import line

def fails():
    print("noise of the recipe's own")
    assert not {IN_A_WORKER}, "not here"
    return line()
"""


def test_what_takes_too_long_is_stopped_and_named(tmp_path, own_cache):
    (tmp_path / "mine.py").write_text(SLEEPS)
    failed = command_here(
        *("choose", "mine.py:sleeps", "--target", "cpu:2", "--layout", "dp", "--timeout", "6"), cwd=tmp_path
    )
    assert failed.exit_code == 2
    assert "dp data=2: timed out: stopped after 6 s" in failed.stderr
    assert "fix: give each more time: --timeout" in failed.stderr


def test_a_recipe_that_fails_where_it_is_compiled_is_told_with_its_line(tmp_path, own_cache):
    (tmp_path / "mine.py").write_text(FAILS)
    failed = command_here("choose", "mine.py:fails", "--target", "cpu:2", "--layout", "dp", cwd=tmp_path)
    assert failed.exit_code == 2
    assert "mine.py:fails() raised an error" in failed.stderr
    assert "AssertionError: not here" in failed.stderr
    assert "Traceback" not in failed.stderr


def test_ctrl_c_keeps_what_was_compiled_and_leaves_no_process(tmp_path):
    (tmp_path / "mine.py").write_text(SLEEPS)
    with subprocess.Popen(
        [*OUTLAY, "choose", "mine.py:sleeps", "--target", "cpu:2", "--layout", "dp"],
        cwd=tmp_path,
        env=environment(XDG_CACHE_HOME=str(tmp_path)),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        workers = wait_for_workers(process, tmp_path)
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=280)
    assert process.returncode == 130
    assert f"stopped: 0 of 1 candidates were compiled and are kept in {tmp_path}/outlay/compiled" in errors
    assert "Traceback" not in errors
    assert not any(Path(f"/proc/{worker}").exists() for worker in workers)


def wait_for_workers(process: subprocess.Popen[str], folder: Path) -> list[str]:
    deadline = time.monotonic() + 280
    while not (pids := [path.name for path in folder.iterdir() if path.name.isdecimal()]):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return pids


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([LINE], "Missing option '--target'"),
        ([LINE, "--target", "h10:1x8"], "did you mean 'h100'"),
        ([LINE, "--target", "cpu:8", "--layout", "fsd"], "has no layout 'fsd'"),
        ([LINE, "--target", "cpu:8", "--mesh", "data=3"], "data=3, but cpu:8 has 8 devices"),
        ([LINE, "--target", "cpu:8", "--size", "3b"], "there is no option --size"),
        ([LINE, "--target", "cpu:8", "--num-candidates", "0"], "greater than or equal to 1"),
        ([LINE, "--target", "cpu:8", "--output", "nowhere/chosen.toml"], "there is no folder nowhere"),
        ([LINE, "--target", "cpu:8", "--output", "mine.toml"], "Outlay did not make it; nothing was written"),
    ],
)
def test_a_mistake_ends_before_anything_is_compiled(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")  # which the command sets
    (tmp_path / "mine.toml").write_text("[[rule]]\nstrategy = 'data_parallel'\n")
    failed = CliRunner().invoke(app, ["choose", *arguments])
    assert failed.exit_code == 2, failed.output
    assert message in failed.stderr
    assert "compiling" not in failed.stderr
    assert failed.stdout == ""
