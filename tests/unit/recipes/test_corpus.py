import sysconfig
from pathlib import Path

import numpy as np
import pytest

from outlay.core.error_types import RecipeError
from outlay.recipes.corpus import is_held_out, python_sources, source_files


@pytest.fixture
def library(tmp_path):
    """Forty modules and what must not be taken for one."""
    for number in range(40):
        folder = tmp_path / ("json" if number % 2 else "")
        folder.mkdir(exist_ok=True)
        (folder / f"module{number:02}.py").write_bytes(f"# {number:03}\n".encode())
    for other in ("site-packages/x.py", "test/x.py", "json/tests/x.py", "notes.txt", "json/__pycache__/x.pyc"):
        (tmp_path / other).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / other).write_text("no module of the library")
    (tmp_path / "folder.py").mkdir()
    return tmp_path


def text(windows):
    return windows.tobytes().decode()


def test_every_byte_of_every_module_is_on_one_side(library):
    train, held_out = python_sources(6, library)
    assert train.dtype == held_out.dtype == np.uint8
    assert sorted((text(train) + text(held_out)).split("\n")[:-1]) == [f"# {number:03}" for number in range(40)]
    held = [path.relative_to(library) for path in source_files(library) if is_held_out(path.relative_to(library))]
    assert text(held_out) == "".join((library / path).read_text() for path in held)
    assert 1 <= len(held) <= 10


def test_the_order_is_that_of_the_paths(library):
    paths = [path.relative_to(library).as_posix() for path in source_files(library)]
    assert paths == sorted(paths)
    assert len(paths) == 40


def test_what_is_less_than_a_window_is_dropped(library):
    whole, _ = python_sources(6, library)
    cut, _ = python_sources(4, library)
    assert cut.shape == (whole.size // 4, 4)
    assert whole.tobytes().startswith(cut.tobytes())


@pytest.mark.compiles
def test_windows_are_views_of_one_array():
    """Seen through windows of any length, the corpus is in memory once."""
    assert np.shares_memory(python_sources(128)[0], python_sources(256)[0])


@pytest.mark.compiles
def test_this_python_has_a_library_worth_learning():
    train, held_out = python_sources(128)
    assert train.size > 5_000_000
    assert 0.02 < held_out.size / train.size < 0.2
    assert b"def " in train.tobytes()[:10_000]
    assert not any("site-packages" in path.parts for path in source_files(Path(sysconfig.get_path("stdlib"))))


def test_a_python_without_sources_says_so(tmp_path):
    with pytest.raises(
        RecipeError, match=r"no Python sources in .*frozen, zipped or stripped\n  fix: run with a Python"
    ):
        python_sources(8, tmp_path)
    with pytest.raises(RecipeError, match="no Python sources in"):
        python_sources(8, tmp_path / "python311.zip")


def test_a_window_longer_than_the_corpus(library):
    with pytest.raises(
        RecipeError, match=r"bytes to train on and \d+ held out, too few for a sequence of 200\n  fix: choose a sh"
    ):
        python_sources(200, library)


def test_an_empty_window(library):
    with pytest.raises(RecipeError, match="a sequence of 0 bytes has nothing to learn"):
        python_sources(0, library)
