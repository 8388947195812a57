"""What is logged is what its reader reads: each metric of each step, once, also of a run that was continued."""

import importlib.util
import json
import os
import subprocess
import sys

import jax
import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests import forks
from tests.unit.cli.command import LINE, command_here, environment
from tests.unit.recipes import small
from tests.unit.recipes.test_resume import lines, stopped_before

import outlay
from outlay.recipes.prepare import prepare
from outlay.recipes.recipe_run import run_of
from outlay.train.run_folder import RunFolder
from outlay.train.run_options import RunOptions
from outlay.train.step_loop import Interrupted

pytestmark = pytest.mark.usefixtures("blank_pictures")
TENSORBOARD = {"log": ("tensorboard",)}


def read(folder):
    """Return each curve as TensorBoard reads it: the steps and the values, by name."""
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {name: [(event.step, event.value) for event in events.Scalars(name)] for name in events.Tags()["scalars"]}


def as_logged(path, held_out):
    """Return what the metrics file of a run has, as TensorBoard has it: in float32."""
    curves = {}
    for metrics in lines(path):
        for name in metrics.keys() - {"step"}:
            curves.setdefault(name, []).append((metrics["step"], float(np.float32(metrics[name]))))
    last = lines(path)[-1]["step"]
    return curves | {f"evaluate.{name}": [(last, float(np.float32(held_out[name])))] for name in held_out}


@pytest.mark.compiles
def test_a_continued_run_is_read_by_tensorboard_as_one_run(tmp_path):
    with pytest.raises(Interrupted):
        run_of(prepare(stopped_before(11)), RunOptions(checkpoint_every=4, **TENSORBOARD)).run(RunFolder(tmp_path))
    assert max(step for step, _ in read(tmp_path / "tensorboard")["loss"]) > 8  # steps 9 and 10 are taken twice
    result = run_of(prepare(small.line()), RunOptions()).run(
        RunFolder(tmp_path, resume=True)
    )  # it goes on where it logged before
    assert result.held_out
    assert read(tmp_path / "tensorboard") == as_logged(tmp_path, result.held_out)
    assert [step for step, _ in read(tmp_path / "tensorboard")["loss"]] == list(range(1, 13))


@pytest.mark.thorough  # a continued run keeps them above
@pytest.mark.compiles
def test_a_new_run_replaces_the_events_of_the_one_before_and_nothing_else(tmp_path):
    run_of(prepare(small.line()), RunOptions(**TENSORBOARD)).run(RunFolder(tmp_path))
    (tmp_path / "tensorboard" / "notes.txt").write_text("mine")
    run_of(prepare(small.line()), RunOptions(steps=3, **TENSORBOARD)).run(RunFolder(tmp_path, force=True))
    assert [step for step, _ in read(tmp_path / "tensorboard")["loss"]] == [1, 2, 3]
    run_of(prepare(small.line()), RunOptions(steps=1)).run(RunFolder(tmp_path, force=True))
    assert [path.name for path in (tmp_path / "tensorboard").iterdir()] == ["notes.txt"]


def test_a_metric_of_several_numbers_is_a_curve_for_each(tmp_path):
    with outlay.train.MetricsLog("tensorboard", folder=tmp_path, config={"seed": 7}) as log:
        log({"step": 1, "counts": [1.0, 2.0], "loss": float("nan")})
        log({"step": 2, "counts": [3.0, 4.0], "loss": 0.5})
    curves = read(tmp_path / "tensorboard")
    assert curves["counts.0"] == [(1, 1.0), (2, 3.0)]
    assert curves["counts.1"] == [(1, 2.0), (2, 4.0)]
    assert np.isnan(curves["loss"][0][1])
    assert curves["loss"][1] == (2, 0.5)
    events = EventAccumulator(str(tmp_path / "tensorboard"))
    events.Reload()
    (config,) = events.Tensors("config/text_summary")
    assert '"seed": 7' in config.tensor_proto.string_val[0].decode()


def test_only_the_first_process_logs(tmp_path, monkeypatch):
    monkeypatch.setattr(jax, "process_index", lambda: 1)
    with outlay.train.MetricsLog("tensorboard", folder=tmp_path) as log:
        log({"step": 1, "loss": 0.5})
    assert list(tmp_path.iterdir()) == []


def test_a_service_that_fails_on_the_way_ends_no_training(tmp_path):
    with outlay.train.MetricsLog("tensorboard", folder=tmp_path) as log:
        (tmp_path / "tensorboard").write_text("a file where the folder is to be")
        with pytest.warns(UserWarning, match="tensorboard has failed, and the metrics of step 1 and later are not"):
            log({"step": 1, "loss": 0.5})
        log({"step": 2, "loss": 0.5})


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("tensorbord", r"nothing is logged to tensorbord\n  fix: one of tensorboard, wandb, mlflow, or off alone"),
        (["off", "wandb"], r"nothing is logged to off"),
    ],
)
def test_another_name_is_refused(tmp_path, log, message):
    with pytest.raises(outlay.errors.ArgumentError, match=message):
        outlay.run(small.line(), log=log, run_folder=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_what_is_missing_is_named_with_what_installs_it_before_there_is_a_folder(tmp_path, monkeypatch):
    (tmp_path / "wandb").mkdir()  # as W&B itself leaves one: it is no package
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("tensorboardX", "mlflow", "wandb"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    without = [
        path for path in sys.path if not (os.path.isdir(path) and {"tensorboardX", "mlflow"} & {*os.listdir(path)})
    ]
    monkeypatch.setattr(sys, "path", without)
    importlib.invalidate_caches()
    with pytest.raises(
        outlay.errors.RecipeError, match="needs tensorboardX and wandb, which are not installed"
    ) as error:
        outlay.run(small.line(), log=["tensorboard", "wandb"], run_folder="run")
    assert "fix: pip install 'outlay[tensorboard]' wandb" in str(error.value)
    assert not (tmp_path / "run").exists()


@pytest.mark.compiles
def test_the_command_logs(tmp_path):
    ran = command_here("run", LINE, "--steps", "2", "--log", "tensorboard", cwd=tmp_path)
    assert ran.exit_code == 0, ran.output
    (folder,) = tmp_path.glob("runs/*/tensorboard")
    assert [step for step, _ in read(folder)["loss"]] == [1, 2]
    assert json.loads((folder.parent / "config.json").read_text())["log"] == ["tensorboard"]


@pytest.mark.processes
def test_a_run_that_is_not_logged_loads_nothing_for_it(tmp_path):
    program = """if True:
        import sys, outlay
        outlay.simulate(2)
        outlay.run(sys.argv[1], steps=1, run_folder="run")
        print({"tensorboardX", "outlay.train.metrics_log", "outlay.train.loggers"} & set(sys.modules))
        """
    command = [forks.python(), "-c", program, LINE]
    ran = subprocess.run(command, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=True)
    assert ran.stdout.splitlines()[-1] == "set()"


@pytest.mark.processes
@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_the_other_services_have_the_run_once(tmp_path, monkeypatch, name):
    """Runs where they are installed, which is not in the lock: both bring more packages than all else together."""
    if importlib.util.find_spec(name) is None:  # not imported here: both warn as they are
        pytest.skip(f"needs {name}")
    for variable, value in {"WANDB_MODE": "offline", "MLFLOW_TRACKING_URI": f"sqlite:///{tmp_path}/mlflow.db"}.items():
        monkeypatch.setenv(variable, value)
    program = """if True:
        import sys, outlay
        outlay.simulate(1)
        with outlay.train.MetricsLog(sys.argv[1], folder="mine", config={"seed": 7}, after=int(sys.argv[2])) as log:
            for step in range(int(sys.argv[2]), 5):
                log({"step": step + 1, "loss": 1.0 / (step + 1), "counts": [1.0, 2.0]})
        """
    for after in ("0", "3"):
        subprocess.run([sys.executable, "-c", program, name, after], check=True, cwd=tmp_path)
    (id,) = json.loads((tmp_path / "mine" / "log.json").read_text()).values()
    if name == "wandb":
        assert len(list(tmp_path.glob(f"wandb/offline-run-*/run-{id}.wandb"))) == 2  # one run, says `wandb sync`
        return
    # In a process of its own: MLflow warns of what it itself does.
    reader = """if True:
        import sys, mlflow
        client = mlflow.MlflowClient()
        print([each.step for each in client.get_metric_history(sys.argv[1], "loss")])
        run = client.get_run(sys.argv[1])
        print(run.data.params["seed"], run.info.status, run.data.metrics["counts.1"])
        """
    ran = subprocess.run([sys.executable, "-c", reader, id], check=True, cwd=tmp_path, capture_output=True, text=True)
    assert ran.stdout.splitlines()[-2:] == ["[1, 2, 3, 4, 5]", "7 FINISHED 2.0"]
