"""Equal layers as one: names, and texts about leaves, that differ in nothing but numbers in their paths."""

from __future__ import annotations

import re
from collections.abc import Sequence

_PATH = re.compile(r"[A-Za-z_][\w~/']*(?:\.[\w~/'*]+)+")
"""The path of a leaf in a text."""

_NUMBER = re.compile(r"\d+")

_FOLDED = re.compile(r"\{[\d.,]+\}")
"""What `fold_numbers` makes of numbers that differ."""

_MAX_RUNS = 4
"""Runs of numbers that a folded name lists; of more it says the first and the last number."""


def fold_numbers(names: Sequence[str]) -> str:
    """Fold names that differ only in numbers into one, as a shell would write it.

    >>> fold_numbers(["layers.0.kernel", "layers.1.kernel", "layers.2.kernel"]), fold_numbers(["w7", "w1", "w0"])
    ('layers.{0..2}.kernel', 'w{0..1,7}')
    """
    pieces = [re.split(r"(\d+)", name) for name in names]
    return "".join(
        same[0] if len(set(same)) == 1 else f"{{{_as_runs(sorted(set(map(int, same))))}}}"
        for same in zip(*pieces, strict=True)
    )


def _as_runs(numbers: Sequence[int]) -> str:
    runs = consecutive(numbers)
    if len(runs) > _MAX_RUNS:
        return f"{numbers[0]}..{numbers[-1]}"
    return ",".join(f"{run[0]}..{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)


def consecutive(numbers: Sequence[int]) -> list[list[int]]:
    """Return sorted numbers as runs of consecutive ones.

    >>> consecutive([0, 1, 2, 7])
    [[0, 1, 2], [7]]
    """
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return runs


def without_layers(text: str) -> str:
    """Remove the numbers from all paths in a text, so that texts about equal layers become the same.

    >>> without_layers("params.layers.7.kernel is split, 1.5 KiB a device, at model.py:120")
    'params.layers.*.kernel is split, 1.5 KiB a device, at model.py:120'
    """
    return _PATH.sub(lambda path: _NUMBER.sub("*", path[0]), text)


def as_pattern(texts: Sequence[str]) -> str:
    """Fold texts about equal layers into one, with their paths as a rule would name all of them.

    >>> as_pattern(["('layers.0.kernel', P('data'))", "('layers.1.kernel', P('data'))"])
    "('layers.*.kernel', P('data'))"
    """
    return _FOLDED.sub("*", fold_numbers(texts))
