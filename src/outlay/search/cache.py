"""The price of a program on a target: compiled once, then kept on disk for the same program, target and compiler."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import tempfile
import time
import warnings
from collections.abc import Iterable
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

import jax
import jaxlib

from outlay.core.error_types import ExplainError
from outlay.core.runtime_flags import versions
from outlay.devices.target import Target
from outlay.program.program import Program
from outlay.report.explain.explain import explain
from outlay.report.explain.explanation import Explanation
from outlay.search.candidate import Price


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


def price(program: Program, target: Target, cache: Cache) -> tuple[Price, bool]:
    """The price of a program on a target, and whether it was kept from an earlier time.

    Args:
        program: the program, on a mesh of the target.
        target: the hardware.
        cache: where prices are kept.
    """
    # Tracing and lowering take seconds and are always done: their result is what says whether anything has changed.
    depends = (
        target,
        target.hardware,
        program.plan.mesh,
        jax.__version__,
        jaxlib.__version__,
        versions(("libtpu", "jax-cuda13-pjrt")),
        program.compiler_options,
        sorted(program.compiler_options.values.items()),
        *(os.environ.get(variable, "") for variable in ("XLA_FLAGS", "LIBTPU_INIT_ARGS")),
    )
    key = cache_key(program.lowered.as_text(), depends)
    cached = cache.load(key)
    if cached is not None:
        return cached, True
    compiled = _compiled_price(program, target)
    cache.store(key, compiled)
    return compiled, False


def _compiled_price(program: Program, target: Target) -> Price:
    start = time.monotonic()
    explanation = explain(program, target=target)
    seconds = time.monotonic() - start
    estimate, memory, sent = explanation.estimate, explanation.memory, explanation.by_axis()
    fits = explanation.fits
    if fits is None:
        raise ExplainError("the compiler says nothing of the memory that the program needs")
    needed = max((finding.cost_bytes for finding in explanation.of_kind("out-of-memory")), default=0)
    return Price(
        seconds=estimate.seconds if estimate else 0.0,
        seconds_low=estimate.seconds_low if estimate else 0.0,
        seconds_high=estimate.seconds_high if estimate else 0.0,
        parts=dict(estimate.parts) if estimate else {},
        peak_bytes=memory.peak if memory else needed,
        capacity=target.hardware.memory_bytes,
        fits=fits,
        room=memory.pool * memory.peak // memory.needed if memory else target.hardware.memory_bytes,
        flops=estimate.flops if estimate else 0.0,
        bytes_by_axes={axes: total.bytes_per_step for axes, total in sent.items()},
        seconds_by_axes={axes: total.seconds or 0.0 for axes, total in sent.items()},
        crossing=_crossing(explanation),
        num_findings=len(explanation.findings),
        compile_seconds=seconds,
    )


def _crossing(explanation: Explanation) -> tuple[str, ...]:
    """The axes whose collectives run between hosts."""
    return tuple(dict.fromkeys("+".join(one.axes) for one in explanation.collectives if one.crosses_hosts))
