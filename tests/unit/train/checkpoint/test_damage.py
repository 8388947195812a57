import os

import pytest
from tests.unit.train.checkpoint.arranged import assert_same, program, saved

from outlay.core.error_types import CheckpointError, CheckpointWarning

pytestmark = pytest.mark.compiles


def truncate(path):
    path.write_bytes(path.read_bytes()[:-1])


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def largest(folder):
    return max((path for path in folder.rglob("d/*") if path.is_file()), key=lambda path: path.stat().st_size)


DAMAGE = {
    "a truncated file": (lambda folder: largest(folder), truncate, r"/20/arrays/.* has \d+ bytes of \d+"),
    "a missing file": (lambda folder: folder / "arrays/_METADATA", os.remove, "/20/arrays/_METADATA is missing"),
    "one bit": (largest, flip, "/20/arrays/.* has other bytes than were written"),
    "no manifest": (lambda folder: folder / "checkpoint.json", os.remove, "/20/checkpoint.json is missing"),
    "half a manifest": (lambda folder: folder / "checkpoint.json", truncate, "/20/checkpoint.json cannot be read"),
}


@pytest.mark.some_cases(3)
@pytest.mark.parametrize("kind", DAMAGE)
def test_damage_is_refused_by_the_files_name_and_an_older_one_is_taken(kind, tmp_path):
    checkpoints, state = saved(tmp_path, 10, 20)
    choose, damage, message = DAMAGE[kind]
    damage(choose(tmp_path / "20"))
    with pytest.raises(CheckpointError, match=rf"1 damaged checkpoint(?s:.)*{message}(?s:.)*restore step 10"):
        checkpoints.restore(program(), 20)
    with pytest.warns(CheckpointWarning, match=rf"step 10 is restored(?s:.)*{message}"):
        restored_step, restored = checkpoints.restore(program())
    assert restored_step == 10
    assert_same(restored, state)


def test_when_all_are_damaged_every_file_is_named(tmp_path):
    checkpoints, _ = saved(tmp_path, 10, 20)
    for step in ("10", "20"):
        truncate(tmp_path / step / "arrays" / "_METADATA")
        (tmp_path / step / "arrays" / "manifest.ocdbt").unlink()
    with pytest.raises(CheckpointError, match=r"2 damaged checkpoints") as error:
        checkpoints.restore(program())
    for line in ("step 10", "step 20"):
        assert sum(text.startswith(f"  {line}: ") for text in str(error.value).splitlines()) == 2


def test_a_later_format_is_refused(tmp_path):
    checkpoints, _ = saved(tmp_path, 10)
    path = tmp_path / "10" / "checkpoint.json"
    path.write_text(path.read_text().replace('"format": 1', '"format": 2'))
    with pytest.raises(CheckpointError, match=r"checkpoint.json cannot be read: .*format 2 of a later Outlay"):
        checkpoints.restore(program())
