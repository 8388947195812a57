"""`outlay verify` as a user meets it: exit codes, and several devices where only one is attached."""

import json
from pathlib import Path

import pytest
from tests.unit.cli.command import LINE, command_here, outlay_command

PLANTED = f"{Path(__file__).parents[3]}/examples/planted_fault.py:recipe"


@pytest.mark.processes
def test_a_planted_fault_is_found_without_any_option(tmp_path):
    verified = outlay_command("verify", PLANTED, cwd=tmp_path)
    assert verified.returncode == 1, verified.stderr
    assert "first: state b, step 1: 8.0x: summed where a mean was meant" in verified.stdout
    assert verified.stderr.startswith("a single device is attached: verifying on 8 simulated ones")
    assert "Traceback" not in verified.stderr


def test_a_recipe_that_is_the_same_ends_well(tmp_path):
    verified = command_here(
        "verify", LINE, "--layout", "fsdp", "--mode", "manual", "--devices", "8", "--steps", "1", "--json", cwd=tmp_path
    )
    assert verified.exit_code == 0, verified.stderr
    facts = json.loads(verified.stdout)
    assert facts["ok"]
    assert facts["verdict"] == "same"
    assert facts["program"] == "mode manual on mesh data=8 (8 simulated devices)"
    assert {check["step"] for check in facts["checks"]} == {1}
    stages = [line for line in verified.stderr.splitlines() if line.startswith("verify: ")]
    assert len(stages) > 2
    assert stages[0] == "verify: making the state on one device"


@pytest.mark.thorough
def test_of_arrays_that_are_the_same_three_are_printed(tmp_path):
    same = "verify", LINE, "--devices", "8", "--steps", "1"
    brief, whole = (command_here(*same, *more, cwd=tmp_path) for more in ((), ("--all",)))
    assert brief.stdout.splitlines()[0] == whole.stdout.splitlines()[0]
    assert brief.stdout.count("the same") == 1 + 3
    assert whole.stdout.count("the same") > 1 + 3


def test_a_mode_or_a_reference_that_does_not_exist_is_wrong_use(tmp_path):
    wrong = command_here("verify", LINE, "--devices", "8", "--against", "one", cwd=tmp_path)
    assert wrong.exit_code == 2
    assert "error: there is no reference 'one'" in wrong.stderr
    wrong = command_here("show", LINE, "--devices", "8", "--mode", "manul", cwd=tmp_path)
    assert wrong.exit_code == 2
    assert "there is no mode 'manul': did you mean 'manual'?" in wrong.stderr


NAN = """
import jax.numpy as jnp, numpy as np, optax, outlay

def recipe():
    x = np.random.default_rng(0).normal(size=(64, 4)).astype(np.float32)
    data = {"x": x, "y": x.sum(-1)}
    return outlay.Recipe.training(
        "nan", init_params=lambda key: {"w": jnp.ones(4)}, optimizer=optax.sgd(0.1), train=data, test=data,
        loss=lambda params, batch, keys: (batch["x"] @ params["w"] * jnp.nan, {}), batch_size=16, steps=3)
"""


def test_what_cannot_be_known_has_an_exit_code_of_its_own(tmp_path):
    (tmp_path / "nan.py").write_text(NAN)
    verified = command_here("verify", "nan.py:recipe", "--devices", "8", "--steps", "1", "--json", cwd=tmp_path)
    assert verified.exit_code == 3, verified.stderr
    facts = json.loads(verified.stdout)
    assert facts["verdict"] == "unknown"
    assert any("NaN in 4 of 4 entries on both sides" in reason for reason in facts["reasons"])


def test_a_program_is_followed_without_computing(tmp_path):
    static = "verify", LINE, "--devices", "8", "--static"
    verified = command_here(*static, "--json", cwd=tmp_path)
    assert verified.exit_code == 0, verified.stderr
    facts = json.loads(verified.stdout)
    assert (facts["verdict"], facts["faults"], facts["num_unknown"]) == ("no fault found", [], 0)
    assert "as planned" in command_here(*static, cwd=tmp_path).stdout
    wrong = command_here(*static, "--steps", "2", cwd=tmp_path)
    assert wrong.exit_code == 2
    assert "nothing is computed, so it takes no --steps" in wrong.stderr


def test_a_tolerance_is_taken_and_checked(tmp_path):
    wrong = command_here("verify", LINE, "--devices", "8", "--tolerance", "3", cwd=tmp_path)
    assert wrong.exit_code == 2
    assert "error: tolerance=3.0: it must be a share of an array's largest entry" in wrong.stderr
