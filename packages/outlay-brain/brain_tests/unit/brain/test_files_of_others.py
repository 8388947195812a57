"""Pictures and files of a Brain replace only what Outlay made."""

import pytest

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.encoders import LinearSpiker
from outlay.brain.files.convert import write_brain
from outlay.core.error_types import OutputError


def test_a_brain_draws_and_writes_over_nothing_of_others(tmp_path):
    brain = Brain({"eye": LinearSpiker()}, [Connection("inputs:light", "eye:signal")], inputs={"light": (3,)})
    for name, write in (
        ("a.png", brain.picture),
        ("a.toml", lambda path, **options: write_brain(brain, path, **options)),
    ):
        path = tmp_path / name
        path.write_text("mine")
        with pytest.raises(OutputError, match="Outlay did not make it"):
            write(path)
        assert path.read_text() == "mine"
        write(path, force=True)
        assert path.read_bytes() != b"mine"
