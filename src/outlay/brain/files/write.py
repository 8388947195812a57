"""Writing a Brain to a file."""

from __future__ import annotations

import os
from pathlib import Path

from outlay.brain.brain import Brain
from outlay.brain.files.toml_write import write_toml
from outlay.core.output_file import write_output


def write_brain(brain: Brain, path: str | os.PathLike, *, force: bool = False) -> None:
    """Write a Brain as TOML, for people to read and change; `read_brain` reads back an equal one.

    What several modules have in common becomes a template, and units stand in comments.

    Args:
        brain: the Brain.
        path: the file.
        force: replace a file that is there; it may have been changed by hand since.

    Raises:
        BrainError: it has modules or components that have no name in files; all are listed.
        OutputError: there is such a file, or it cannot be written.
    """
    file = Path(path)
    write_output(file, write_toml(brain, folder=file.parent), force=force)
