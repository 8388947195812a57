"""Text and token files as sequences of one length; token files are memory-mapped and never read whole."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
from pathlib import Path
from typing import Literal

import numpy as np

from outlay.core.error_types import DataError
from outlay.core.input_file import check_input
from outlay.core.quantities import counted
from outlay.datasets.examples import Examples, files_of, open_all

TokenDtype = Literal["uint8", "uint16", "uint32", "int32"]

TEXT = (".txt", ".md", ".rst", ".py", ".json", ".jsonl", ".csv", ".html")
"""Extensions of files that are read as bytes, one token per byte."""

TOKENS = (".bin", ".npy")
"""Extensions of files of token numbers."""


def tokens(path: str | Path, sequence: int, *, dtype: TokenDtype = "uint16", vocabulary: int | None = None) -> Examples:
    """Open sequences of tokens from a file, or from all files of a folder.

    Files of numbers end in `.bin` (only the numbers) or `.npy` (one dim). They are memory-mapped: a batch reads only
    its own sequences. Any other file that is named, and `.txt`, `.md`, `.py` and the like in a folder, is text: each
    byte is a token. A sequence never spans two files; the remainder at the end of each file is dropped.

    Args:
        path: the file or the folder.
        sequence: tokens per example.
        dtype: the dtype of the numbers in `.bin` files; `.npy` files contain it.
        vocabulary: the size of the vocabulary; a batch with a larger token is refused when it is read.

    Returns:
        Examples of `tokens` (n, sequence).

    Raises:
        DataError: there are no such files, a file was cut short or holds something else, or all are shorter than a
            sequence; every file is listed.

    Example:
        >>> path = getfixture("tmp_path") / "corpus.bin"
        >>> np.arange(100, dtype=np.uint16).tofile(path)
        >>> examples = outlay.datasets.tokens(path, 8)
        >>> len(examples), examples[[2]]["tokens"].tolist()
        (12, [[16, 17, 18, 19, 20, 21, 22, 23]])
    """
    if sequence < 1:
        raise DataError(f"a sequence of {sequence} tokens has nothing to learn\n  fix: use 1 or more, such as 128")
    files = files_of(Path(path), (*TEXT, *TOKENS), "text or token files")
    mapped = open_all(files, lambda file: _mapped(file, np.dtype(dtype)), (ValueError,))
    if len({array.dtype for array in mapped}) > 1:
        kinds = ", ".join(f"{file.name} ({array.dtype})" for file, array in zip(files, mapped, strict=True))
        raise DataError(f"the files in {path} hold different numbers: {kinds}\n  fix: give a folder of one kind")
    starts = [0, *itertools.accumulate(len(array) // sequence for array in mapped)]
    if not starts[-1]:
        longest = max(len(array) for array in mapped)
        raise DataError(
            f"no file in {path} is as long as a sequence of {sequence}; the longest has {longest} tokens"
            f"\n  fix: use a sequence of {longest} or fewer, or a longer file"
        )

    def one(number: int) -> np.ndarray:
        which = bisect.bisect_right(starts, number) - 1
        first = (number - starts[which]) * sequence
        return mapped[which][first : first + sequence]

    def read(numbers: np.ndarray) -> dict[str, np.ndarray]:
        rows = np.empty((len(numbers), sequence), mapped[0].dtype)
        for row, number in enumerate(numbers.tolist()):
            rows[row] = one(number)
        return {"tokens": rows}

    examples = Examples(starts[-1], read, str(path))
    return examples if vocabulary is None else below(vocabulary, examples)


def below(vocabulary: int, examples: Examples) -> Examples:
    """Check tokens against the vocabulary whenever a batch is read.

    Args:
        vocabulary: how many tokens there are.
        examples: the examples of `tokens`.
    """

    def read(numbers: np.ndarray) -> dict[str, np.ndarray]:
        batch = examples[numbers]
        rows = batch["tokens"]
        if rows.size and not 0 <= rows.min() <= rows.max() < vocabulary:
            beyond = rows.max() if rows.max() >= vocabulary else rows.min()
            raise DataError(
                f"{examples.source} has the token {beyond}, but the vocabulary has {vocabulary}\n  fix: use the "
                f"vocabulary of the tokenizer that wrote it, or another dtype than {rows.dtype} if that is wrong"
            )
        return batch

    return dataclasses.replace(examples, read=read)


def _mapped(file: Path, dtype: np.dtype) -> np.ndarray:
    """Memory-map the tokens of a file, one dim.

    Raises:
        ValueError: it does not hold a whole number of tokens, or holds something else.
    """
    check_input(file)
    size = file.stat().st_size
    if file.suffix == ".npy":
        try:
            array = np.load(file, mmap_mode="r", allow_pickle=False)
        except (ValueError, OSError, EOFError) as error:
            raise ValueError(f"not a complete .npy file: {size} bytes ({error}); it may have been cut short") from error
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(f"it holds {array.dtype} {array.shape}; save one dim of whole numbers")
        return array
    dtype = dtype if file.suffix == ".bin" else np.dtype(np.uint8)
    if size % dtype.itemsize:
        more = counted(size % dtype.itemsize, "byte")
        raise ValueError(
            f"{size} bytes are {size // dtype.itemsize} tokens of {dtype} and {more} more: "
            "it was cut short, or its tokens have another dtype; write it again, or give dtype= (--token-dtype)"
        )
    return np.memmap(file, dtype, "r") if size else np.zeros(0, dtype)  # an empty file cannot be mapped
