"""Name the parameters of a compiled program as the user knows them: leaves of the arguments, by path."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax

from outlay.analysis.hlo.hlo_module import HloModule
from outlay.analysis.hlo.hlo_shapes import Shape, shape_bytes
from outlay.core.paths import flatten_paths, join_parts, split_path, under

_STEP = re.compile(r"\.(\w+)|\['((?:[^'\\]|\\.)*)'\]|\[(\d+)\]|\[<flat index (\d+)>\]")
_OPTIMIZER = ("opt_state", "optimizer")


@dataclass(frozen=True)
class Leaf:
    """A parameter of the program.

    Attributes:
        number: which parameter.
        path: its path in the state, or `batch.…`; in other functions it begins with the name of the argument.
        shape: on one device.
        donated: whether the caller donates its memory; None if only the text of the program is known.
    """

    number: int
    path: str
    shape: Shape
    donated: bool | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes on one device."""
        return shape_bytes(self.shape)

    @property
    def part(self) -> str:
        """The role of the leaf: `params`, `optimizer`, `batch`, or empty for anything else."""
        first, *rest = (*split_path(self.path), "")
        if first == "batch":
            return "batch"
        names = (first, rest[0])
        if any(name in _OPTIMIZER for name in names):
            return "optimizer"
        return "params" if "params" in names else ""


def leaves_of(module: HloModule, named: Sequence[tuple[str, bool | None]]) -> tuple[Leaf, ...]:
    """Return every parameter of a program with its path.

    Args:
        module: the program.
        named: what is known of its arguments, as `passed_arguments` returns it; empty if nothing is.
    """
    entry = module.computations[module.entry]
    parameters = sorted(
        (one for one in entry.instructions.values() if one.opcode == "parameter"), key=lambda one: int(one.value)
    )
    # Arrays that a function closes over may be parameters, too; they come first.
    num_others = len(parameters) - len(named)
    leaves = []
    for position, one in enumerate(parameters):
        path, donated = named[position - num_others] if named and position >= num_others >= 0 else ("", None)
        leaves.append(Leaf(int(one.value), path or _written(one.op_name), one.shapes[0], donated))
    return tuple(leaves)


def passed_arguments(compiled: jax.stages.Compiled, *, of_program: bool) -> list[tuple[str, bool | None]]:
    """Return path and donation of every argument that is used; JAX drops the others.

    Args:
        compiled: the compiled program.
        of_program: whether its arguments are the state and the batch of an `outlay.Program`.
    """
    args = jax.tree.leaves(compiled.args_info)
    paths = _program_paths(compiled.args_info) if of_program else [""] * len(args)
    shardings = each_sharding(compiled.args_info, compiled.input_shardings)
    return [(path, arg.donated) for path, arg, where in zip(paths, args, shardings, strict=True) if where is not None]


def each_sharding(args: Any, shardings: Any) -> list[Any]:
    """Return the sharding of every argument, None for one that is not used and so is not a parameter.

    JAX's tree functions take such a None for a subtree without leaves, like the Nones that the arguments themselves
    hold (what is left out of a filtered model): only the structure of the arguments tells the two apart.

    >>> each_sharding({"w": 1.0, "bias": None, "unused": 2.0}, {"w": "split", "bias": None, "unused": None})
    [None, 'split']
    """
    return jax.tree.structure(args).flatten_up_to(shardings)


def _program_paths(args_info: Any) -> list[str]:
    (state, batch), _ = args_info
    return [
        *(path for path, _ in flatten_paths(state)[0]),
        *(under("batch", path) for path, _ in flatten_paths(batch)[0]),
    ]


def _written(name: str) -> str:
    """Return the path that an argument's name spells.

    >>> _written("state.params['layers'][0]['kernel'].value"), _written("x")
    ('state.params.layers.0.kernel', 'x')
    """
    root = re.match(r"\w+", name)
    if root is None:
        return name
    steps: Sequence[tuple[str, ...]] = _STEP.findall(name, root.end())
    parts = [next(part for part in step if part) for step in steps if any(step)]
    if name.endswith(".value"):
        parts = parts[:-1]
    return join_parts((root[0], *parts))
