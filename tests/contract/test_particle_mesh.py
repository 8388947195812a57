"""Particles on a mesh over pencils, an application on `outlay.kit`: the physics, the layout, and its kind of run."""

import json
import runpy
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.unit.cli.command import command_here

import outlay

FILE = Path(__file__).parents[2] / "examples" / "particle_mesh.py"
EXAMPLE = runpy.run_path(str(FILE))
CELLS = 8


@pytest.fixture(scope="module")
def displacement():
    return jax.random.uniform(jax.random.key(1), (CELLS, CELLS, CELLS, 3), minval=-1, maxval=1)


def test_mass_is_painted_as_a_loop_over_particles_paints_it(displacement):
    expected = np.zeros((CELLS, CELLS, CELLS))
    for start in np.ndindex(expected.shape):
        place = np.asarray(start) + np.asarray(displacement[start], np.float64)
        below = np.floor(place).astype(int)
        for corner in np.ndindex(2, 2, 2):
            share = np.prod(1 - np.abs(place - below - corner))
            expected[tuple((below + corner) % CELLS)] += share
    np.testing.assert_allclose(EXAMPLE["density"](displacement), expected, atol=1e-5)
    assert expected.sum() == pytest.approx(CELLS**3)


def test_the_potential_solves_poissons_equation(displacement):
    mass = EXAMPLE["density"](displacement)
    field = EXAMPLE["potential"](mass)
    laplacian = sum(jnp.roll(field, 1, dim) - 2 * field + jnp.roll(field, -1, dim) for dim in range(3))
    np.testing.assert_allclose(laplacian, mass - mass.mean(), atol=2e-5)


@pytest.mark.thorough  # the run keeps momentum
def test_no_particle_pulls_itself_and_two_attract_each_other():
    still = jnp.zeros((CELLS, CELLS, CELLS, 3))
    force, _ = EXAMPLE["acceleration"](still)
    np.testing.assert_allclose(force, 0, atol=1e-5)
    moved = still.at[2, 4, 4, 0].set(0.5)  # towards its neighbour at 3, which then is in a denser place
    force, _ = EXAMPLE["acceleration"](moved)
    assert force[5, 4, 4, 0] < -1e-3  # what lies beyond is drawn there
    np.testing.assert_allclose(force.sum((0, 1, 2)), 0, atol=1e-4)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    folder = tmp_path_factory.mktemp("particles")
    words = ["--cells", str(CELLS), "--devices", "8", "--run-folder", "run", "--steps", "6", "--checkpoint-every", "3"]
    return folder, command_here("run", f"{FILE}:recipe", *words, "--json", cwd=folder)


def test_a_run_keeps_momentum_and_energy_and_leaves_its_picture_and_report(ran):
    folder, answer = ran
    assert answer.exit_code == 0, answer.output
    history = json.loads(answer.stdout)["history"]
    assert [line["step"] for line in history] == [1, 2, 3, 4, 5, 6]
    assert max(line["momentum"] for line in history) < 1e-4
    assert abs(history[-1]["energy"] - history[0]["energy"]) < 0.05 * history[-1]["kinetic"]
    assert (folder / "run" / "density.png").read_bytes().startswith(b"\x89PNG")
    assert "particle_mesh under pencils" in (folder / "run" / "report.html").read_text()


@pytest.mark.thorough  # test_resume.py goes on, test_resume_closed_loop.py with a kind of run of its own
def test_a_run_that_goes_on_computes_what_it_would_have(ran, tmp_path):
    words = ["--cells", str(CELLS), "--devices", "8", "--run-folder", "run", "--checkpoint-every", "3", "--json"]
    assert command_here("run", f"{FILE}:recipe", *words, "--steps", "3", cwd=tmp_path).exit_code == 0
    resumed = command_here("run", f"{FILE}:recipe", *words, "--steps", "6", "--resume", cwd=tmp_path)
    assert resumed.exit_code == 0, resumed.output
    assert json.loads(resumed.stdout)["history"] == json.loads(ran[1].stdout)["history"]


PENCILS = [f"{FILE}:recipe", "--cells", str(CELLS), "--devices", "8", "--layout", "pencils"]


@pytest.mark.thorough  # test_examples_and_commands.py proves an example
def test_it_is_the_same_over_pencils_as_on_one_device(tmp_path):
    answer = command_here("verify", *PENCILS, "--steps", "1", cwd=tmp_path)
    assert answer.exit_code == 0, answer.output
    assert answer.stdout.startswith("the same: ")


@pytest.mark.thorough  # test_examples_and_commands.py explains examples
def test_over_pencils_it_exchanges_halos_and_never_the_mesh(tmp_path):
    facts = json.loads(command_here("explain", *PENCILS, "--json", cwd=tmp_path).stdout)
    kinds = {each["kind"] for each in facts["collectives"]}
    assert {"collective-permute", "all-to-all"} <= kinds
    gathered = [each for each in facts["collectives"] if each["kind"] == "all-gather"]
    assert sum(each["bytes_per_step"] for each in gathered) < CELLS**3


@pytest.mark.thorough  # test_run_faults.py has how an error ends a run
def test_a_particle_that_leaves_its_reach_ends_the_run(tmp_path):
    words = ["--cells", str(CELLS), "--devices", "8", "--dt", "3"]
    answer = command_here("run", f"{FILE}:recipe", *words, "--run-folder", "run", cwd=tmp_path)
    assert answer.exit_code == 2
    assert "is as far as mass is painted" in answer.output


def test_it_is_written_on_public_names_alone():
    text = FILE.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 300
    assert "from outlay import kit" in text
    assert "from outlay." not in text


def test_outlay_is_what_runs_it():
    assert issubclass(EXAMPLE["ParticleMesh"], outlay.Recipe)
