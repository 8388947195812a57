"""Ask `outlay explain` and `outlay verify` of a recipe in other Python environments, each in processes of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from outlay.cli.failures import CHECK_FAILED, UNKNOWN
from outlay.cli.output import say
from outlay.core.error_types import OutlayError
from outlay.core.quantities import counted

_COMPILERS = {"tpu": "libtpu", "gpu": "jax-cuda13-pjrt"}
_PACKAGES = ("outlay", "jax", "jaxlib", *_COMPILERS.values())
_ASKS_VERSIONS = f"""
import importlib.metadata, importlib.util, json
def version(name):
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return "here" if name in ("outlay", "jax") and importlib.util.find_spec(name) else None
print(json.dumps({{name: version(name) for name in {_PACKAGES}}}))
"""


@dataclass(frozen=True)
class Environment:
    """A Python with Outlay and a JAX of its own.

    Attributes:
        python: its interpreter.
        versions: the versions of the packages that determine what is compiled; None for one that it lacks.
    """

    python: str
    versions: Mapping[str, str | None]

    @classmethod
    def at(cls, path: Path | None) -> Environment:
        """Return the environment in a folder, or of an interpreter; this process's own if None.

        Raises:
            typer.BadParameter: there is none, or it has no Outlay.
        """
        python = sys.executable if path is None else _interpreter(path)
        asked = _run([python, "-P", "-c", _ASKS_VERSIONS])
        try:
            versions = json.loads(asked.stdout)
        except ValueError:
            raise _not_usable(path, f"{python} does not run: {_last_line(asked.stderr) or 'it says nothing'}") from None
        if lacking := [name for name in ("outlay", "jax") if versions[name] is None]:
            fix = f"{python} -m pip install {' '.join(lacking)}"
            raise _not_usable(path, f"{path} has no {' and no '.join(lacking)}\n  fix: {fix}")
        return cls(python, versions)

    def named(self, other: Environment, kind: str) -> str:
        """Name it by the versions in which it differs from another; by its interpreter if it does in none.

        Args:
            other: the other environment.
            kind: the kind of devices, whose compiler is named: `cpu`, `gpu` or `tpu`; empty if unknown.
        """
        unused = {name for of, name in _COMPILERS.items() if kind not in ("", of)}
        packages = [name for name in _PACKAGES if name not in unused]
        odd = [name for name in packages if self.versions[name] != other.versions[name]]
        if {"jax", "jaxlib"} <= set(odd) and self.versions["jax"] == self.versions["jaxlib"]:
            odd.remove("jaxlib")
        return ", ".join(f"{name} {self.versions[name] or '(none)'}" for name in odd) or self.python

    def explained(self, words: Sequence[str]) -> dict[str, Any]:
        """Return the report of `outlay explain` in this environment, of a program that is compiled anew.

        Args:
            words: the recipe and all options.

        Raises:
            OutlayError: the recipe is not known there, or cannot be compiled.
        """
        return self._asked(["explain", *words, "--json", "--no-cache"])

    def numbers(self, words: Sequence[str]) -> str:
        """Return what `outlay verify` says in this environment: `the same`, `different` or `unknown`, and why.

        Args:
            words: the recipe and all options.

        Raises:
            OutlayError: the recipe is not known there, or cannot be run.
        """
        report = self._asked(["verify", *words, "--json"])
        verdict = report["verdict"]
        if verdict == "same":
            return "the same"
        paths = [check["path"] for check in report.get("checks", ()) if check["verdict"] == verdict]
        why = "; ".join(report.get("reasons", ())) or f"{counted(len(paths), 'array')}, such as {paths[0]}"
        return f"{verdict}: {why.partition(chr(10))[0]}"

    def _asked(self, words: Sequence[str]) -> dict[str, Any]:
        result = _run([self.python, "-P", "-m", "outlay", *words])
        try:
            if result.returncode in (0, CHECK_FAILED, UNKNOWN):
                return json.loads(result.stdout)
        except ValueError:
            pass
        message = result.stderr.strip() or _last_line(result.stdout) or f"it ended with {result.returncode}"
        raise OutlayError(f"outlay {words[0]} fails in the environment of {self.python}:\n{message}")


def verdict_code(numbers: Sequence[str]) -> int:
    """Return the exit code of two verdicts: 1 if a side is different, 3 if one is unknown, else 0."""
    if any(verdict.startswith("different") for verdict in numbers):
        return CHECK_FAILED
    return UNKNOWN if any(verdict.startswith("unknown") for verdict in numbers) else 0


def compared(
    sides: Sequence[tuple[str, Environment, Sequence[str]]], *, numbers: bool
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Ask both sides, one after the other: each compiles with all cores, and needs memory.

    Args:
        sides: for each its name, its environment, and the recipe with all options.
        numbers: whether to verify them too.

    Returns:
        The reports, and the verdicts.
    """
    reports, verdicts = [], []
    for name, environment, words in sides:
        say(f"diff: {name}: outlay explain", err=True)
        reports.append(environment.explained(words))
    for name, environment, words in sides if numbers else ():
        say(f"diff: {name}: outlay verify", err=True)
        verdicts.append(environment.numbers(words))
    return reports, tuple(verdicts)


def _interpreter(path: Path) -> str:
    if path.is_file() and os.access(path, os.X_OK):
        return str(path)
    known = [path / "bin" / "python", path / "Scripts" / "python.exe"]
    python = next((one for one in known if one.exists()), None)
    if python is None:
        what = "there is no such folder" if not path.exists() else f"it holds no {known[0].relative_to(path)}"
        raise _not_usable(path, f"{path} is no Python environment: {what}\n  fix: python -m venv {path}")
    return str(python)


def _not_usable(path: Path | None, what: str) -> typer.BadParameter:
    return typer.BadParameter(what, param_hint="--env" if path is not None else None)


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    # What this environment adds to the path of modules is not the other's.
    variables = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    return subprocess.run(words, capture_output=True, text=True, errors="replace", env=variables, check=False)


def _last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]
