"""Predicted and measured, joined by the names of instructions; on simulated devices, so times say nothing."""

import html
import inspect
import json
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from tests.unit.program.test_storing import BATCH, layer, program_of

import outlay
from outlay.errors import ProfileError, ProgramError
from outlay.report.profile.profile import joined, without_graphs
from outlay.report.profile.profiled import TraceEvent

_, FIRST = inspect.getsourcelines(layer)
LAYER = (FIRST + 2, FIRST + 3)
"""The lines of its two products."""


@pytest.fixture(scope="module")
def program():
    return program_of(("layer_input", outlay.layout.keep()))


@pytest.fixture(scope="module")
def profiled(program):
    return outlay.profile(program, [BATCH, BATCH], steps=2)


def test_every_operation_has_both_times_by_line_module_phase_and_leaf(profiled):
    assert (profiled.num_steps, profiled.num_devices) == (2, 8)
    assert all(one.measured is not None for one in profiled.operations if one.predicted)
    for groups in (profiled.by_line(), profiled.by_module(), profiled.by_phase()):
        assert sum(one.predicted for one in groups) == pytest.approx(profiled.predicted_seconds)
        assert sum(one.measured for one in groups) == pytest.approx(
            profiled.measured_seconds - profiled.unknown_seconds
        )
    assert {one.name.rpartition("/")[2] for one in profiled.by_line()} >= {
        f"test_storing.py:{number}" for number in LAYER
    }
    assert {one.name for one in profiled.by_leaf()} >= {"params.up", "params.down"}
    assert {"forward", "backward", "optimizer"} <= {one.name for one in profiled.by_phase()}
    for one in profiled.by_line():
        assert one.ratio == pytest.approx(one.measured / one.predicted)


def test_it_prints_its_tables_and_says_that_devices_are_simulated(profiled):
    text = str(profiled)
    assert "operations of a step: predicted " in text
    assert text.startswith("step: 2 steps on 8 devices, predicted with the speeds of cpu:8\n")
    assert "these times say nothing about real hardware" in text
    assert "leaf that is moved" in text
    facts = json.loads(json.dumps(profiled.to_dict()))
    assert facts["by_phase"][0].keys() == {"name", "predicted", "measured", "ratio"}
    assert len(facts["operations"]) == len(profiled.operations)


def test_lines_are_told_from_the_working_folder_and_no_function_by_pythons_own_word(profiled):
    elsewhere = f"{Path(outlay.__file__).parent}/models/classifiers.py:44"  # of a package, below no working folder
    of_others = {"line": elsewhere, "module": "train_step.<locals>.step"}
    elsewhere_profiled = replace(profiled, operations=tuple(replace(one, **of_others) for one in profiled.operations))
    page = html.unescape(elsewhere_profiled.to_html())
    assert "outlay/models/classifiers.py:44" in page
    assert elsewhere not in page
    assert "train_step.step" in page


def test_the_trace_shows_the_predicted_step_above_the_measured_ones(profiled):
    events = profiled.to_trace()["traceEvents"]
    processes = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    assert processes[1] == "predicted: step on cpu:8"
    assert processes[2].startswith("measured: /host:CPU, 2 steps")
    measured = [event for event in events if event["ph"] == "X" and event["pid"] == 2]
    assert len(measured) == len(profiled.events)
    assert min(event["ts"] for event in measured) == 0
    names = {event["tid"] for event in events if event["name"] == "thread_name" and event["pid"] == 2}
    assert {event["tid"] for event in measured} == names


@pytest.mark.thorough  # one is taken and read above
def test_a_trace_that_was_taken_before_is_read_and_its_steps_are_counted(program, profiled, tmp_path):
    state, _ = jax.block_until_ready(program(program.init(jax.random.key(0)), BATCH))
    with jax.profiler.trace(str(tmp_path)):
        for _ in range(3):
            state, _ = program(state, BATCH)
        jax.block_until_ready(state)
    read = outlay.profile(program, trace=tmp_path)
    assert read.num_steps == 3
    assert {one.name for one in read.operations} == {one.name for one in profiled.operations}

    other = laid_out(lambda state, batch: (state + 1, batch.mean()), "another")
    with pytest.raises(ProfileError, match="a trace of another program: it has no event of jit_another, only of jit_"):
        outlay.profile(other, trace=tmp_path)
    other = laid_out(lambda state, batch: (jax.numpy.fft.fft(state + 0j).real, ()), program.step.__name__)
    with pytest.raises(ProfileError, match="another program of the same name, whose operations"):
        outlay.profile(other, trace=tmp_path)


def laid_out(step, name):
    step.__name__ = name
    return outlay.program(step, lambda key: jax.numpy.ones(8), BATCH, layout=outlay.data_parallel(), mesh="data=8")


def test_a_trace_of_nothing_and_what_is_no_trace_are_refused(program, tmp_path):
    with pytest.raises(ProfileError, match=r"there is no trace in .*\n  fix: pass a file that ends in \.xplane\.pb"):
        outlay.profile(program, trace=tmp_path)
    with jax.profiler.trace(str(tmp_path)):
        pass
    with pytest.raises(ProfileError, match=r"no event of a compiled program: .*\n  fix: profile whole steps"):
        outlay.profile(program, trace=tmp_path)
    (tmp_path / "broken.xplane.pb").write_bytes(b"\xff\xff\xff")
    with pytest.raises(ProfileError, match=r"broken\.xplane\.pb cannot be read as a trace"):
        outlay.profile(program, trace=tmp_path / "broken.xplane.pb")


def test_too_few_batches_and_absent_devices_are_refused(program):
    with pytest.raises(ProgramError, match="3 steps need 3 batches, but there are 1"):
        outlay.profile(program, [BATCH])


def test_on_gpus_operations_are_told_apart_and_a_trace_in_which_they_are_not_is_refused(profiled):
    batch = np.ones((8, 8), np.float32)
    mesh = outlay.mesh(data=1, target="h100:1x1")
    for_gpus = outlay.program(
        lambda state, batch: (state @ batch, ()), lambda: batch, batch, layout=outlay.data_parallel(), mesh=mesh
    )
    alone = without_graphs(for_gpus)
    assert alone.compiler_options.is_preset  # so that what this compiler does not know is still left out
    assert dict(alone.compiler_options.values) == {
        **for_gpus.compiler_options.values,
        "xla_gpu_enable_command_buffer": "",
    }
    explained = replace(profiled.explanation, compiler_options=alone.compiler_options)
    assert "without CUDA graphs" in str(replace(profiled, explanation=explained))
    events = [TraceEvent("command_buffer_1", ("/device:GPU:0", "Stream #1"), 0.0, 1e-3)]
    with pytest.raises(ProfileError, match=r"1 event of them, such as command_buffer_1\n  fix: .*command_buffer= "):
        joined(profiled.explanation, events, 1)
