"""Weights that other programs wrote, read into a state: by rules for names, each device its own slices."""

from __future__ import annotations

import itertools
import math
import operator
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from outlay.arrays.from_slices import StoredArray, from_callback
from outlay.arrays.process_agreement import exchange
from outlay.core.error_types import CheckpointError, Problem
from outlay.core.paths import Parts, flatten_paths, split_path
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.train.checkpoint.select_leaves import NameRule, NameRules, free, name_rules, selected, warn_of_what_stays
from outlay.train.checkpoint.weight_files import Paths, open_weights


def read_weights(files: Paths, into: Any, names: NameRules, *, only: str | Sequence[str] | None = None) -> Any:
    """Read weights that another program wrote, such as a Hugging Face model, into a state.

    Every device reads the slices that it holds, wherever the state lives; no array is ever whole. Floats take the dtype
    of their leaf. Each array of the files must be claimed by a rule, and the first one that matches decides.

    Args:
        files: `.safetensors` files (extra `outlay[safetensors]`), the folder or the `.safetensors.index.json` of a
            model in several of them; NumPy's `.npz`, not compressed; or the folder of a tree that Orbax saved, whose
            names are its keys joined by dots.
        into: the state, as from `program.init`; used up, since what is read takes the memory of what was there.
        names: rules (name in the file, path of the leaf): a star in the name stands for one part of it, and the path
            takes the stars in their order. Stars that the path lacks count along its leading dims, as where layers are
            stacked. A third entry is the order of the file's dims, (1, 0) for a matrix that is stored transposed; a dim
            that stands twice, as in (1, 0, 0), is split over neighbouring dims of the leaf, such as heads and their
            features. The path None leaves arrays out.
        only: patterns of the leaves that are read; without it, all that the files have.

    Returns:
        The state, with these leaves read and all others as they were.

    Raises:
        CheckpointError: a file cannot be read or is cut short, names are claimed by no rule or lead to no leaf, or
            shapes differ; every file, name and leaf is listed, and nothing was loaded.

    Example:
        >>> tmp = getfixture("tmp_path")
        >>> np.savez(tmp / "w.npz", **{"h.0.weight": np.eye(8, 16, dtype=np.float32)})
        >>> rows = jax.NamedSharding(outlay.mesh(x=8), P("x"))
        >>> state = {"layers": [{"kernel": outlay.arrays.put(np.zeros((16, 8), np.float32), rows)}]}
        >>> state = outlay.train.read_weights(tmp / "w.npz", state, [("h.*.weight", "layers.*.kernel", (1, 0))])
        >>> kernel = state["layers"][0]["kernel"]
        >>> float(kernel[3, 3]), kernel.sharding.spec
        (1.0, P('x',))
    """
    try:
        named, structure = _placed_leaves(into)
        sources = _sources(open_weights(files), named, name_rules(names))
        arrays, stays = _selected(sources, named, only)
        fault = None
    except CheckpointError as error:
        fault = error
    faults = exchange(str(fault) if fault else None)
    if fault is not None:
        raise fault
    if elsewhere := [f"process {process}: {text}" for process, text in enumerate(faults) if text]:
        raise CheckpointError("\n".join(["other processes cannot read the weights; nothing was loaded", *elsewhere]))
    leaves = dict(named)
    for path in arrays:
        old = leaves[path]
        free([old], (leaf for other, leaf in leaves.items() if other != path))
        leaves[path] = sources[path].onto(old)
    warn_of_what_stays(stays, _files_in_words(files), ())
    return jax.tree.unflatten(structure, list(leaves.values()))


@dataclass(frozen=True)
class _Source:
    """All arrays of the files that make up one leaf.

    Attributes:
        rule: the rule that claims them.
        arrays: by place in the leaf's leading dims, each with its name.
    """

    rule: NameRule
    arrays: dict[tuple[int, ...], tuple[str, StoredArray]]

    @property
    def name(self) -> str:
        return next(iter(self.arrays.values()))[0]

    @property
    def stacked(self) -> tuple[int, ...]:
        """The leading dims that names count."""
        return tuple(max(numbers) + 1 for numbers in zip(*self.arrays, strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the leaf that they make, but for dims of the file that are several of it."""
        each = next(iter(self.arrays.values()))[1].shape
        return (*self.stacked, *(each[run[0]] for run in self._runs(len(each))))

    def _runs(self, ndim: int) -> list[tuple[int, list[int]]]:
        """Each dim of an array in the leaf's order, with the places in the leaf of those that it is."""
        dims = range(ndim) if self.rule.dims is None else self.rule.dims
        return [
            (dim, [place for place, _ in run])
            for dim, run in itertools.groupby(enumerate(dims), key=operator.itemgetter(1))
        ]

    def is_of(self, shape: tuple[int, ...]) -> bool:
        """Whether they make a leaf of this shape."""
        each, num = next(iter(self.arrays.values()))[1].shape, len(self.stacked)
        inside, runs = shape[num:], self._runs(len(each))
        if shape[:num] != self.stacked or len(inside) != sum(len(places) for _, places in runs):
            return False
        return all(each[dim] == math.prod(inside[place] for place in places) for dim, places in runs)

    def fault(self) -> str:
        """What keeps them from being one array; empty if nothing does."""
        places = set(itertools.product(*map(range, self.stacked)))
        if lacking := sorted(places - self.arrays.keys()):
            return f"number {'.'.join(map(str, lacking[0]))} is missing, of {len(places)}"
        kinds = {(stored.shape, stored.dtype) for _, stored in self.arrays.values()}
        if len(kinds) > 1:
            return f"they differ: {' and '.join(sorted(f'{shape} {dtype}' for shape, dtype in kinds))}"
        ndim = len(next(iter(kinds))[0])
        if self.rule.dims is not None and len(set(self.rule.dims)) != ndim:
            return f"{self.rule.dims} orders {len(set(self.rule.dims))} dims, and it has {ndim}"
        return ""

    def onto(self, leaf: jax.Array) -> jax.Array:
        """The leaf, read to where it lives."""
        dtype = np.dtype(leaf.dtype)
        return from_callback(
            lambda index: self._read(index, leaf.shape).astype(dtype, copy=False), leaf.shape, dtype, leaf.sharding
        )

    def _read(self, index: tuple[slice, ...], shape: tuple[int, ...]) -> np.ndarray:
        num = len(self.stacked)
        counted, inside = index[:num], index[num:]
        places = itertools.product(*(range(piece.start, piece.stop) for piece in counted))
        pieces = [self._piece(self.arrays[place][1], inside, shape[num:]) for place in places]
        if not num:
            return pieces[0]
        return np.stack(pieces).reshape(*(piece.stop - piece.start for piece in counted), *pieces[0].shape)

    def _piece(self, stored: StoredArray, index: tuple[slice, ...], shape: tuple[int, ...]) -> np.ndarray:
        """A slice of one array, as the leaf has it: read in whole rows of the first dim that a dim of the file is."""
        runs = self._runs(len(stored.shape))
        in_file: dict[int, slice] = {}
        for dim, (first, *others) in runs:
            size = math.prod(shape[place] for place in others)
            in_file[dim] = slice(index[first].start * size, index[first].stop * size)
        array = stored.read(tuple(in_file[dim] for dim in range(len(runs)))).transpose([dim for dim, _ in runs])
        rows = [piece.stop - piece.start for piece in (index[first] for _, (first, *_) in runs)]
        split = [
            size for num, (_, places) in zip(rows, runs, strict=True) for size in (num, *(shape[p] for p in places[1:]))
        ]
        inside = [piece for _, places in runs for piece in (slice(None), *(index[p] for p in places[1:]))]
        return array.reshape(split)[tuple(inside)]


def _placed_leaves(into: Any) -> tuple[list[tuple[str, jax.Array]], Any]:
    """The leaves that can be read into.

    Raises:
        CheckpointError: with one problem per leaf that is no array on devices, or was used up.
    """
    named, structure = flatten_paths(into)
    fix = "outlay.arrays.put(tree, plan, mesh), or program.init(key)"
    problems = [
        Problem("not on devices", path, f"a {type(leaf).__name__} has no place to read to", fix)
        for path, leaf in named
        if not isinstance(leaf, jax.Array)
    ]
    problems += [
        Problem("used up", path, "its memory was handed on (donated)", "the state that the last call returned")
        for path, leaf in named
        if isinstance(leaf, jax.Array) and leaf.is_deleted()
    ]
    if problems:
        raise CheckpointError(f"weights cannot be read into {counted(len(problems), 'leaf', 'leaves')}", problems)
    return named, structure


def _sources(
    arrays: Mapping[str, StoredArray], named: Sequence[tuple[str, jax.Array]], rules: Sequence[NameRule]
) -> dict[str, _Source]:
    """What makes up each leaf.

    Raises:
        CheckpointError: with one problem per name or rule that leads nowhere, and leaf that does not fit.
    """
    leaves = dict(named)
    used: set[NameRule] = set()
    sources: dict[str, _Source] = {}
    problems: list[Problem] = []
    unclaimed: list[str] = []
    for name, stored in arrays.items():
        rule, (path, place) = next(((r, leaf) for r in rules if (leaf := r.leaf_of(name))), (None, (None, ())))
        if rule is None:
            unclaimed.append(name)
            continue
        used.add(rule)
        if path is None:
            continue
        if path not in leaves:
            what = f"{rule.text()} leads to {path}, which the state lacks"
            problems.append(Problem("no such leaf", name, what, did_you_mean(path, leaves)))
            continue
        source = sources.setdefault(path, _Source(rule, {}))
        if place in source.arrays or source.rule != rule:
            what = f"{path} is made of {source.name} already"
            problems.append(Problem("two for one leaf", name, what, "one rule for each, or None for one of them"))
        else:
            source.arrays[place] = (name, stored)
    free_paths = [path for path in leaves if path not in sources]
    problems += [
        Problem(
            "no rule", name, f"{arrays[name].shape} {arrays[name].dtype}: no rule claims it", _fix(name, free_paths)
        )
        for name in unclaimed
    ]
    problems += [
        Problem(
            "unused rule",
            rule.text(),
            f"none of {len(arrays)} names matches{rule.numbered}",
            did_you_mean(rule.name, arrays),
        )
        for rule in rules
        if rule not in used
    ]
    problems += [problem for path, source in sources.items() for problem in _misfit(path, source, leaves[path])]
    if problems:
        raise CheckpointError(f"these weights do not fit the state: {counted(len(problems), 'problem')}", problems)
    return sources


def _fix(name: str, paths: Sequence[str]) -> str:
    return f'add a rule ("{name}", path), or ("{name}", None) to leave it out; {did_you_mean(name, paths)}'


def _misfit(path: str, source: _Source, leaf: jax.Array) -> list[Problem]:
    name = source.name if len(source.arrays) == 1 else f"{source.name} and {len(source.arrays) - 1} more"
    if what := source.fault():
        return [Problem("not one array", path, f"{name}: {what}", "other rules for these names")]
    if jnp.issubdtype(leaf.dtype, jax.dtypes.extended):
        return [Problem("no weights", path, f"it holds keys ({leaf.dtype})", "leave it to program.init")]
    problems = []
    if not source.is_of(leaf.shape):
        what = f"{name} makes {source.shape}, the leaf is {leaf.shape}"
        turned = source.rule.dims is None and not source.stacked and source.shape[::-1] == leaf.shape
        order = tuple(reversed(range(leaf.ndim)))
        fix = (
            f'("{source.rule.name}", "{source.rule.path}", {order})'
            if turned
            else "the model's sizes as they are there"
        )
        problems.append(Problem("other shape", path, what, fix))
    stored = next(iter(source.arrays.values()))[1].dtype
    if stored != leaf.dtype and not (_is_float(stored) and _is_float(leaf.dtype)):
        what = f"{name} is {stored}, the leaf is {leaf.dtype}; only floats are converted"
        problems.append(Problem("other dtype", path, what, f"make the leaf with {stored}"))
    return problems


def _is_float(dtype: Any) -> bool:
    return jnp.issubdtype(dtype, jnp.floating)


def _selected(
    sources: Mapping[str, _Source], named: Sequence[tuple[str, jax.Array]], only: str | Sequence[str] | None
) -> tuple[list[str], list[str]]:
    """The leaves to read, and those that were asked for and are not there.

    Without patterns, what stands in the smallest subtree that holds all that is there is asked for: a leaf of it that
    no name leads to, such as a bias, is worth a word.
    """
    paths = [path for path, _ in named]
    if only is None and sources:
        inside = _common([split_path(path)[:-1] for path in sources])
        asked = [path for path in paths if split_path(path)[: len(inside)] == inside]
    else:
        asked = selected(only or "**", paths)
    if not any(path in sources for path in asked):
        raise CheckpointError(
            "the files hold none of the leaves that are asked for\n  fix: other names, or other files"
        )
    return [path for path in asked if path in sources], [path for path in asked if path not in sources]


def _common(paths: Sequence[Parts]) -> Parts:
    """What all paths begin with."""
    num = next((i for i, parts in enumerate(zip(*paths, strict=False)) if len(set(parts)) > 1), min(map(len, paths)))
    return paths[0][:num]


def _files_in_words(files: Paths) -> str:
    return str(files) if isinstance(files, str | os.PathLike) else ", ".join(str(file) for file in files)
