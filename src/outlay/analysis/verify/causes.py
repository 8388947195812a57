"""Find out why a program computes something else: each usual mistake of parallel programs is tried on one device.

A mistake is a claim about numbers: "this is the sum of what each device computes from its own samples" can be computed
on one device, and compared. Only a claim that holds is reported. Everything is done in float64, where hardly anything
else would fit.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from outlay.analysis.verify.host import by_path, near
from outlay.analysis.verify.runs import Leaves, Result, Variant
from outlay.analysis.verify.verification import LeafCheck
from outlay.arrays.shardings import shardings
from outlay.core.jax_tracing import operations
from outlay.program.program import Program

_NEAR = 0.02
_FITS = 1e-5
# Each share, and each exchange, takes a replay of its own.
_MAX_SHARES = 64
_MAX_EXCHANGES = 8

Change = Callable[[Result], np.ndarray]


@dataclass(frozen=True)
class Share:
    """The samples of one device, and the device's coordinates in the mesh."""

    batch: Any
    at: Mapping[str, int]


def shares(program: Program, batch: Any) -> list[Share]:
    """Return the batch on the host as devices split it; each different share once.

    Args:
        program: whose plan splits the batch.
        batch: the batch on the host.
    """
    leaves, structure = jax.tree.flatten(batch)
    placed = jax.tree.leaves(shardings(program.plan, program.batch_shapes, program.mesh, root="batch"))
    maps = [at.devices_indices_map(leaf.shape) for at, leaf in zip(placed, leaves, strict=True)]
    distinct: dict[str, Share] = {}
    for coordinates in np.ndindex(program.mesh.devices.shape):
        indices = [one[program.mesh.devices[coordinates]] for one in maps]
        pieces = [leaf[index] for leaf, index in zip(leaves, indices, strict=True)]
        at = dict(zip(program.mesh.axis_names, coordinates, strict=True))
        distinct.setdefault(str(indices), Share(jax.tree.unflatten(structure, pieces), at))
    return list(distinct.values())


class Causes:
    """Tries to explain a step that came out different.

    Args:
        program: the program.
        variants: the program and one device, to replay.
        state: the leaves of the state before the step, on the host.
        batch: its batch, on the host.
        results: the results of both replays.
        wrong: the checks of the step that failed.
        copies: by path, what each device holds of arrays that should be equal on all devices but are not.
    """

    def __init__(
        self,
        program: Program,
        variants: tuple[Variant, Variant],
        state: Leaves,
        batch: Any,
        results: tuple[Result, Result],
        wrong: Sequence[LeafCheck],
        copies: Mapping[str, list[np.ndarray]],
    ) -> None:
        self._program, self._variants, self._state, self._batch = program, variants, state, batch
        self._got, self._right = results
        self._copies = copies
        self._start = {
            (check.kind, check.path): np.asarray(state[check.path] if check.kind == "state" else 0.0) for check in wrong
        }
        floats = {key for key, leaf in self._right.leaves.items() if np.issubdtype(leaf.dtype, np.inexact)}
        keys = [(check.kind, check.path) for check in wrong if (check.kind, check.path) in floats]
        # Updates of fixed size, as with Lion or in the first step of Adam, come out alike for many reasons.
        self._keys = [key for key in keys if not _is_sign(self._change(key, self._right))] or keys
        self._shares = shares(program, batch)

    def named(self) -> list[str]:
        """Return the mistakes that the numbers confirm, in words."""
        tries = (self._unshared_copies, self._of_shares, self._exchanges, self._pieces, self._stale)
        for attempt in tries:
            # A step may refuse fewer samples, for example; then this cannot be tried.
            with contextlib.suppress(Exception):
                if words := attempt():
                    return [words]
        return []

    def _change(self, key: Any, result: Result) -> np.ndarray:
        return result.leaves[key] - self._start[key]

    def _fits(self, key: Any, claimed: Any, result: Result | None = None) -> bool:
        """Return whether a claim holds for all entries that are wrong."""
        there, right = self._change(key, result or self._got), self._change(key, self._right)
        # After an experiment all entries count: what mends the wrong ones may break others.
        wrong = np.abs(there - right) > _allowed(right) if result is None else np.ones(there.shape, bool)
        return bool(np.any(wrong & (there != 0))) and not np.any((np.abs(claimed - there) > _allowed(there)) & wrong)

    def _of_share(self, share: Share) -> Result:
        """Return what one device computes from the samples of another."""
        return self._variants[1].replay(self._state, share.batch)

    def _of_shares(self) -> str:
        num = len(self._shares)
        if not 1 < num <= _MAX_SHARES or not self._keys:
            return ""
        results = [self._of_share(share) for share in self._shares]
        for key in self._keys:
            own = [self._change(key, result) for result in results]
            right = self._change(key, self._right)
            total = sum(own)
            if self._fits(key, right * num) and self._fits(key, total):
                return f"the results of {num} devices are summed, where their mean was meant (psum for pmean)"
            for which in range(num):
                if self._fits(key, own[which]) and not self._fits(key, right):
                    return f"only the samples of {self._device(which)} count: the results of the others are not summed"
                rest = total - own[which]
                if any(self._fits(key, rest / by) for by in (num - 1, num, 1)):
                    return f"the samples of {self._device(which)} are left out"
            # The mean and the sum of what devices computed come last: they hold of many mistakes, which are told apart
            # below.
            if self._fits(key, total / num):
                return self._averaged(key, right, results)
            if self._fits(key, total):
                return self._alone(key, results, "summed")
        return ""

    def _device(self, which: int) -> str:
        where = ", ".join(f"{axis}={index}" for axis, index in self._shares[which].at.items())
        return f"share {which + 1} of {len(self._shares)} (the device at {where})"

    def _averaged(self, key: Any, right: Any, results: list[Result]) -> str:
        num = len(results)
        if self._fits(key, right / num):
            return (
                f"the step sums over its samples or microbatches and does not divide by their number, so that one "
                f"device with all samples gets {num} times the mean over {num} devices: divide by their number"
            )
        return self._alone(key, results, "averaged")

    def _alone(self, key: Any, results: list[Result], how: str) -> str:
        """Say how a step in which each device works on its own samples alone differs from one device."""
        head = f"what each device computes from its own samples alone is {how}"
        # The most particular cause first.
        if self._draws() and self._draw_alike(key, results[0]):
            return (
                f"every device draws the same random numbers: {head}, and equal samples on all devices come out equal"
            )
        weights = self._weights(results)
        if weights is not None:
            counts = weights * (len(results) if how == "averaged" else 1)
            span = f"{counts.min():.2g} to {counts.max():.2g}"
            if np.isclose(counts.mean(), 1, rtol=1e-4):
                return (
                    f"{head}, as if all had as many samples; the devices count for {span} of an even share: divide the "
                    "sum over all devices by the number over all devices"
                )
            return (
                f"{head}, each scaled by a factor of its own ({span} times too small), as clipping by the norm of each "
                "device's own gradient does: something is computed over each device's own samples that is meant over "
                "all"
            )
        return (
            f"{head}, and no weights turn it into what one device computes: something is computed over each device's "
            "own samples that is meant over all, such as a mean, a variance, a norm to clip by (pmean it before it is "
            "used)"
        )

    def _weights(self, results: list[Result]) -> np.ndarray | None:
        """Return the weight of each device's own result in the right one, if that is a sum of them in only one way."""
        # All arrays together first: for a small one alone many weights would do.
        for keys in (self._keys, *([key] for key in self._keys)):
            sizes = [np.abs(self._change(key, self._right)).max(initial=0.0) or 1.0 for key in keys]
            *columns, target = (
                np.concatenate([self._change(key, one).ravel() / size for key, size in zip(keys, sizes, strict=True)])
                for one in (*results, self._right)
            )
            matrix = np.stack(columns, axis=1)
            if matrix.shape[0] <= matrix.shape[1]:  # fewer entries than devices: many weights would do
                continue
            weights, *_ = np.linalg.lstsq(matrix, target, rcond=None)
            even = np.allclose(weights, 1 / len(results), rtol=_FITS)
            if not even and np.abs(matrix @ weights - target).max() <= _FITS:
                return weights
        return None

    def _draws(self) -> bool:
        return "random_bits" in str(self._variants[1].traced())

    def _draw_alike(self, key: Any, first: Result) -> bool:
        """Return whether devices with equal samples compute what the first of them does alone, unlike one device."""
        num = len(self._shares)
        pieces, whole = (jax.tree.leaves(tree) for tree in (self._shares[0].batch, self._batch))
        tiled = []
        for piece, leaf in zip(pieces, whole, strict=True):
            times = [a // b for a, b in zip(leaf.shape, piece.shape, strict=True)]
            tiled.append(np.tile(piece, times))
        batch = jax.tree.unflatten(jax.tree.structure(self._batch), tiled)
        there, here = (variant.replay(self._state, batch) for variant in self._variants)
        alone = self._change(key, first)
        claimed = [alone, alone * num]
        return any(self._fits(key, one, there) and not self._fits(key, one, here) for one in claimed)

    def _exchanges(self) -> str:
        """Try whether everything is right if one exchange between neighbours, or each of them, is reversed."""
        exchanges = list(operations(self._variants[0].traced().jaxpr, "ppermute"))
        if not 0 < len(exchanges) <= _MAX_EXCHANGES:
            return ""
        for turned in [*([one] for one in exchanges), exchanges]:

            def turn(equation: Any, operands: list[Any], given: Any, turned: Any = turned) -> Sequence[Any] | None:
                if not any(equation is one for one in turned):
                    return None
                pairs = tuple((there, here) for here, there in equation.params["perm"])
                result = equation.primitive.bind(*operands, **{**equation.params, "perm": pairs})
                return result if equation.primitive.multiple_results else [result]

            result = self._variants[0].replay(self._state, self._batch, turn)
            if all(self._fits(key, self._change(key, self._right), result) for key in self._keys):
                which = "each" if len(turned) > 1 else f"number {exchanges.index(turned[0]) + 1} of {len(exchanges)}"
                return f"jax.lax.ppermute goes the wrong way, {which}: with its pairs reversed, all is right"
        return ""

    def _pieces(self) -> str:
        """Try whether each device's piece of an array is right up to a factor of its own, as after clipping."""
        for kind, path in self._keys:
            if kind != "state":
                continue
            there, here = (self._change((kind, path), result) for result in (self._got, self._right))
            at = self._shardings()[path]
            indices = {str(index): index for index in at.devices_indices_map(here.shape).values()}
            pairs = [(there[index], here[index]) for index in indices.values()]
            if len(pairs) < 2 or not all(np.any(b) for _, b in pairs):
                continue
            ratios = np.array([np.vdot(b, a).real / np.vdot(b, b).real for a, b in pairs])
            exact = all(
                np.abs(a - r * b).max() <= _FITS * np.abs(b).max() for (a, b), r in zip(pairs, ratios, strict=True)
            )
            if not exact or np.ptp(ratios) < _FITS:
                continue
            # Clipping divides by a norm, so 1 / ratio ** 2 grows linearly with the piece's squared norm.
            squares = np.array([np.vdot(b, b).real for _, b in pairs])
            clipped = ratios < ratios.max() * (1 - _FITS) if np.isclose(ratios, ratios.max()).sum() > 1 else ratios > 0
            words = f"each device's piece of {path} is right up to a factor, {ratios.min():.3g} to {ratios.max():.3g}"
            if clipped.sum() > 2 and _is_line(squares[clipped], 1 / ratios[clipped] ** 2):
                return f"{words}, by its norm: clipped by the norm of each device's own piece instead of all pieces"
            return words
        return ""

    def _shardings(self) -> dict[str, Any]:
        shapes = self._program.state_shapes
        return dict(
            zip(
                by_path(shapes), jax.tree.leaves(shardings(self._program.plan, shapes, self._program.mesh)), strict=True
            )
        )

    def _stale(self) -> str:
        """Try whether everything that is wrong still has its old value."""
        for key in self._keys:
            if key[0] != "state":
                continue
            there, here = (self._change(key, result) for result in (self._got, self._right))
            bad = np.abs(there - here) > _FITS * np.abs(here).max(initial=0.0)
            if bad.any() and not np.any(there[bad]):
                where = f"{int(bad.sum())} of {bad.size} entries of {key[1] or 'the state'}"
                return f"{where} are stale: they keep their old value"
        return ""

    def _unshared_copies(self) -> str:
        """Try whether devices that should agree each hold what follows from their own samples."""
        mesh = self._program.mesh
        for path, copies in self._copies.items():
            key = next((key for key in self._keys if key[1] == path), None)
            start = self._start.get(("state", path), np.zeros(())) if key is None or key[0] == "state" else np.zeros(())
            lookup: Any = ("state", path) if ("state", path) in self._right.leaves else (key or ("output", path))
            held = np.stack(copies).reshape(*mesh.devices.shape, *copies[0].shape)
            apart = [np.any(held != np.take(held, [0], axis=dim)) for dim in range(mesh.devices.ndim)]
            over = ", ".join(itertools.compress(mesh.axis_names, apart))
            pairs = [
                (held[tuple(share.at.values())] - start, self._of_share(share).leaves[lookup] - start)
                for share in self._shares
            ]
            if len(pairs) > 1 and all(_close(copy, own) for copy, own in pairs):
                return f"each device's {path} follows from its own samples: it is not summed or averaged over {over}"
            right = self._right.leaves[lookup] - start
            off = [np.abs(copy - right) > _NEAR * np.abs(right).max(initial=0.0) for copy, _ in pairs]
            most = max(int(wrong.sum()) for wrong in off)
            if most and not any(np.any(copy[wrong]) for (copy, _), wrong in zip(pairs, off, strict=True)):
                return (
                    f"each device's copy of {path} is stale except for its own part: up to {most} of {right.size} "
                    f"entries keep their old value, as without a gather over {over}"
                )
            return f"the devices' copies of {path} drift apart along {over}"
        return ""


def _is_sign(change: np.ndarray) -> bool:
    sizes = np.abs(change[change != 0])
    return sizes.size > 1 and bool(np.median(sizes) > (1 - _NEAR) * sizes.max())


def _close(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(np.abs(a - b).max(initial=0.0) <= _NEAR * np.abs(b).max(initial=0.0))


def _allowed(right: np.ndarray) -> np.ndarray:
    sizes = np.abs(right)
    return _FITS * near(sizes) + 1e-13 * sizes.max(initial=0.0)


def _is_line(x: np.ndarray, y: np.ndarray) -> bool:
    slope, offset = np.polyfit(x / x.max(), y, 1)
    return bool(slope > 0 and np.abs(slope * x / x.max() + offset - y).max() <= 1e-3 * y.max())
