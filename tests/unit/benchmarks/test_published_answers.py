"""What is kept of the compilation of a published run: the compiler's own answer, and nothing else."""

import importlib
import sys
import threading
from pathlib import Path

import pytest

from outlay.errors import CompilerAbortError

SCRIPTS = Path(__file__).parents[3] / "benchmarks"
ROW = "maxtext-a3-llama2-7b-8"


@pytest.fixture
def facts(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("_published_facts")


@pytest.fixture
def run(facts):
    return next(facts.runs_of(row)[0] for row in facts.read_rows(facts.RUNS) if row["id"] == ROW)


class Killed:
    """A process that something outside ends as soon as it has written a line."""

    def __init__(self, command, stdout, stderr):
        stdout.write("compiling\n")

    def poll(self):
        return -9


def test_a_run_whose_process_is_killed_is_compiled_the_next_time(facts, run, monkeypatch, tmp_path, capsys):
    started = []
    monkeypatch.setattr(
        facts.subprocess, "Popen", lambda *args, **options: started.append(args) or Killed(*args, **options)
    )
    for _ in range(2):
        facts.compile_rows([run], tmp_path, 1)
    assert len(started) == 2
    assert facts.cached_facts(run, tmp_path) is None
    assert facts.last_words(run, tmp_path) == "compiling"
    assert "no answer of the compiler" in capsys.readouterr().err


def compile_one(facts, run, monkeypatch, cache, error):
    def refuse(run):
        raise error

    monkeypatch.setattr(facts, "compiled_of", refuse)
    monkeypatch.setattr(sys, "argv", ["", str(facts.RUNS), run.id, facts._asked(run), str(cache)])
    facts.main()
    return facts.cached_facts(run, cache)["error"]


@pytest.mark.parametrize("error", [RuntimeError("RESOURCE_EXHAUSTED"), CompilerAbortError("SIGABRT: Check failed")])
def test_what_the_compiler_says_of_a_run_is_kept(facts, run, monkeypatch, tmp_path, error):
    assert compile_one(facts, run, monkeypatch, tmp_path, error) == str(error)


def test_a_compiler_that_was_ended_from_outside_said_nothing(facts, run, monkeypatch, tmp_path):
    error = CompilerAbortError("ended from outside\n  SIGKILL, without a word")
    error.is_from_outside = True
    with pytest.raises(SystemExit, match="ended from outside SIGKILL, without a word"):
        compile_one(facts, run, monkeypatch, tmp_path, error)
    assert facts.cached_facts(run, tmp_path) is None


@pytest.fixture
def tpu(monkeypatch):
    monkeypatch.syspath_prepend(str(SCRIPTS))
    return importlib.import_module("_published_tpu")


BUFFERS = """BufferAssignment:
allocation 0: size 8, parameter 0, shape |f32[2]| at ShapeIndex {}, maybe-live-out:
 value: <1 p @0> (size=8,offset=0): f32[2]{0}
allocation 1: size 4, maybe-live-out:
allocation 2: size 64, preallocated-temp:
allocation 3: size 32, color 5, preallocated-temp:
allocation 4: size 9, color 1, preallocated-temp:
"""
USAGE = "Memory Space: default (color=0)\nTotal bytes: 70 (70B)\n"


def test_a_program_for_tpus_is_read_when_its_buffers_are_placed(tpu):
    """The compiler then writes machine code, for ten times as long: here for ever."""
    ended = threading.Event()

    def compile_with(options):
        folder = Path(options["xla_dump_to"])
        for name, text in (("-buffer-assignment", BUFFERS), ("-memory-usage-report", USAGE)):
            (folder / f"module_0.jit_step.after_optimizations{name}.txt").write_text(text)
        (folder / "module_0.jit_step.after_optimizations_after_buffer_assignment.txt").write_text("HloModule")
        ended.wait()

    text, memory = tpu.before_machine_code(compile_with)
    ended.set()
    assert text == "HloModule"
    in_words = {name.removesuffix("_in_bytes"): size for name, size in memory.items() if size}
    on_device = {"argument_size": 8, "output_size": 12, "alias_size": 8, "temp_size": 64, "peak_memory": 70}
    assert in_words == {**on_device, "host_temp_size": 32}


def test_a_program_that_the_compiler_for_tpus_refuses_is_refused(tpu):
    def compile_with(options):
        raise RuntimeError("RESOURCE_EXHAUSTED")

    with pytest.raises(RuntimeError, match="RESOURCE_EXHAUSTED"):
        tpu.before_machine_code(compile_with)


def test_a_compiler_that_writes_nothing_is_told(tpu):
    with pytest.raises(RuntimeError, match="wrote no"):
        tpu.before_machine_code(lambda options: None)
