"""What installed packages plug into Outlay: the entry points of a group, read without importing any of it."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator, Mapping

GROUPS = ("outlay.recipes", "outlay.layouts", "outlay.files", "outlay.commands", "outlay.errors")
"""The groups that Outlay reads, each by its name in the `pyproject.toml` of a package."""


@functools.cache
def entry_points(group: str) -> Mapping[str, str]:
    """Return what installed packages name in a group: names to texts, `module:name`, for `pkgutil.resolve_name`.

    `importlib.metadata` would load forty modules more, which `outlay --help` has no time for.

    Args:
        group: one of `GROUPS`.

    Example:
        >>> entry_points("console_scripts")["outlay"]
        'outlay.__main__:main'
    """
    entries: dict[str, str] = {}
    for file in _files(tuple(sys.path)):
        for name, reference in _sections(file).get(group, {}).items():
            entries.setdefault(name, reference)  # as for modules, the first folder of the path counts
    return entries


@functools.cache
def _files(folders: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(file for folder in folders for file in _files_in(folder))


def _files_in(folder: str) -> Iterator[str]:
    # As texts: paths would take longer than reading the files.
    try:
        names = os.listdir(folder or ".")
    except OSError:  # an archive, or not there
        return
    for name in sorted(name for name in names if name.endswith(".dist-info")):
        yield os.path.join(folder, name, "entry_points.txt")


@functools.cache
def _sections(file: str) -> Mapping[str, Mapping[str, str]]:
    """Return the groups of one file that Outlay reads, or its own scripts; most packages have no such file."""
    try:
        with open(file, encoding="utf-8", errors="replace") as opened:
            text = opened.read()
    except OSError:
        return {}
    sections: dict[str, dict[str, str]] = {}
    section: dict[str, str] = {}
    for line in map(str.strip, text.splitlines() if "outlay" in text else ()):
        if line.startswith("["):
            section = sections.setdefault(line.strip("[]"), {})
        elif "=" in line and not line.startswith(("#", ";")):
            name, _, reference = line.partition("=")
            section[name.strip()] = reference.partition("[")[0].strip()
    return sections
