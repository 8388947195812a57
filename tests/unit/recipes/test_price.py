import json
import os
import subprocess
import sys
import time

import pytest
from tests.unit.recipes.test_choose import VARIED

from outlay.recipes.choose import Job, answer
from outlay.search.compiled_price import Price


@pytest.fixture(autouse=True)
def _own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def job(**changes) -> Job:
    known = {"recipe": VARIED, "words": ("--remat",), "layout": "fsdp", "mesh": "data=8", "mode": None}
    return Job(**{**known, "target": "cpu:8", **changes})


def test_the_answer_is_a_price_and_the_second_one_was_kept():
    first, second = (json.loads(json.dumps(answer(job()))) for _ in range(2))
    assert (first["was_kept"], second["was_kept"]) == (False, True)
    assert {**first["price"], "compile_seconds": 0} == {**second["price"], "compile_seconds": 0}
    price = Price.from_dict(first["price"])
    assert price.fits
    assert 0 < price.seconds_low <= price.seconds <= price.seconds_high
    assert price.bytes_by_axes["data"] > 0
    assert price.crossing == ()


@pytest.mark.thorough  # test_asked_before.py changes the program
@pytest.mark.compiles
def test_another_program_has_another_price():
    assert not answer(job())["was_kept"]
    for changes in ({"layout": "dp"}, {"words": ("--accumulate", "2")}, {"mesh": "data=4,model=2"}):
        assert not answer(job(**changes))["was_kept"]
    assert answer(job(words=("--remat", "--accumulate", "1")))["was_kept"]


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"layout": "fsd"}, "RecipeError"),
        ({"mesh": "data=3"}, "MeshError"),
        ({"target": "h10:1x8"}, "TargetError"),
        ({"words": ("--widht", "3")}, "RecipeError"),
    ],
)
def test_an_error_of_ours_is_an_answer(changes, kind):
    result = answer(job(**changes))
    assert result["error"] == kind
    assert result["message"]


CHILD = "import sys; from outlay.recipes.choose import end_with_parent; end_with_parent(int(sys.argv[1]))"
PARENT = f"""
import os, subprocess, sys
child = [sys.executable, "-c", {CHILD!r}, str(os.getpid())]
print(subprocess.Popen(child, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).pid)
"""


@pytest.mark.processes
def test_a_process_whose_parent_is_gone_ends():
    child = int(subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, check=True).stdout)
    deadline = time.monotonic() + 280
    while _runs(child):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
        with open(f"/proc/{pid}/stat") as stat:  # an orphan that nobody waits for stays as a zombie
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False
