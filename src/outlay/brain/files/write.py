"""Writing a Brain to a file."""

from __future__ import annotations

import os
from pathlib import Path

from outlay.brain.brain import Brain
from outlay.brain.files.toml_write import write_toml


def write_brain(brain: Brain, path: str | os.PathLike) -> None:
    """Write a Brain as TOML, for people to read and change; `read_brain` reads back an equal one.

    What several modules have in common becomes a template, and units stand in comments.

    Args:
        brain: the Brain.
        path: the file; one that is there is replaced.

    Raises:
        BrainError: it has modules or components that have no name in files; all are listed.
    """
    file = Path(path)
    file.write_text(write_toml(brain, folder=file.parent), encoding="utf-8")
