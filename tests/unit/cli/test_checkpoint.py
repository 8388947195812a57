import json
import shutil
import signal

import jax
import pytest
from tests.unit.cli.command import LINE, ROOT, command_here, outlay_command
from tests.unit.recipes.small import line

import outlay

FRAGILE = f"{ROOT}/tests/multiprocess/fragile.py"
pytestmark = pytest.mark.usefixtures("blank_pictures")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """With one run that kept two checkpoints."""
    path = tmp_path_factory.mktemp("runs")
    done = command_here("run", LINE, "--devices=8", "--steps=4", "--checkpoint-every=2", "--run-folder=line", cwd=path)
    assert done.exit_code == 0, done.output
    return path


@pytest.mark.processes
def test_a_checkpoint_is_shown_without_devices(folder):
    shown = outlay_command("checkpoint", "show", "line", cwd=folder, JAX_PLATFORMS="none there")
    assert shown.returncode == 0, shown.stderr
    assert "whole checkpoints of steps 2, 4" in shown.stdout
    assert "step 4: 6 leaves" in shown.stdout
    assert "devices mesh data=8 (8 simulated devices)" in shown.stdout
    rows = [line.split() for line in shown.stdout.splitlines()]
    assert ["params.w", "(32,)", "float32", "128", "B"] in rows
    assert ["key", "()", "key<fry>", "8", "B"] in rows


def test_a_checkpoint_is_found_by_any_of_its_folders(folder):
    shown = [command_here("checkpoint", "show", f"line{inner}", cwd=folder) for inner in ("", "/checkpoints/4")]
    assert "step 4: 6 leaves" in shown[0].stdout
    checkpoints = command_here("checkpoint", "show", "line/checkpoints", cwd=folder)
    assert {each.stdout for each in shown} == {checkpoints.stdout}


def test_an_older_one_as_json(folder):
    shown = command_here("checkpoint", "show", "line", "--step", "2", "--json", cwd=folder)
    facts = json.loads(shown.stdout)
    assert (facts["steps"], facts["damaged"], facts["checkpoint"]["step"]) == ([2, 4], {}, 2)


def test_a_damaged_one_is_named_and_the_check_fails(folder, tmp_path):
    shutil.copytree(folder / "line" / "checkpoints", tmp_path / "checkpoints")
    (tmp_path / "checkpoints" / "4" / "arrays" / "manifest.ocdbt").unlink()
    shown = command_here("checkpoint", "show", "checkpoints", cwd=tmp_path)
    assert shown.exit_code == 1
    assert "whole checkpoints of steps 2\nstep 2: " in shown.stdout
    assert "damaged: step 4: " in shown.stderr
    assert "/4/arrays/manifest.ocdbt is missing" in shown.stderr


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["nowhere"], "nowhere has no checkpoint"), (["line", "--step", "3"], "of step 3; it has those of steps 2, 4")],
)
def test_a_missing_checkpoint_is_an_error(folder, arguments, message):
    shown = command_here("checkpoint", "show", *arguments, cwd=folder)
    assert shown.exit_code == 2
    assert message in shown.stderr


def test_a_run_cannot_be_continued_and_replaced(folder):
    done = command_here("run", LINE, "--resume", "--force", cwd=folder)
    assert done.exit_code == 2
    assert "--force would replace the run that it is to continue" in done.stderr


def losses(path):
    return [json.loads(line)["loss"] for line in (path / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.thorough  # test_run.py and test_resume.py go on
@pytest.mark.processes
def test_a_killed_run_is_continued_on_fewer_devices_with_the_same_losses(folder):
    options = ["--devices", "8", "--layout", "fsdp", "--checkpoint-every", "2", "--run-folder", "killed"]
    killed = outlay_command("run", f"{FRAGILE}:killed_alone", *options, cwd=folder)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    (folder / "again").touch()
    resumed = outlay_command(
        *("run", f"{FRAGILE}:killed_alone", "--devices", "4", "--layout", "dp", "--resume", "--run-folder", "killed"),
        cwd=folder,
    )
    assert resumed.returncode == 0, resumed.stderr
    assert ", continued after step " in resumed.stdout
    assert int(resumed.stdout.partition(", continued after step ")[2].split()[0].rstrip(",:")) in (2, 4, 6)
    recipe, mesh = line(), outlay.mesh(data=8)
    program = outlay.program(recipe.step, recipe.init, recipe.data[0], layout=recipe.layouts["dp"], mesh=mesh)
    whole = outlay.fit(program, recipe.data, steps=12, key=jax.random.key(recipe.seed), progress=False)
    assert losses(folder / "killed") == pytest.approx([each["loss"] for each in whole.history], rel=1e-5, abs=1e-5)
