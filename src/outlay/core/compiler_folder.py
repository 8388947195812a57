"""Where compilers for absent hardware are kept so that JAX does not find them: it would complain at every start.

JAX loads whatever plugin is installed as a package, and prints a traceback where there is no such hardware.
"""

from __future__ import annotations

import importlib.metadata
import os
from pathlib import Path

_FILES = {"gpu": "jax_plugins/xla_cuda13/xla_cuda_plugin.so", "tpu": "libtpu/libtpu.so"}
KINDS = tuple(_FILES)
"""The kinds of hardware whose compilers can be kept there."""


def compiler_folder(kind: str) -> Path:
    """Return the folder of a compiler, which need not be there; each version of jaxlib has its own.

    Args:
        kind: `gpu` or `tpu`.

    >>> compiler_folder("gpu").parts[-3:-1]
    ('outlay', 'compilers')
    """
    data = os.environ.get("XDG_DATA_HOME")
    root = Path(data) if data else Path.home() / ".local" / "share"
    return root / "outlay" / "compilers" / f"{kind}-jaxlib-{importlib.metadata.version('jaxlib')}"


def compiler_file(kind: str) -> Path | None:
    """Return the library of a compiler that is kept there; None if there is none.

    Args:
        kind: `gpu` or `tpu`.
    """
    file = compiler_folder(kind) / _FILES[kind]
    return file if file.is_file() else None


def compiler_versions() -> dict[str, str]:
    """Return the versions of the packages that are kept there, by name."""
    packages = importlib.metadata.distributions(path=[str(compiler_folder(kind)) for kind in KINDS])
    return {one.metadata["Name"]: one.version for one in packages}
