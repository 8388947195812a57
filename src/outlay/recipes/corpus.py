"""The text that language models learn from: the user's files, or the sources of Python's standard library, as bytes."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import sysconfig
from pathlib import Path
from typing import Any

import numpy as np

from outlay.core.error_types import RecipeError
from outlay.datasets.examples import Examples
from outlay.datasets.tables import table
from outlay.datasets.tokens import TokenDtype, below, tokens

NOT_LIBRARY = {"site-packages", "dist-packages", "test", "tests", "idle_test"}
"""Folders left out: installed packages, and tests, which some distributions of Python ship and others do not."""

HELD_OUT_ONE_IN = 10

NUM_HELD_OUT_BYTES = 2**16


def corpus(
    data: str | None,
    sequence: int,
    batch_size: int,
    vocabulary: int,
    token_dtype: TokenDtype = "uint16",
    column: str | None = None,
) -> tuple[Any, Any, str]:
    """Return sequences to train on, held-out sequences, and what one of their tokens is called.

    Args:
        data: a file or folder of text or tokens; Python's standard library if None.
        sequence: tokens an example.
        batch_size: examples a step.
        vocabulary: the vocabulary of the model.
        token_dtype: the dtype of the numbers in `.bin` files.
        column: the column of a table that holds the sequences.

    Raises:
        RecipeError: sequences of a table have another length.
    """
    if column is not None and data is None:
        raise RecipeError(f"--column {column} needs a table, but there is none\n  fix: --data with its file or folder")
    if data is not None:
        if column is None:
            examples = tokens(data, sequence, dtype=token_dtype, vocabulary=vocabulary)
        else:
            examples = _sequences_of_table(data, column, sequence, vocabulary)
        train, test = examples.held_out()
        test = test.spread(max(1, NUM_HELD_OUT_BYTES // sequence))
        return train, test, "byte" if train[:1]["tokens"].dtype == np.uint8 else "token"
    train, held_out = python_sources(sequence)
    if batch_size > len(train):  # a batch larger than the corpus is only there to be priced, so examples are repeated
        train = np.resize(train, (batch_size, *train.shape[1:]))
    every = max(1, held_out.size // NUM_HELD_OUT_BYTES)
    return {"tokens": train}, {"tokens": held_out[::every]}, "byte"


def bytes_like(train: Any, sequence: int, batch_size: int, token: str) -> tuple[Any, Any, str]:
    """Return what `corpus` does for shorter sequences: bytes, since they fit each vocabulary, in the type of others.

    Args:
        train: sequences of any length.
        sequence: tokens an example.
        batch_size: examples a step.
        token: what one of their tokens is called.
    """
    dtype = train[:1]["tokens"].dtype if isinstance(train, Examples) else train["tokens"].dtype
    *halves, _ = corpus(None, sequence, batch_size, np.iinfo(np.uint8).max + 1)
    own, test = ({"tokens": half["tokens"].astype(dtype)} for half in halves)
    return own, test, token


def _sequences_of_table(data: str, column: str, sequence: int, vocabulary: int) -> Examples:
    rows = table(data, [column])
    examples = dataclasses.replace(rows, read=lambda numbers: {"tokens": rows[numbers][column]})
    length = examples[:1]["tokens"].shape[-1] if len(rows) else sequence
    if length != sequence:
        raise RecipeError(f"column {column!r} of {data} has sequences of {length} tokens\n  fix: --sequence {length}")
    return below(vocabulary, examples)


def python_sources(window: int, folder: Path | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Cut the standard library's sources into windows of bytes, always the same for one Python.

    Whole files are held out, one in ten, chosen by a hash of their path, so that no half of a function is trained
    on and the other half tested. What is left over at the end of either half, less than a window, is dropped.

    Args:
        window: bytes an example.
        folder: where the sources are; the running Python's standard library if None.

    Returns:
        Windows to train on and held-out windows, (n, window) uint8 each, in the order of the files' paths.

    Raises:
        RecipeError: there are no sources there, or too few for a window, or the window is empty.

    Example:
        >>> train, held_out = python_sources(128)
        >>> train.shape[1], train.dtype, len(train) > 10 * len(held_out) > 0
        (128, dtype('uint8'), True)
    """
    if window < 1:
        raise RecipeError(f"a sequence of {window} bytes has nothing to learn\n  fix: use 1 or more, such as 128")
    train, held_out = _halves(Path(sysconfig.get_path("stdlib")) if folder is None else folder)
    if min(len(train), len(held_out)) < window:
        raise RecipeError(
            f"the standard library's sources come to {len(train)} bytes to train on and {len(held_out)} held out, too "
            f"few for a sequence of {window}\n  fix: choose a shorter sequence"
        )
    return _windows(train, window), _windows(held_out, window)


@functools.lru_cache(maxsize=1)
def _halves(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Return all bytes to train on and all held-out bytes, uint8."""
    files = source_files(folder)
    if not files:
        raise RecipeError(
            f"there are no Python sources in {folder}, where this Python's standard library should be: it is frozen, "
            "zipped or stripped\n  fix: run with a Python that has its library as .py files, such as one from "
            "python.org, conda, uv or a Linux distribution"
        )
    halves: dict[bool, list[bytes]] = {False: [], True: []}
    for path in files:
        halves[is_held_out(path.relative_to(folder))].append(path.read_bytes())
    train, held_out = (np.frombuffer(b"".join(halves[which]), np.uint8) for which in (False, True))
    return train, held_out


def source_files(folder: Path) -> list[Path]:
    """List the library's own source files under a folder, sorted by their relative paths."""
    paths = []
    for base, folders, names in os.walk(folder):
        folders[:] = set(folders) - NOT_LIBRARY  # thousands of files of installed packages are not looked at
        paths += [Path(base, name) for name in names if name.endswith(".py")]
    return sorted(filter(Path.is_file, paths), key=lambda path: path.relative_to(folder).as_posix())


def is_held_out(path: Path) -> bool:
    """Return whether a file, by its path from the library's folder, is held out.

    >>> is_held_out(Path("ast.py")), is_held_out(Path("json/decoder.py"))
    (False, False)
    """
    digest = hashlib.sha256(path.as_posix().encode()).digest()
    return int.from_bytes(digest[:8], "big") % HELD_OUT_ONE_IN == 0


def _windows(text: np.ndarray, window: int) -> np.ndarray:
    return text[: len(text) // window * window].reshape(-1, window)
