"""Which versions are installed, for records of runs and for the doctor."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata


def versions(packages: Iterable[str]) -> dict[str, str | None]:
    """The installed version of each package, None for one that is not installed.

    >>> versions(["no-such-package"])
    {'no-such-package': None}
    """
    return {package: _version(package) for package in packages}


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
