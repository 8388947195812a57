"""Whose a source file is, in folders of any name."""

import functools
import importlib.util
import shutil
import subprocess
import sys
from pathlib import Path

import flax
import jax
import numpy as np
import optax
import pytest

import outlay
from outlay.core.source_owner import OUTLAY, is_below, is_installed, is_of_package, is_standard, part_of_outlay
from outlay.core.user_code import is_library
from outlay.jobs.waiting import _folder_of_jax, _is_in
from outlay.program.source_names import is_readable

PROJECTS = (
    "outlay",
    "outlay/src/outlay",
    "jax",
    "jax/_x",
    "flax",
    "site-packages",
    "lib/site-packages/demo",
    "a b+c/ü" + 200 * "x",
)


@pytest.mark.parametrize("name", PROJECTS)
def test_a_project_of_any_name_is_its_users(name, tmp_path):
    for file in ("train/step.py", "core/net.py", "model.py"):
        path = str(tmp_path / name / file)
        assert part_of_outlay(path) is None
        assert not any(of(path) for of in (is_installed, is_standard, is_library))
        assert not any(is_of_package(path, package) for package in ("jax", "flax", "optax"))
        assert is_readable(path)


@pytest.mark.parametrize("module", [jax, flax, optax, np])
def test_packages_are_installed(module):
    assert is_installed(module.__file__)
    assert not is_standard(module.__file__)
    assert is_of_package(module.__file__, module.__name__)


def test_the_standard_library_is_not_what_is_installed_in_its_folder():
    assert is_standard(functools.__file__)
    assert is_standard("<frozen importlib._bootstrap>")
    inside = str(Path(functools.__file__).parent / "site-packages/flax/linen.py")
    assert is_installed(inside)
    assert not is_standard(inside)


def test_files_of_outlay_are_known_through_links(tmp_path):
    (tmp_path / "link").symlink_to(OUTLAY.parent)
    assert part_of_outlay(str(tmp_path / "link/outlay/train/step.py")) == "train/step.py"
    assert part_of_outlay(outlay.__file__) == "__init__.py"
    assert part_of_outlay(f"{OUTLAY}_models/train/step.py") is None
    assert part_of_outlay("<stdin>") is None


def test_what_a_link_in_a_project_leads_to_is_the_projects(tmp_path):
    (tmp_path / "real").mkdir()
    (tmp_path / "outlay").symlink_to(tmp_path / "real")
    file = str(tmp_path / "outlay/model.py")
    assert is_below(file, tmp_path / "real")
    assert is_below(str(tmp_path / "real/model.py"), tmp_path / "outlay")
    assert part_of_outlay(file) is None


@pytest.mark.processes
def test_a_copy_of_outlay_in_a_folder_of_its_own_name_knows_itself(tmp_path):
    """As in a clone, whose folder is called `outlay`; the copy stands in a folder with a link in its path as well."""
    source = tmp_path / "outlay/src"
    shutil.copytree(OUTLAY, source / "outlay", ignore=shutil.ignore_patterns("__pycache__", "*.npz", "brain"))
    (tmp_path / "link").symlink_to(tmp_path / "outlay")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from outlay.core.source_owner import part_of_outlay\n"
        "print(*(part_of_outlay(file) for file in sys.argv[2:]))"
    )
    files = [source / "outlay/train/step.py", tmp_path / "link/src/outlay/core/paths.py", tmp_path / "outlay/model.py"]
    for start in (source, tmp_path / "link/src"):
        ran = subprocess.run(
            [sys.executable, "-c", program, start, *files], capture_output=True, text=True, check=True, timeout=280
        )
        assert ran.stdout.split() == ["train/step.py", "core/paths.py", "None"]


def test_a_package_that_is_not_there_has_no_files():
    assert importlib.util.find_spec("no_such_package_of_anybody") is None
    assert not is_of_package("/home/me/no_such_package_of_anybody/x.py", "no_such_package_of_anybody")


def test_a_thread_of_a_project_called_jax_is_no_callback_of_jax():
    """Otherwise a job whose data loader lies in such a folder could wait for ever unnoticed."""
    code = "import sys; frame = sys._getframe()"
    frames = {}
    for file in ("/home/me/jax/loader.py", jax.__file__):
        names = {}
        exec(compile(code, file, "exec"), names)
        frames[file] = names["frame"]
    assert [_is_in(frame, _folder_of_jax()) for frame in frames.values()] == [False, True]
