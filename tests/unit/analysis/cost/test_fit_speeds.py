"""Speeds fitted to a recorded step: eight simulated devices, two steps, as JAX's profiler traced them (`data/`)."""

import gzip
import json
import math
from dataclasses import replace
from pathlib import Path

import pytest
from jax.sharding import AbstractMesh, AxisType

from outlay.analysis.cost.fit_speeds import fit_speeds
from outlay.analysis.cost.lanes import flattened
from outlay.analysis.cost.price import time_on_lanes
from outlay.core.error_types import OutputError, TargetError
from outlay.devices.hardware import known_hardware
from outlay.devices.target import Target
from outlay.report.explain.explain import explain
from outlay.report.profile.profile import joined
from outlay.report.profile.profiled import TraceEvent

RECORDED = Path(__file__).parents[3] / "data" / "profiled_step.json.gz"
MESH = AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))


@pytest.fixture(scope="module")
def recorded():
    return json.loads(gzip.decompress(RECORDED.read_bytes()))


def profiled(recorded, target):
    explanation = explain(recorded["text"], mesh=MESH, target=target)
    events = [
        TraceEvent(recorded["names"][name], ("/host:CPU", str(track)), begin * 1e-9, seconds * 1e-9)
        for name, track, begin, seconds in recorded["events"]
    ]
    return joined(explanation, events, recorded["num_steps"])


def away(profile):
    """How far measured and predicted are apart, as a ratio: of all operations, and of those of each line."""
    lines = [one for one in profile.by_line() if one.predicted and one.measured]
    whole = abs(math.log(profile.measured_seconds / profile.predicted_seconds))
    weighed = sum(one.measured * abs(math.log(one.ratio)) for one in lines)
    return whole, weighed / sum(one.measured for one in lines)


def test_with_the_written_file_predicted_and_measured_are_nearer(recorded, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    before = profiled(recorded, "cpu:8")
    speeds = before.fitted_speeds()
    speeds.write(Path("my_cpu.toml"))
    after = profiled(recorded, "my_cpu.toml:8")
    assert str(after.explanation.target) == "my_cpu.toml:8"
    assert after.explanation.target.hardware.peak_flops["float32"] == speeds.peak_flops["float32"]
    (whole_before, lines_before), (whole_after, lines_after) = away(before), away(after)
    assert whole_after < 0.01 < 0.5 < whole_before
    assert lines_after < lines_before / 2


def test_speeds_that_made_the_times_are_found_again(recorded):
    """Times are made with other speeds than the hardware is known for, and the fit is given nothing but the times."""
    schedule = explain(recorded["text"], mesh=MESH, target="cpu:8").schedule
    known = known_hardware(calibrated=False)["cpu"]
    true = Target.parse("cpu:8")
    hardware = replace(
        known,
        peak_flops={"float32": 3e9},
        memory_bandwidth=0.7e9,
        intra_host_link_bandwidth=0.05e9,
        link_latency=300e-6,
    )
    stretches = list(flattened(time_on_lanes(schedule, replace(true, hardware=hardware)).stretches))
    measured = {one.name: one.seconds * one.runs for one in stretches}
    speeds = fit_speeds(schedule, true, measured)
    assert speeds.peak_flops["float32"] == pytest.approx(3e9, rel=0.02)
    assert speeds.memory_bandwidth == pytest.approx(0.7e9, rel=0.02)
    assert speeds.link_latency == pytest.approx(300e-6, rel=0.3)  # one size of exchange tells the two apart badly
    fitted = list(flattened(time_on_lanes(schedule, replace(true, hardware=speeds.hardware)).stretches))
    assert sum(one.seconds for one in fitted) == pytest.approx(sum(one.seconds for one in stretches), rel=0.02)


def test_the_file_is_written_as_any_other_and_says_what_it_is(recorded, tmp_path):
    speeds = profiled(recorded, "cpu:8").fitted_speeds()
    path = tmp_path / "my_cpu.toml"
    speeds.write(path)
    first, checksum, _, *table = path.read_text().splitlines()
    assert first.startswith("# Written by `outlay profile --calibrate`")
    assert first.endswith("--target my_cpu.toml:N")
    assert checksum.startswith("# Checksum: ")
    assert table[0] == "[cpu]"
    speeds.write(path)
    path.write_text("[cpu]\nmemory_bandwidth = 1e9\n")
    with pytest.raises(OutputError, match="Outlay did not make it"):
        speeds.write(path)
    text = str(speeds)
    assert "products in float32" in text
    assert "a step of a collective" in text


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, r"my\.toml: there is no such file\n  fix: outlay profile RECIPE --calibrate my\.toml writes one"),
        (
            "[cpu]\n[h100]\n",
            r"my\.toml holds 2 tables: cpu, h100; a target names a file of one\n  fix: OUTLAY_TARGETS=",
        ),
        ("", r"my\.toml holds 0 tables; a target names a file of one"),
        ("[cpu", r"my\.toml cannot be parsed:\n  not TOML: my\.toml"),
        ("[cpu]\nmemory_bandwith = 1e9\n", r"memory_bandwith: unknown key, did you mean 'memory_bandwidth'"),
        ("[mine]\nlike = 'h100'\nmemory_bandwidth = 3.0\n", r"memory_bandwidth = 3 is impossible: hardware has 1e\+07"),
    ],
    ids=["missing", "several", "empty", "no TOML", "unknown key", "impossible"],
)
def test_a_file_that_is_no_hardware_is_told(content, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if content is not None:
        Path("my.toml").write_text(content)
    with pytest.raises(TargetError, match=message):
        Target.parse("my.toml:8")


def test_speeds_that_no_hardware_has_are_not_written(recorded, tmp_path):
    speeds = profiled(recorded, "h100:1x8").fitted_speeds()  # the times are of a CPU
    with pytest.raises(
        TargetError,
        match=r"the speeds that fit this step are impossible; [\s\S]*is impossible[\s\S]*fix: measure a larger",
    ):
        speeds.write(tmp_path / "mine.toml")
    assert list(tmp_path.iterdir()) == []


def test_what_was_not_measured_has_no_speeds(recorded):
    schedule = explain(recorded["text"], mesh=MESH, target="cpu:8").schedule
    with pytest.raises(TargetError, match="no measured operation has a price"):
        fit_speeds(schedule, Target.parse("cpu:8"), {"no_such_instruction": 1.0})
