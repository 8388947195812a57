"""Do all processes give the same host arrays: hashes compared, leaf by leaf."""

from __future__ import annotations

import collections
import hashlib
from typing import Any

import jax
import numpy as np

from outlay.core.errors import PlaceError, Problem
from outlay.core.paths import flatten_paths
from outlay.place.exchange import exchange


def refuse_different_values(tree: Any) -> None:
    """Raise, in every process, where they do not all give the same host arrays.

    Raises:
        PlaceError: with one problem per leaf that differs, naming the processes that differ from most.
    """
    own = {path: _hash(leaf) for path, leaf in flatten_paths(tree)[0] if _is_on_host(leaf)}
    said = exchange(own)
    paths = list(dict.fromkeys(path for one in said for path in one))
    problems = [problem for path in paths if (problem := _difference(path, [one.get(path) for one in said]))]
    if problems:
        count = f"{len(problems)} of {len(paths)} arrays"
        raise PlaceError(f"{count} are not the same in all {len(said)} processes", problems)


def _difference(path: str, hashes: list[str | None]) -> Problem | None:
    [(usual, _), *others] = collections.Counter(hashes).most_common()
    if not others:
        return None
    odd = [str(process) for process, found in enumerate(hashes) if found != usual]
    first = hashes.index(usual)
    what = f"process {', '.join(odd)} has other values, shape or dtype than process {first}"
    return Problem("differs", path, what, "seed all processes alike, or outlay.scatter it from one")


def _is_on_host(leaf: Any) -> bool:
    """What each process has on its own, keys left out: they have no bytes to read."""
    if isinstance(leaf, jax.Array):
        return leaf.is_fully_addressable and not jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.extended)
    return True


def _hash(leaf: Any) -> str:
    array = np.asarray(leaf)
    found = hashlib.blake2b(f"{array.shape} {array.dtype}".encode(), digest_size=16)
    found.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return found.hexdigest()
