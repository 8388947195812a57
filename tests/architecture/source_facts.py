"""Facts about the source that need no run: which files change together, and which private names of others they use."""

from __future__ import annotations

import ast
import functools
import itertools
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "outlay"

_SWEEPING = 30
"""A commit of more files changes a word or a form everywhere, and says nothing of what belongs together."""
_FEW = 5
"""Fewer commits are chance."""


@functools.cache
def parsed(path: Path) -> ast.Module:
    """Return the syntax of a file: to parse all of them takes seconds, and several tests look at them."""
    return ast.parse(path.read_text(encoding="utf-8"))


def files_that_change_together() -> list[tuple[int, int, str, str]]:
    """Return pairs of files with the commits that changed both, and those that changed either, most first."""
    each: Counter[str] = Counter()
    both: Counter[tuple[str, str]] = Counter()
    for files in _commits():
        each.update(files)
        both.update(itertools.combinations(sorted(files), 2))
    pairs = [(num, each[one] + each[other] - num, one, other) for (one, other), num in both.items()]
    is_there = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py")}
    often = [pair for pair in pairs if pair[0] >= _FEW and 2 * pair[0] > pair[1] and {*pair[2:]} <= is_there]
    return sorted(often, reverse=True)


def _commits() -> Iterator[set[str]]:
    """Yield the files of the package that each commit changed; nothing where there is no history."""
    log = subprocess.run(
        ["git", "log", "--no-merges", "--name-only", "--pretty=format:%x00", "--", "src/outlay"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    for commit in log.stdout.split("\0"):
        files = {line.removeprefix("src/outlay/") for line in commit.splitlines() if line.endswith(".py")}
        if 1 < len(files) <= _SWEEPING:
            yield files


def private_names() -> dict[str, list[str]]:
    """Return, by file, the private names that it takes from modules that are not Outlay's, most first."""
    names = {str(path.relative_to(SOURCE)): _private_names(parsed(path)) for path in SOURCE.rglob("*.py")}
    return dict(sorted(((file, used) for file, used in names.items() if used), key=lambda item: -len(item[1])))


def _private_names(tree: ast.Module) -> list[str]:
    imported: dict[str, str] = {}
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {one.asname or one.name.partition(".")[0]: one.name for one in node.names}
            names |= {one.name for one in node.names if _is_private(one.name)}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.module.startswith(("outlay", "__future__")):
            imported |= {one.asname or one.name: f"{node.module}.{one.name}" for one in node.names}
            names |= {whole for one in node.names if _is_private(whole := f"{node.module}.{one.name}")}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and _is_private(node.attr):
            root, *rest = _dotted(node)
            if root in imported:
                names.add(".".join([imported[root], *rest]))
    return sorted(names)


def _is_private(name: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in name.split("."))


def _dotted(node: ast.Attribute) -> list[str]:
    parts: list[str] = []
    inner: ast.expr = node
    while isinstance(inner, ast.Attribute):
        parts.append(inner.attr)
        inner = inner.value
    return [inner.id if isinstance(inner, ast.Name) else "", *reversed(parts)]
