"""Examples in files: their number, and a function that reads any of them on demand."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from outlay.core.error_types import DataError
from outlay.core.one_line import OneLine
from outlay.core.quantities import counted

T = TypeVar("T")

CUT_SHORT = "; it may have been cut short"


@dataclass(frozen=True)
class Examples(OneLine):
    """Examples read by number, counted from 0: what `outlay.datasets` returns and `outlay.TrainData` takes.

    A class of your own needs only the first two attributes.

    Attributes:
        num: how many there are.
        read: takes an array of int numbers; returns a tree of arrays with one entry per number.
        source: where they come from, for messages.
        classes: the names of the labels, in order; empty if labels have no names.

    Example:
        >>> squares = outlay.datasets.Examples(10, lambda numbers: {"x": numbers**2})
        >>> squares[[3, 1]]["x"].tolist(), len(squares)
        ([9, 1], 10)
    """

    num: int
    read: Callable[[np.ndarray], Any]
    source: str = "the examples"
    classes: tuple[str, ...] = ()

    def __len__(self) -> int:
        return self.num

    def __getitem__(self, numbers: Any) -> Any:
        """Read the examples of some numbers, or of a slice."""
        which = np.arange(self.num)[numbers] if isinstance(numbers, slice) else np.asarray(numbers)
        return self.read(which)

    def held_out(self, one_in: int = 10) -> tuple[Examples, Examples]:
        """Split into training and held-out examples: every tenth is held out, always the same ones.

        Args:
            one_in: the number of examples of which one is held out.

        Raises:
            DataError: there are fewer than `one_in`.

        Example:
            >>> train, test = outlay.datasets.Examples(20, lambda numbers: {"x": numbers}).held_out()
            >>> test[:]["x"].tolist(), len(train)
            ([9, 19], 18)
        """
        if one_in < 2 or self.num < one_in:
            raise DataError(
                f"{self.num} examples in {self.source} are too few to hold out 1 in {one_in}\n  fix: add more examples"
            )
        # Not the last tenth: images are sorted by class, so that it would be of one class.
        every = np.arange(self.num)
        is_held_out = every % one_in == one_in - 1
        return self._of(every[~is_held_out]), self._of(every[is_held_out])

    def spread(self, most: int) -> Examples:
        """Take at most `most` examples, spread evenly.

        >>> Examples(10, lambda numbers: numbers).spread(4)[:].tolist()
        [0, 3, 6, 9]
        """
        return self._of(np.arange(self.num)[:: -(-self.num // most)])

    def _of(self, which: np.ndarray) -> Examples:
        return dataclasses.replace(self, num=len(which), read=lambda numbers: self.read(which[numbers]))


def files_of(path: Path, endings: tuple[str, ...], kind: str) -> list[Path]:
    """List a file, or the files of a folder and its subfolders with these endings, sorted by path.

    Args:
        path: the file or folder.
        endings: file extensions, such as `(".png",)`.
        kind: what the files hold, for messages.

    Raises:
        DataError: there is no such file, or none in the folder.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(
            f"there is no {path}\n  fix: give the file or folder of your {kind}; this is in {path.parent.resolve()}"
        )
    there = sorted(file for file in path.rglob("*") if file.is_file())
    if files := [file for file in there if file.suffix.lower() in endings]:
        return files
    raise DataError(
        f"{path} holds no {kind}: none of its {len(there)} files ends in {', '.join(endings)}"
        + (f"; there is {there[0].relative_to(path)}" if there else "")
        + f"\n  fix: give the folder with your {kind}"
    )


def open_all(
    files: Sequence[Path], open_one: Callable[[Path], T], errors: tuple[type[Exception], ...], hint: str = ""
) -> list[T]:
    """Open every file, in order.

    Args:
        files: the files.
        open_one: opens one of them.
        errors: the exceptions that it raises for a file that cannot be read.
        hint: text to add to such an error.

    Raises:
        DataError: some cannot be read; all of them are listed.
    """
    opened: list[T] = []
    problems = []
    for file in files:
        try:
            opened.append(open_one(file))
        except errors as error:  # some are several lines, and some no words at all
            problems.append(f"  {file}: {(str(error).splitlines() or [type(error).__name__])[0]}{hint}")
    if problems:
        raise DataError("\n".join([f"{counted(len(problems), 'file')} of {len(files)} cannot be read:", *problems]))
    return opened
