"""Read weights that other programs wrote into a state: rules map names, and each device reads its own slices."""

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

from outlay.arrays.from_slices import StoredArray, read_pieces
from outlay.arrays.host_values import narrowed
from outlay.arrays.process_agreement import exchange
from outlay.core.array_leaves import merge_objects, split_objects, used_up
from outlay.core.error_types import CheckpointError, Problem
from outlay.core.paths import Parts, flatten_paths, split_path
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.train.checkpoint.select_leaves import NameRule, NameRules, free, name_rules, selected, warn_of_what_stays
from outlay.train.checkpoint.weight_files import Paths, open_weights


def read_weights(files: Paths, into: Any, names: NameRules, *, only: str | Sequence[str] | None = None) -> Any:
    """Read weights that another program wrote, such as a Hugging Face model, into a state.

    Every device reads only the slices that it holds; no array is ever whole in memory. Floats are converted to the
    dtype of their leaf. Every array of the files needs a rule; the first rule that matches decides.

    Args:
        files: `.safetensors` files (extra `outlay[safetensors]`), or the folder or the `.safetensors.index.json` of a
            model in several files; uncompressed `.npz` files of NumPy; or the folder of a tree that Orbax saved, whose
            names are its keys joined by dots.
        into: the state, as returned by `program.init`; it is donated, since the weights reuse its memory.
        names: rules (name in the file, path of the leaf). A star in the name matches one component, and the path gets
            the stars in order. Stars that the path lacks index its leading dims, for stacked layers. A third entry
            gives the order of the file's dims: (1, 0) for a matrix that is stored transposed. A repeated dim, as in
            (1, 0, 0), is split into neighbouring dims of the leaf, such as heads and features. The path None skips
            arrays.
        only: patterns of the leaves to read; by default all that the files have.

    Returns:
        The state with the weights; all other leaves are unchanged.

    Raises:
        CheckpointError: a file cannot be read or is truncated, a name has no rule or leads to no leaf, or shapes
            differ. The message lists every file, name and leaf, and nothing is loaded.

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
        objects, arrays_into = split_objects(into)
        named, structure = _placed_leaves(arrays_into)
        sources = _sources(open_weights(files), named, name_rules(names))
        arrays, stays = _selected(sources, named, only)
        fault = None
    except CheckpointError as error:
        fault = error
    # All processes raise, or none: one alone would leave the others waiting for its devices.
    faults = exchange(str(fault) if fault else None)
    if fault is not None:
        raise fault
    if elsewhere := [f"process {process}: {text}" for process, text in enumerate(faults) if text]:
        raise CheckpointError("\n".join(["other processes cannot read the weights; nothing was loaded", *elsewhere]))
    leaves = dict(named)
    for path in arrays:
        old = leaves[path]
        free([old], (leaf for other, leaf in leaves.items() if other != path))
        leaves[path] = sources[path].onto(path, old)
    warn_of_what_stays(stays, _files_in_words(files), ())
    return merge_objects(objects, jax.tree.unflatten(structure, list(leaves.values())))


@dataclass(frozen=True)
class _Source:
    """The arrays of the files that make up one leaf.

    Attributes:
        rule: the rule that matches them.
        arrays: the arrays and their names, by index in the leaf's leading dims.
    """

    rule: NameRule
    arrays: dict[tuple[int, ...], tuple[str, StoredArray]]

    @property
    def name(self) -> str:
        return next(iter(self.arrays.values()))[0]

    @property
    def stacked(self) -> tuple[int, ...]:
        """The sizes of the leading dims that stars index."""
        return tuple(max(numbers) + 1 for numbers in zip(*self.arrays, strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape that the arrays make, before a repeated dim is split."""
        each = next(iter(self.arrays.values()))[1].shape
        return (*self.stacked, *(each[run[0]] for run in self._runs(len(each))))

    def _runs(self, ndim: int) -> list[tuple[int, list[int]]]:
        """List the dims of an array in the leaf's order, each with the leaf's dims that it becomes."""
        dims = range(ndim) if self.rule.dims is None else self.rule.dims
        return [
            (dim, [place for place, _ in run])
            for dim, run in itertools.groupby(enumerate(dims), key=operator.itemgetter(1))
        ]

    def is_of(self, shape: tuple[int, ...]) -> bool:
        """Return whether the arrays make a leaf of this shape."""
        each, num = next(iter(self.arrays.values()))[1].shape, len(self.stacked)
        inside, runs = shape[num:], self._runs(len(each))
        if shape[:num] != self.stacked or len(inside) != sum(len(places) for _, places in runs):
            return False
        return all(each[dim] == math.prod(inside[place] for place in places) for dim, places in runs)

    def fault(self) -> str:
        """Say why the arrays do not make up one leaf; empty if they do."""
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

    def onto(self, path: str, leaf: jax.Array) -> jax.Array:
        """Read the leaf into the sharding of `leaf`.

        Raises:
            CheckpointError: a number of the file would become infinite in the leaf's dtype.
        """
        dtype = np.dtype(leaf.dtype)

        def read(index: tuple[slice, ...]) -> np.ndarray:
            array = self._read(index, leaf.shape)
            is_wider = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(array.dtype).max > jnp.finfo(dtype).max
            if is_wider:
                return narrowed(array, dtype, "make the leaf in a wider dtype")
            return array.astype(dtype, copy=False)

        array, problems = read_pieces(read, leaf.shape, dtype, leaf.sharding, path)
        if array is None:
            raise CheckpointError(f"{self.name} cannot be read into its leaf:", problems)
        return array

    def _read(self, index: tuple[slice, ...], shape: tuple[int, ...]) -> np.ndarray:
        num = len(self.stacked)
        counted, inside = index[:num], index[num:]
        places = itertools.product(*(range(piece.start, piece.stop) for piece in counted))
        pieces = [self._piece(self.arrays[place][1], inside, shape[num:]) for place in places]
        if not num:
            return pieces[0]
        return np.stack(pieces).reshape(*(piece.stop - piece.start for piece in counted), *pieces[0].shape)

    def _piece(self, stored: StoredArray, index: tuple[slice, ...], shape: tuple[int, ...]) -> np.ndarray:
        """Read a slice of one array in the leaf's order; of a file dim that is split, only the first part is sliced."""
        runs = self._runs(len(stored.shape))
        in_file: dict[int, slice] = {}
        for dim, (first, *others) in runs:
            # A dim of the file that becomes several of the leaf has the first of them slowest, so a slice of that one
            # is one stretch of the file; the others are cut after reading.
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
    """Return the leaves of the state by path.

    Raises:
        CheckpointError: a leaf is not an array on devices, or was donated; every such leaf is a problem of its own.
    """
    named, structure = flatten_paths(into)
    fix = "outlay.arrays.put(tree, plan, mesh), or program.init(key)"
    problems = [
        Problem("not on devices", path, f"a {type(leaf).__name__} has no place to read to", fix)
        for path, leaf in named
        if not isinstance(leaf, jax.Array)
    ]
    problems += used_up(into, "the state that the last call returned")
    if problems:
        raise CheckpointError(f"weights cannot be read into {counted(len(problems), 'leaf', 'leaves')}", problems)
    return named, structure


def _sources(
    arrays: Mapping[str, StoredArray], named: Sequence[tuple[str, jax.Array]], rules: Sequence[NameRule]
) -> dict[str, _Source]:
    """Collect the arrays that make up each leaf.

    Raises:
        CheckpointError: a name or rule leads to no leaf, or a leaf does not fit; each is a problem of its own.
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
    """Return the leaves to read, and the requested leaves that the files lack.

    Without patterns, the request is the smallest subtree with all leaves that the files have: a leaf in it that no name
    leads to, such as a bias, deserves a warning.
    """
    paths = [path for path, _ in named]
    if only is None and sources:
        inside = _common([split_path(path)[:-1] for path in sources])
        asked = [path for path in paths if split_path(path)[: len(inside)] == inside]
    else:
        asked = selected(only or "**", paths)
    if not any(path in sources for path in asked):
        raise CheckpointError("the files have none of the requested leaves\n  fix: other names, or other files")
    return [path for path in asked if path in sources], [path for path in asked if path not in sources]


def _common(paths: Sequence[Parts]) -> Parts:
    """Return the longest common prefix of the paths."""
    num = next((i for i, parts in enumerate(zip(*paths, strict=False)) if len(set(parts)) > 1), min(map(len, paths)))
    return paths[0][:num]


def _files_in_words(files: Paths) -> str:
    return str(files) if isinstance(files, str | os.PathLike) else ", ".join(str(file) for file in files)
