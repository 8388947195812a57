import os
import sys

import pytest

from outlay.launcher.console import OutputClosed, OutputConsole
from outlay.launcher.merged_output import Log, MergedOutput


@pytest.fixture
def pipe(monkeypatch):
    """Makes stdout a pipe; gives the end that reads."""
    reads, writes = os.pipe()
    with os.fdopen(writes, "w") as stdout:

        def make():
            monkeypatch.setattr(sys, "stdout", stdout)
            return reads

        yield make
    os.close(reads)


def test_nobody_waits_for_a_reader_that_does_not_read(pipe):
    reads = pipe()
    screen = OutputConsole()
    text = "".join(f"{number}\n" for number in range(400_000))
    screen.write("stdout", text)
    assert screen.is_full
    assert not screen.finish(patience=0.1)
    taken = []
    while not screen.is_empty:
        taken.append(os.read(reads, 1 << 16))
        screen.flush()
    taken.append(os.read(reads, 1 << 20))
    assert b"".join(taken).decode() == text


def test_what_nobody_read_is_dropped_with_a_word(pipe, capsys):
    pipe()
    screen = OutputConsole()
    screen.write("stdout", "x" * (1 << 21))
    screen.drop("nobody reads")
    assert screen.is_empty
    assert capsys.readouterr().err == "nobody reads\n"


def test_a_reader_that_has_gone_is_no_fault_of_the_command(capsys, monkeypatch):
    reads, writes = os.pipe()
    os.close(reads)
    with os.fdopen(writes, "w") as stdout:
        monkeypatch.setattr(sys, "stdout", stdout)
        screen = OutputConsole()
        with pytest.raises(OutputClosed):
            screen.write("stdout", "text")
        screen.write("stdout", "more")  # which nobody expects to be shown
        screen.write("stderr", "the reason\n")
    assert capsys.readouterr().err == "the reason\n"


def test_a_stream_that_takes_no_more_does_not_end_the_job(capsys, monkeypatch):
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        OutputConsole().write("stdout", "text")
    assert "stdout cannot be written any more: No space left on device; the job goes on" in capsys.readouterr().err


def test_the_file_of_all_output_is_bounded(tmp_path, monkeypatch):
    monkeypatch.setattr(Log, "MOST", 1000)
    log = Log(tmp_path / "output.log")
    assert str(log) == f"all output: {tmp_path}/output.log"
    for number in range(100):
        log.write(f"{number:>99}\n")
    log.close()
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) <= 2 * 1100
    logged = "".join((tmp_path / name).read_text() for name in ("output.log.1", "output.log"))
    assert [int(line) for line in logged.splitlines()] == list(range(100 - logged.count("\n"), 100))
    assert str(log).startswith("the last of output: ")


def test_a_full_disk_takes_the_file_of_all_output_not_the_job(tmp_path, capsys):
    (tmp_path / "log").symlink_to("/dev/full")
    output = MergedOutput(1, tmp_path / "log", OutputConsole())
    output.add(0, "stdout", ["one"])
    output.add(0, "stdout", ["two"])
    output.close()
    shown = capsys.readouterr()
    assert shown.out == "[0] one\n[0] two\n"
    assert shown.err == (
        f"output is not kept in a file any more, {tmp_path}/log: No space left on device; the job goes on\n"
    )
    assert not (tmp_path / "log").is_symlink()
    assert str(output.log).startswith("all output is lost")


def test_addresses_of_compiled_code_are_no_last_words(tmp_path):
    output = MergedOutput(1, tmp_path / "log", OutputConsole())
    fatal = "F1122 10:05:49 client.h:80] Terminating process because the JAX distributed service detected fatal errors."
    output.add(0, "stderr", [fatal, "*** Check failure stack trace: ***", *["    @     0x7fc3a6d0b5 (unknown)"] * 20])
    output.close()
    assert output.last_errors(0) == f"{fatal}\n"
