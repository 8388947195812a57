"""A folder is Outlay's when Outlay has marked it, and only one writes there at a time."""

import errno
import fcntl
import multiprocessing
import os
import signal
import subprocess
import sys

import pytest

from outlay.core.error_types import CheckpointError, CheckpointWarning
from outlay.core.own_folder import MARK, OwnFolder, folder_id


def folder(path, kind="run folder"):
    return OwnFolder(path, kind, CheckpointError, lambda: "another one")


@pytest.mark.parametrize("is_there", [False, True])
def test_a_new_or_empty_folder_is_marked_and_known_later(tmp_path, is_there):
    path = tmp_path / "a" / "b"
    if is_there:
        path.mkdir(parents=True)
    first = folder(path)
    first.take()
    assert folder(path).id == first.id is not None
    assert folder(path, "checkpoint folder").id is None
    with pytest.raises(CheckpointError, match="is not a checkpoint folder of Outlay"):
        folder(path, "checkpoint folder").take()


def test_a_full_folder_without_a_mark_is_refused_with_what_is_in_it(tmp_path):
    for name in "abcdefgh":
        (tmp_path / name).mkdir()
    with pytest.raises(
        CheckpointError, match=r"is not a run folder of Outlay: it holds 8 entries .a, b, c, d, e, f and 2 more"
    ):
        folder(tmp_path).take()
    assert sorted(os.listdir(tmp_path)) == list("abcdefgh")


@pytest.mark.parametrize("content", [b"x", b"Outlay run folder zz", b"\xff\xfe", b"Outlay run folder 0123456789: what"])
def test_a_file_of_the_marks_name_is_no_mark(tmp_path, content):
    (tmp_path / MARK).write_bytes(content)
    with pytest.raises(CheckpointError, match="is not a run folder of Outlay"):
        folder(tmp_path).take()
    assert (tmp_path / MARK).read_bytes() == content


def test_a_pipe_or_a_link_of_the_marks_name_is_no_mark(tmp_path):
    os.mkfifo(tmp_path / MARK)
    with pytest.raises(CheckpointError, match="is not a run folder of Outlay"):
        folder(tmp_path).take()
    folder(tmp_path / "other").take()
    os.remove(tmp_path / MARK)
    (tmp_path / MARK).symlink_to(tmp_path / "other" / MARK)
    with pytest.raises(CheckpointError, match="is not a run folder of Outlay"):
        folder(tmp_path).take()


def test_a_kill_while_the_mark_was_made_leaves_a_folder_that_can_be_used(tmp_path):
    (tmp_path / MARK).touch()
    its = folder(tmp_path)
    its.take()
    assert its.id is not None


def test_the_second_is_refused_until_the_first_releases(tmp_path):
    first, second = folder(tmp_path), folder(tmp_path)
    first.take()
    first.take()  # it has it already
    message = rf"already in use since 20.*by process {os.getpid()} on .*, which is this program"
    with pytest.raises(CheckpointError, match=message):
        second.take()
    first.release()
    second.take()
    with pytest.raises(CheckpointError, match="already in use"):
        first.take()


def test_a_snapshot_of_hard_links_stays_as_it_was(tmp_path):
    """As `cp -al` makes it: a line that is added to the mark would be added to the snapshot's as well."""
    its = folder(tmp_path / "run")
    its.will_write("a")
    its.release()
    (tmp_path / "run" / MARK).chmod(0o640)
    os.link(tmp_path / "run" / MARK, tmp_path / "snapshot")
    before, id = (tmp_path / "snapshot").read_text(), its.id
    its.will_write("b")
    assert (tmp_path / "snapshot").read_text() == before
    assert (its.id, its.names()) == (id, {"a", "b"})
    assert (tmp_path / "run" / MARK).stat().st_mode & 0o777 == 0o640
    assert os.listdir(tmp_path / "run") == [MARK]
    with pytest.raises(CheckpointError, match="already in use"):
        folder(tmp_path / "run").take()
    its.release()
    folder(tmp_path / "run").take()


HOLD = """
import sys
from pathlib import Path
from outlay.core.error_types import CheckpointError
from outlay.core.own_folder import OwnFolder
its = OwnFolder(Path(sys.argv[1]), "run folder", CheckpointError, lambda: "")
its.take()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
def test_a_process_that_is_killed_holds_it_no_longer(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(CheckpointError, match=rf"in use since .* by process {holder.pid} on "):
            folder(tmp_path).take()
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    folder(tmp_path).take()


def _wait(begun, can_end, its):
    begun.set()
    can_end.wait(280)


@pytest.mark.processes
@pytest.mark.filterwarnings("ignore:.*fork.*")
def test_a_forked_child_does_not_hold_it_after_its_parent(tmp_path):
    context = multiprocessing.get_context("fork")
    begun, can_end, first = context.Event(), context.Event(), folder(tmp_path)
    first.take()
    child = context.Process(target=_wait, args=(begun, can_end, first))
    child.start()
    try:
        assert begun.wait(280)
        first.release()
        folder(tmp_path).take()
    finally:
        can_end.set()
        child.join()


def test_a_file_system_without_locks_is_told_of(tmp_path, monkeypatch):
    def no_locks(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", no_locks)
    its = folder(tmp_path)
    with pytest.warns(CheckpointWarning, match="cannot be locked .No locks available.: a second run may write"):
        its.take()
    its.will_write("a")
    assert its.names() == {"a"}


def test_what_is_written_is_listed_and_what_is_not_listed_is_refused(tmp_path):
    its = folder(tmp_path)
    its.take()
    (tmp_path / "mine").write_text("x")
    with pytest.raises(CheckpointError, match="mine is in the way"):
        its.will_write("mine")
    its.will_write("ours")
    (tmp_path / "ours").write_text("")
    its.will_write("ours")
    its.release()
    assert folder(tmp_path).names() == {"ours"}


@pytest.mark.parametrize("name", ["../x", "..", ".", "", "/etc/x", "a/b"])
def test_a_mark_that_names_a_path_names_nothing(tmp_path, name):
    its = folder(tmp_path)
    its.take()
    its.release()
    with (tmp_path / MARK).open("a") as mark:
        mark.write(f"\nwrote {name}\nwrote ours")
    assert folder(tmp_path).names() == {"ours"}


def test_a_full_disk_is_an_error_of_ours(tmp_path, monkeypatch):
    its = folder(tmp_path)
    its.take()
    before = (tmp_path / MARK).read_text()
    monkeypatch.setattr(os, "write", lambda descriptor, data: len(data) - 1)
    with pytest.raises(CheckpointError, match="No space left on device"):
        its.will_write("a")
    assert (tmp_path / MARK).read_text() == before


@pytest.mark.parametrize("path", ["/proc/nowhere/x", "/dev/null/x", "a\0b", "n" * 300])
def test_what_cannot_be_a_folder_is_an_error_of_ours(tmp_path, path):
    from pathlib import Path

    with pytest.raises(CheckpointError, match="cannot be used"):
        folder(Path(path) if path.startswith("/") else tmp_path / path).take()


def test_the_mark_of_another_folder_is_read_without_taking_it(tmp_path):
    its = folder(tmp_path)
    its.take()
    assert folder_id(tmp_path, "run folder") == its.id
    assert folder_id(tmp_path / "nowhere", "run folder") is None


@pytest.mark.parametrize("shift", [0, 1])
def test_a_mark_whose_end_is_cut_off_inside_of_a_character_is_a_mark(tmp_path, shift):
    folder(tmp_path).take()
    with (tmp_path / MARK).open("a", encoding="utf-8") as mark:
        mark.write("\nwrote " + "a" * shift + "é" * 2**20)
    assert folder_id(tmp_path, "run folder")


def test_a_folder_of_the_marks_name_leaves_no_file_open(tmp_path):
    (tmp_path / MARK).mkdir()
    before = len(os.listdir("/dev/fd"))
    assert folder_id(tmp_path, "run folder") is None
    assert len(os.listdir("/dev/fd")) == before
