"""Laid out in any way, the Brain computes what one device computes, bit for bit."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.cli.command import environment

pytestmark = pytest.mark.newest


def differences(program: str, *arrangements: str) -> dict:
    """What differs, by arrangement, compiled as users compile it."""
    script = [sys.executable, str(Path(__file__).with_name(program)), *arrangements]
    done = subprocess.run(
        script, env=environment(XLA_FLAGS=""), capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = map(json.loads, done.stdout.splitlines())
    return {line["arrangement"]: line for line in lines}


@pytest.mark.any_jax
@pytest.mark.processes
@pytest.mark.some_cases(1)
@pytest.mark.parametrize("arrangement", ["some alone, some on several", "by neuron over 6"])
def test_it_runs_as_on_one_device_bit_for_bit(arrangement):
    (line,) = differences("brain_arrangements.py", arrangement).values()
    assert line["arrangement"] == arrangement
    assert line["differing"] == []
    assert line["leaves"] > 30
    assert line["spikes"]["A_ex"] > 100
    assert line["spikes"]["A_in"] > 10


@pytest.mark.thorough  # test_spark_1_2_2.py computes these components, and the test above what a layout may change
@pytest.mark.processes
def test_the_files_of_sparks_newer_versions_run_as_on_one_device_bit_for_bit():
    arrangements = differences("spark_arrangements.py")
    assert list(arrangements) == ["tutorial by module", "every component by neuron"]
    for line in arrangements.values():
        assert line["differing"] == []
        assert line["leaves"] > 20
        assert max(line["spikes"].values()) > 100
    spikes = arrangements["every component by neuron"]["spikes"].values()
    assert sum(num > 10 for num in spikes) >= 2
