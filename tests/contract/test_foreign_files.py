"""A folder full of other people's files is byte for byte the same after a hundred random operations of Outlay in it."""

import contextlib
import os
import random
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest
from tests.unit.cli.command import LINE, command_here
from tests.unit.recipes import small

import outlay
from outlay.core.error_types import OutlayError
from outlay.recipes.prepare import prepare
from outlay.recipes.recipe_run import run_of
from outlay.train.run_folder import RunFolder
from outlay.train.run_options import RunOptions

NUM_OPERATIONS = 100

FOREIGN = {
    # a data set whose classes are folders, and the steps of plain Orbax
    **{f"{digit}/img.png": b"\x89PNG mine" for digit in range(10)},
    **{f"{step}/default/d/0": b"weights" for step in (1000, 2000, 3000)},
    "1000/_CHECKPOINT_METADATA": b"{}",
    # names that Outlay uses, or used
    "config.json": b'{"mine": 1}',
    "plan.json": b"[]",
    "metrics.jsonl": b"thesis",
    "report.html": b"<!doctype html><p>mine",
    "checkpoints/best_model.bin": b"thesis",
    "checkpoints/20/default/d/0": b"weights",
    "collected/notes.npz": b"mine",
    "recording.zarr/zarr.json": b"{}",
    "note.partial": b"mine",
    "4.partial/data": b"mine",
    "4.old.partial/data": b"mine",
    ".outlay": b"",
    "chosen.toml": b"[rules]\n",
    "raster.png": b"\x89PNG mine",
    "brain.toml": b"# mine\n",
    "model.py": b"print()\n",
}
BESIDE_OURS = {
    "saved/7/img.png": b"mine",
    "saved/note.partial": b"mine",
    "saved/5.partial/data": b"mine",
    "runs/a/notes.txt": b"mine",
    "runs/a/sample.txt": b"mine",
    "runs/a/checkpoints/best_model.bin": b"thesis",
    "runs/a/checkpoints/0/default/d/0": b"weights",
    "runs/b/notes.txt": b"mine",
    "runs/b/collected/notes.npz": b"mine",
}
"""What others put into folders that Outlay made."""


@pytest.fixture(scope="module")
def prepared():
    return prepare(small.line())


def put(folder, files):
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def operations(folder, prepared, dice):
    """What a user may do in a folder, its places drawn anew each time."""
    names = ["", "checkpoints", "runs/a", "runs/b", "9", "4.partial", "collected", "saved"]
    files = [*FOREIGN, "new/page.html", "page.html", "made.toml"]
    state = {"w": jnp.ones(8)}
    writers = {}

    def writer(place):
        return writers.setdefault(place, outlay.Checkpoints(place, keep=dice.choice([1, 2])))

    def save():
        checkpoints = writer(folder / dice.choice(names))
        for step in sorted(dice.sample([0, 1, 3, 4, 9, 20, 1000, 2000, 4000], 2)):
            checkpoints.save(step, state)
        checkpoints.wait()

    def save_and_fail():
        writer(folder / dice.choice(names)).save(dice.randrange(5000), dice.choice([{}, None, {"w": "x"}]))

    def restore():
        outlay.Checkpoints(folder / dice.choice(names)).restore(prepared.program, dice.choice([None, 4, 1000]))

    def close():
        for checkpoints in writers.values():
            checkpoints.close()
        writers.clear()

    def run_there():
        place = folder / dice.choice(names)
        options = dice.choice([{}, {"force": True}, {"resume": True}])
        run_of(prepared, RunOptions(steps=2, checkpoint_every=dice.choice([None, 1]))).run(RunFolder(place, **options))

    def command():
        page = ["--html", str(folder / dice.choice(files))]
        arguments = dice.choice(
            [
                ["show", LINE, *page],
                ["choose", LINE, "--target", "cpu:4", "--output", str(folder / "chosen.toml")],
                ["calibrate", "--output", str(folder / dice.choice([*FOREIGN]))],
                ["slurm", "run", LINE, "--gpus-per-node", "0", "--run-folder", str(folder)],
                ["checkpoint", "show", str(folder / dice.choice(names))],
                ["run", LINE, "--run-folder", dice.choice(["", ".", str(folder)]), "--force", "--steps", "1"],
            ]
        )
        assert command_here(*arguments, cwd=folder).exit_code in (0, 1, 2), arguments

    def metrics():
        outlay.fit(
            prepared.program,
            prepared.recipe.data,
            steps=1,
            key=jax.random.key(0),
            metrics_path=folder / dice.choice(files),
            progress=False,
        )

    often = [save, save, save_and_fail, save_and_fail, restore, close, run_there, command, command]
    return often, [metrics]


@pytest.mark.thorough  # test_foreign.py has each operation
def test_a_hundred_random_operations_leave_what_others_put_there(tmp_path, prepared, monkeypatch):
    dice = random.Random(0)
    put(tmp_path, FOREIGN)
    with outlay.Checkpoints(tmp_path / "saved") as checkpoints:
        checkpoints.save(0, {"w": jnp.ones(8)})
    for name in ("runs/a", "runs/b"):
        run_of(prepared, RunOptions(steps=1, checkpoint_every=1)).run(RunFolder(tmp_path / name))
    put(tmp_path, BESIDE_OURS)
    foreign = {**FOREIGN, **BESIDE_OURS}
    monkeypatch.setenv("OUTLAY_TARGETS", str(tmp_path.parent / "targets.toml"))
    often, seldom = operations(tmp_path, prepared, dice)
    done = 0
    for number in range(NUM_OPERATIONS):
        operation = dice.choice(seldom if number % 25 == 24 else often)
        with contextlib.suppress(OutlayError), warnings.catch_warnings():
            warnings.simplefilter("ignore", outlay.errors.CheckpointWarning)
            operation()
            done += 1
        changed = [name for name, content in foreign.items() if read(tmp_path / name) != content]
        assert not changed, f"operation {number}, {operation.__name__}"
    assert done > NUM_OPERATIONS // 4  # much is refused, and much is done beside what is there


def read(path: Path) -> bytes | None:
    return path.read_bytes() if path.is_file() and not os.path.islink(path) else None


def test_the_tool_that_looks_sees_a_change(tmp_path):
    put(tmp_path, FOREIGN)
    (tmp_path / "config.json").write_bytes(b"{}")
    assert [name for name, content in FOREIGN.items() if read(tmp_path / name) != content] == ["config.json"]
