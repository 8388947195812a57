"""`checkpoint.json` may come from anywhere: it names plain files of its own checkpoint, all of them, or is refused."""

import copy
import json
import os
import random

import jax.numpy as jnp
import numpy as np
import pytest

import outlay
from outlay.core.error_types import CheckpointError
from outlay.core.terminal_text import to_text
from outlay.train.checkpoint.checkpoints import Checkpoints
from outlay.train.checkpoint.folder import contents
from outlay.train.checkpoint.integrity import Manifest

NUM_MUTATIONS = 300
VALUES = [None, True, -1, 0, 1.5, 10**30, "x", "", [], {}, [None], {"a": 1}, [1, 2], "float32", "../../x", float("nan")]


@pytest.fixture(scope="module")
def target():
    return outlay.program(
        lambda state, batch: (state, {}),
        lambda key: {"w": jnp.ones(8), "n": jnp.zeros((), jnp.int32)},
        np.ones(8, np.float32),
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(data=8),
    )


@pytest.fixture
def checkpoints(tmp_path):
    its = Checkpoints(tmp_path)
    its.save(10, {"w": jnp.ones(8), "n": jnp.zeros((), jnp.int32)})
    its.wait()
    return its


def places(data):
    """Every place in JSON where something can be put."""
    keys = data if isinstance(data, dict) else range(len(data)) if isinstance(data, list) else ()
    for key in keys:
        yield data, key
        yield from places(data[key])


def mutated(manifest, dice):
    data = copy.deepcopy(manifest)
    within, key = dice.choice(list(places(data)))
    if isinstance(within, dict) and dice.random() < 0.4:
        value = within.pop(key)
        if dice.random() < 0.5:
            within[dice.choice(["x", "../x", "/etc/passwd", "a\0b", f"{key}/"])] = value
    else:
        within[key] = dice.choice(VALUES)
    return data


@pytest.mark.thorough  # test_damage.py
@pytest.mark.compiles
def test_three_hundred_mutations_end_in_outlays_errors_or_in_the_same_state(checkpoints, target):
    path, dice = checkpoints.path / "10" / "checkpoint.json", random.Random(0)
    sound = path.read_text()
    num_refused = 0
    for number in range(NUM_MUTATIONS):
        if number % 3:
            text = json.dumps(mutated(json.loads(sound), dice))
        else:
            place = dice.randrange(len(sound))
            text = sound[:place] + dice.choice(["", "[", "{", "9", '"', "\0", "é"]) + sound[place + dice.randrange(3) :]
        path.write_text(text)
        checkpoints.steps()
        json.dumps(contents(checkpoints.path).to_dict())
        try:
            _, state = checkpoints.restore(target)
        except CheckpointError:
            num_refused += 1
        else:
            assert np.array_equal(state["w"], np.ones(8)), text
    assert num_refused > NUM_MUTATIONS // 2
    path.write_text("[" * 100_000)
    with pytest.raises(CheckpointError, match=r"nested too deeply|cannot be read"):
        checkpoints.restore(target)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update(files={}), "files is empty, and nothing would be checked"),
        (
            lambda m: m["files"].update({"../9/x": {"num_bytes": 0, "crc32": 0}}),
            "files names '../9/x', which is not a file",
        ),
        (
            lambda m: m["files"].update({"/dev/zero": {"num_bytes": 0, "crc32": 0}}),
            "files names '/dev/zero', which is no",
        ),
        (lambda m: m["files"].update({"a/./b": {"num_bytes": 0, "crc32": 0}}), "names 'a/./b', which is not a file"),
        (lambda m: m["files"].popitem(), "is not among the files that were written"),
        (lambda m: m.update(step=11), "is the checkpoint of step 11, in a folder named 10"),
        (lambda m: m.update(step=True), "step is True, not a whole number"),
        (lambda m: m["leaves"].append(m["leaves"][0]), "leaves has one path twice"),
        (lambda m: m.update(more=1), "has other keys than format, step, .*: 'more'"),
        (lambda m: m.update(written_by={"host": {"x": 1}}), "written_by.host is .*, not text"),
    ],
)
def test_damage_is_named(checkpoints, target, change, message):
    path = checkpoints.path / "10" / "checkpoint.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))
    with pytest.raises(CheckpointError, match=message):
        checkpoints.restore(target)
    assert checkpoints.steps() == []


def devices(path):
    path.unlink()
    os.mkfifo(path)


def led_out(path):
    outside = path.parents[2] / "outside"
    outside.write_bytes(path.read_bytes())
    path.unlink()
    path.symlink_to(outside)


def led_out_by_its_folder(path):
    folder = path.parent
    outside = path.parents[2] / "arrays"
    folder.rename(outside)
    folder.symlink_to(outside)


def into_a_folder(path):
    path.unlink()
    path.mkdir()


LED_ASTRAY = [
    *(
        (change, name)
        for change in (devices, led_out, into_a_folder)
        for name in ("arrays/_METADATA", "checkpoint.json")
    ),
    (led_out_by_its_folder, "arrays/_METADATA"),
]


@pytest.mark.parametrize(("change", "name"), LED_ASTRAY)
def test_nothing_but_plain_files_of_the_checkpoint_is_opened(tmp_path, target, change, name):
    checkpoints = Checkpoints(tmp_path / "saved")
    checkpoints.save(10, {"w": jnp.ones(8), "n": jnp.zeros((), jnp.int32)})
    checkpoints.wait()
    change(checkpoints.path / "10" / name)
    with pytest.raises(
        CheckpointError, match=r"is not a plain file|is a folder|Is a directory|symbolic link|not among the"
    ):
        checkpoints.restore(target)


def test_control_characters_of_a_strangers_checkpoint_are_not_printed(checkpoints):
    path = checkpoints.path / "10" / "checkpoint.json"
    manifest = json.loads(path.read_text())
    manifest["leaves"][0]["path"] = "\x1b]0;PWNED\x07"
    manifest["written_by"]["host"] = "\x1b[2J"
    path.write_text(json.dumps(manifest))
    shown = contents(checkpoints.path)
    for text in (shown.headline, to_text(shown.table())):
        assert "\x1b" not in text
        assert "\\x1b" in text


def test_a_manifest_comes_back_as_it_was(checkpoints):
    text = (checkpoints.path / "10" / "checkpoint.json").read_text()
    assert Manifest.from_dict(json.loads(text)).to_dict() == json.loads(text)
