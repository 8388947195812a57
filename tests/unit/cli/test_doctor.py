"""`outlay doctor --message` as a user meets it."""

import json
import subprocess
import sys
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.cli.command import environment, outlay_command
from typer.testing import CliRunner

from outlay.cli.doctor_command import known_problems
from outlay.cli.main import app

MISSPELT = "ValueError: Resource axis: modle of P('modle',) is not found in mesh: ('data', 'model')."


def doctor(*arguments: str, pasted: str | None = None):
    return CliRunner().invoke(app, ["doctor", *arguments], input=pasted)


def test_a_message_is_explained():
    explained = doctor("--message", MISSPELT)
    assert explained.exit_code == 0, explained.output
    assert "did you mean 'model'?" in " ".join(explained.stdout.split())
    assert "fix     correct the name in the spec" in explained.stdout
    assert "versions" not in explained.stdout


def test_a_log_is_read_from_stdin():
    explained = doctor("--message", "-", pasted=f"step 1\n\n{MISSPELT}\n")
    assert explained.exit_code == 0, explained.output
    assert "axis not in the mesh (line 3)" in explained.stdout


def test_as_json_it_is_one_document():
    (finding,) = json.loads(doctor("--message", MISSPELT, "--json").stdout)["findings"]
    assert (finding["name"], finding["weight"], finding["times"]) == ("axis not in the mesh", "error", 1)
    assert "did you mean 'model'?" in finding["cases"][0][0]


def test_an_unknown_message_is_exit_code_1():
    unknown = doctor("--message", "ValueError: the moon is in the wrong house")
    assert unknown.exit_code == 1
    assert "known messages is in this text" in unknown.stdout


def test_no_message_is_wrong_use():
    empty = doctor("--message", "-", pasted=" \n")
    assert empty.exit_code == 2
    assert "the text is empty" in empty.stderr


@pytest.mark.processes
def test_bytes_that_are_no_text_do_not_matter(tmp_path):
    command = [sys.executable, "-c", "from outlay.cli.main import main; main()", "doctor", "--message", "-"]
    pasted = b"\xff\xfe\n" + MISSPELT.encode()
    done = subprocess.run(
        command, cwd=tmp_path, env=environment(), input=pasted, capture_output=True, timeout=280, check=False
    )
    assert done.returncode == 0, done.stderr
    assert b"axis not in the mesh (line 2)" in done.stdout


@pytest.mark.processes
def test_jax_need_not_even_work(tmp_path):
    (tmp_path / "jax.py").write_text("raise RuntimeError('jax was imported')")
    path = f"{tmp_path}:{environment()['PYTHONPATH']}"
    explained = outlay_command("doctor", "--message", MISSPELT, cwd=tmp_path, PYTHONPATH=path)
    assert explained.returncode == 0, explained.stderr


def test_a_shard_map_over_a_mesh_of_its_own():
    mesh, own = (jax.sharding.Mesh(jax.devices(), (axis,)) for axis in ("data", "e"))
    with jax.set_mesh(mesh), pytest.raises(ValueError, match="should match the mesh") as caught:
        jax.shard_map(jnp.sin, mesh=own, in_specs=P("e"), out_specs=P("e"))(jnp.ones(8))
    explained = doctor("--message", str(caught.value))
    assert explained.exit_code == 0, explained.output
    assert "leave mesh= out" in explained.stdout


CPU = SimpleNamespace(platform="cpu")
SAME = {"jax": "1.0", "jaxlib": "1.0"}


@pytest.mark.parametrize(
    ("devices", "environment", "versions", "problem"),
    [
        ([CPU] * 2, {"XLA_FLAGS": "–xla_dump_to=x"}, SAME, "typographic dash"),
        ([CPU] * 2, {}, {"jax": "1.1", "jaxlib": "1.0"}, "jax 1.1 and jaxlib 1.0 differ"),
        ([CPU] * 2, {"JAX_DISABLE_JIT": "1"}, SAME, "unset it"),
        ([], {}, SAME, "JAX does not start"),
        ([CPU], {}, SAME, "outlay.simulate(8)"),
        ([CPU] * 2, {"SLURM_NTASKS": "4"}, SAME, "SLURM started 4 processes"),
    ],
)
def test_each_problem_is_recognised_with_its_fix(devices, environment, versions, problem, monkeypatch, tmp_path):
    monkeypatch.setattr("outlay.cli.doctor_command._GPU", tmp_path / "no_gpu")
    (finding,) = known_problems(devices, environment, versions)
    assert problem in finding


def test_an_unused_gpu_is_noticed(monkeypatch, tmp_path):
    monkeypatch.setattr("outlay.cli.doctor_command._GPU", tmp_path)
    (finding,) = known_problems([CPU] * 2, {}, SAME)
    assert "pip install -U 'jax[cuda13]'" in finding


def test_a_healthy_place_has_none(monkeypatch, tmp_path):
    monkeypatch.setattr("outlay.cli.doctor_command._GPU", tmp_path / "no_gpu")
    assert not list(known_problems([CPU] * 2, {"XLA_FLAGS": "--xla_dump_to=x", "SLURM_NTASKS": "1"}, SAME))
