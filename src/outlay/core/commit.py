"""The commit that a program was run from, read from the files of its repository: no process is started."""

from __future__ import annotations

import re
from pathlib import Path

from outlay.core.input_file import read_text

_HASH = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


def commit_of(folder: Path) -> str | None:
    """Return the commit that is checked out in the repository around a folder; None without one.

    What was changed since that commit is not looked for.

    Args:
        folder: a folder in the working tree.

    >>> commit_of(Path("/")) is None
    True
    """
    try:
        here = folder.resolve()
        git = next((each / ".git" for each in (here, *here.parents) if (each / ".git").exists()), None)
        if git is None:
            return None
        if git.is_file():  # a working tree, or a module, of a repository elsewhere
            git = git.parent / read_text(git).strip().removeprefix("gitdir: ")
        head = read_text(git / "HEAD").strip()
        name = head.removeprefix("ref: ")
        commit = head if name == head else _branch(git, name)
    except (OSError, ValueError):
        return None
    return commit if commit and _HASH.fullmatch(commit) else None


def _branch(git: Path, name: str) -> str | None:
    """Return the commit of a branch; the repository may have packed its names into one file."""
    common = git / "commondir"
    shared = git / read_text(common).strip() if common.is_file() else git
    for folder in (git, shared):
        if (folder / name).is_file():
            return read_text(folder / name).strip()
    lines = read_text(shared / "packed-refs").splitlines() if (shared / "packed-refs").is_file() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), None)
