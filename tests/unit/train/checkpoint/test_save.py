import os
import re

import jax
import numpy as np
import pytest
from tests.unit.train.checkpoint.arranged import program, saved, trained

from outlay.core.error_types import CheckpointError
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.checkpoint.folder import CheckpointFolder
from outlay.train.checkpoint.integrity import Manifest, read_manifest

pytestmark = pytest.mark.compiles


def test_the_last_few_are_kept_and_nothing_else_is_left(tmp_path):
    checkpoints, _ = saved(tmp_path, 10, 20, 30, 40, keep=2)
    assert checkpoints.steps() == [30, 40]
    assert sorted(os.listdir(tmp_path)) == ["30", "40", "outlay.txt"]


def test_a_checkpoint_tells_what_it_holds_and_who_wrote_it(tmp_path):
    saved(tmp_path, 10)
    manifest = read_manifest(tmp_path / "10")
    assert isinstance(manifest, Manifest)
    by_path = {leaf.path: leaf for leaf in manifest.leaves}
    assert (manifest.step, len(by_path)) == (10, 10)
    assert (by_path["half"].shape, by_path["half"].dtype, by_path["half"].num_bytes) == ((8, 3), "bfloat16", 48)
    assert by_path["keys"].dtype == "key<fry>"
    assert manifest.written_by["jax"] == jax.__version__
    assert manifest.written_by["devices"] == "mesh data=8 (8 simulated devices)"
    assert Manifest.from_dict(manifest.to_dict()) == manifest


def test_half_written_ones_of_killed_runs_are_cleared_away(tmp_path):
    checkpoints, state = saved(tmp_path, 10)
    half_written = CheckpointFolder(tmp_path).partial(20)
    (half_written / "arrays").mkdir(parents=True)
    half_written.with_name(half_written.name.replace(".partial", ".0f.partial")).mkdir()
    assert checkpoints.steps() == [10]
    checkpoints.save(20, state)
    checkpoints.wait()
    assert sorted(os.listdir(tmp_path)) == ["10", "20", "outlay.txt"]


def test_a_whole_one_is_never_replaced(tmp_path):
    checkpoints, state = saved(tmp_path, 10, 20)
    for step in (20, 15):
        with pytest.raises(CheckpointError, match=rf"step {step} cannot be saved .* newest checkpoint is of step 20"):
            checkpoints.save(step, state)
    assert checkpoints.steps() == [10, 20]


def test_what_jax_cannot_hold_is_not_saved_as_something_else(tmp_path):
    state = {"seen": np.array([2**40]), "name": "run", "step": np.int64(3)}
    with pytest.raises(CheckpointError, match=r"2 leaves are not") as caught:
        Checkpoints(tmp_path).save(1, state)
    assert [problem.where for problem in caught.value.problems] == ["name", "seen"]


def test_a_damaged_one_is_replaced(tmp_path):
    checkpoints, state = saved(tmp_path, 10, 20)
    (tmp_path / "20" / "checkpoint.json").unlink()
    checkpoints.save(20, state)
    checkpoints.wait()
    assert checkpoints.steps() == [10, 20]
    checkpoints.restore(program(), 20)


def test_leaves_that_are_not_arrays_are_named(tmp_path):
    with pytest.raises(CheckpointError, match=r"1 leaf is not one(?s:.)*not an array: activation"):
        Checkpoints(tmp_path).save(1, {"activation": "relu", "w": trained(program())["half"]})


def test_keep_is_one_or_more(tmp_path):
    with pytest.raises(CheckpointError, match="keep=0: 1 checkpoint or more must stay"):
        Checkpoints(tmp_path, keep=0)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "checkpoints"
    with pytest.raises(CheckpointError, match=f"{re.escape(str(folder))} cannot be used: Not a directory"):
        Checkpoints(folder).save(1, trained(program()))
