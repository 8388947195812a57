"""Prices kept on disk: the same program for the same target by the same compiler is compiled once."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from outlay.search.candidate_price import Price


def cache_folder() -> Path:
    """Where prices are kept: `$XDG_CACHE_HOME/outlay/choose`, by default `~/.cache/outlay/choose`."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "outlay" / "choose"


@dataclass(frozen=True)
class Cache:
    """Prices in a folder, a file each, named by what they depend on.

    Attributes:
        folder: the folder; it is made when the first price is kept.
    """

    folder: Path

    def load(self, key: str) -> Price | None:
        """The price of a key; None where none is kept, or what is kept cannot be read."""
        try:
            return Price.from_dict(json.loads(self._path(key).read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError, KeyError, RecursionError):
            return None

    def store(self, key: str, price: Price) -> None:
        """Keep a price, where one can be kept. Another process may keep the same one at the same time."""
        with contextlib.suppress(
            OSError
        ):  # the search has warned, and a price that is not kept is a price all the same
            self.folder.mkdir(parents=True, exist_ok=True)
            unfinished = self._path(key).with_suffix(f".{os.getpid()}")
            unfinished.write_text(json.dumps(price.to_dict()), encoding="utf-8")
            unfinished.replace(self._path(key))

    def warn_if_read_only(self) -> None:
        """Warn where no price can be kept; the search goes on."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.folder):
                return
        except OSError as error:
            what = f"prices are not kept: {self.folder}: {error.strerror}; the next search compiles them again"
            warnings.warn(f"{what}\n  fix: XDG_CACHE_HOME=FOLDER, one that can be written", stacklevel=3)

    def _path(self, key: str) -> Path:
        return self.folder / f"{key}.json"


def cache_key(program: str, depends: Iterable[object]) -> str:
    """The name of a price: a hash of all that it depends on.

    Args:
        program: the text of the lowered program, so that any change of the model, the step or the layout changes it.
        depends: what else decides: target, mesh, versions, flags.

    >>> cache_key("a", ["h100"]) == cache_key("a", ["h200"])
    False
    """
    parts = [program, own_sources(), *map(repr, depends)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


@functools.cache
def own_sources() -> str:
    """A hash of this library's own sources that make a price of a program; all others change the program or nothing."""
    digest = hashlib.sha256()
    for package in ("analysis", "devices", "report", "search"):
        for name, text in sorted(_texts(resources.files("outlay") / package, package)):
            digest.update(f"{name}\0".encode() + text)
    return digest.hexdigest()


def _texts(folder: Traversable, prefix: str) -> Iterable[tuple[str, bytes]]:
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _texts(entry, f"{prefix}/{entry.name}")
        elif entry.name.endswith((".py", ".toml")):
            yield f"{prefix}/{entry.name}", entry.read_bytes()
