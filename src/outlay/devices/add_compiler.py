"""Download a compiler for absent hardware into the folder where JAX does not find it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from outlay.core.compiler_folder import compiler_folder
from outlay.core.error_types import TargetError


def requirement_of(kind: str) -> str:
    """Return the package with the compiler that fits the JAX that is installed, as pip takes it.

    Args:
        kind: `gpu` or `tpu`.

    Raises:
        TargetError: this JAX names none.

    >>> requirement_of("gpu").partition("==")[0], requirement_of("tpu").partition("==")[0]
    ('jax-cuda13-pjrt', 'libtpu')
    """
    if kind == "gpu":
        return f"jax-cuda13-pjrt=={importlib.metadata.version('jaxlib')}"
    for line in importlib.metadata.requires("jax") or ():
        if pinned := re.match(r"(libtpu\s*==\s*[\w.*]+)\s*;.*extra == .tpu.", line):
            return pinned[1].replace(" ", "")
    raise TargetError(
        "this JAX does not name the version of libtpu that it needs\n  fix: pip install 'outlay[tpu-plan]'"
    )


def add_compiler(kind: str) -> Path:
    """Download a compiler; return its folder. One that is there already is replaced.

    Args:
        kind: `gpu` or `tpu`.

    Raises:
        TargetError: there is no pip and no uv, or it fails; its last lines are in the message.
    """
    folder, requirement = compiler_folder(kind), requirement_of(kind)
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as parts:
        done = subprocess.run(
            [*_installer(), "--no-deps", "--target", f"{parts}/new", requirement],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            lines = "\n  ".join((done.stderr or done.stdout).strip().splitlines()[-6:])
            raise TargetError(f"{requirement} cannot be installed, exit code {done.returncode}\n  {lines}")
        shutil.rmtree(folder, ignore_errors=True)
        Path(parts, "new").rename(folder)  # whole, or not at all
    return folder


def _installer() -> list[str]:
    if uv := shutil.which("uv"):
        return [uv, "pip", "install", "--quiet", "--python", sys.executable]
    if importlib.util.find_spec("pip"):
        return [sys.executable, "-m", "pip", "install", "--quiet"]
    if bundled := _bundled_pip():  # environments made by uv have no pip, and uv may be elsewhere by now
        return [sys.executable, f"{bundled}/pip", "install", "--quiet"]
    raise TargetError("there is neither pip nor uv to download it with\n  fix: install one of them, then again")


def _bundled_pip() -> Path | None:
    """Return the file with the pip that Python brings for new environments; some distributions take it out."""
    ensurepip = importlib.util.find_spec("ensurepip")
    folder = Path(ensurepip.origin).parent / "_bundled" if ensurepip and ensurepip.origin else None
    return max(folder.glob("pip-*.whl"), default=None) if folder else None
