"""The same question again: answered without JAX as long as nothing has changed, and never otherwise."""

import time

import pytest
from tests.unit.cli.command import outlay_command

NOTE = "answered from the cache"


@pytest.mark.processes
def test_the_same_question_is_answered_again_until_something_changes(tmp_path):
    targets = tmp_path / "targets.toml"
    targets.write_text("[cpu]\nmemory_bytes = 1e9\n")
    here = tmp_path / "here"
    here.mkdir()
    time.sleep(1.1)  # until they count as settled
    asked = ("explain", "digits", "--target", "cpu:2", "--layout", "dp", "--max-memory", "1KiB")

    def ask():
        around = {
            "OUTLAY_TARGETS": str(targets),
            "XDG_CACHE_HOME": str(tmp_path / "cache"),
            "PYTHONPROFILEIMPORTTIME": "1",
        }
        done = outlay_command(*asked, cwd=here, **around)
        messages = [line for line in done.stderr.splitlines() if not line.startswith("import time:")]
        return done, messages, "jax._src" in done.stderr

    first, messages, starts = ask()
    assert starts
    assert first.returncode == 1, first.stderr
    assert any(line.startswith("over budget") for line in messages)
    assert NOTE not in "".join(messages)
    again, messages_again, starts = ask()
    assert not starts
    assert (again.stdout, again.returncode) == (first.stdout, 1)
    assert messages_again[:-1] == messages
    assert NOTE in messages_again[-1]
    targets.write_text("[cpu]\nmemory_bytes = 'all'\n")  # what is wrong now ends the command soon
    changed, messages, _ = ask()
    assert changed.returncode == 2
    assert "memory_bytes" in "".join(messages)
    assert NOTE not in "".join(messages)
