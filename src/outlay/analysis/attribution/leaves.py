"""Name the parameters of a compiled program as the user knows them: what each is, and how its layout places it."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from outlay.analysis.hlo.hlo_module import HloModule, Shape, shape_bytes
from outlay.core.one_line import OneLine
from outlay.core.paths import flatten_paths, join_parts, split_path, under
from outlay.layout.layout import Layout
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.optimizer_state import PARAMETERS
from outlay.layout.placement import OPTIMIZER_ROOTS, spec_text
from outlay.layout.plan import Plan

PARAMS, OPTIMIZER, BATCH, OTHER = "params", "optimizer", "batch", ""
STATISTICS, RANDOM, METRICS = "batch statistics", "rng state", "metrics"
_TOKENS = "batch.tokens"
_STEP = re.compile(r"\.(\w+)|\['((?:[^'\\]|\\.)*)'\]|\[(\d+)\]|\[<flat index (\d+)>\]")


@dataclass(frozen=True)
class Leaf:
    """A parameter of the program.

    Attributes:
        number: which parameter.
        path: its path in the state, or `batch.…`; in other functions it begins with the name of the argument.
        shape: on one device.
        donated: whether the caller donates its memory; None if only the text of the program is known.
        role: what it is, as `roles_of` says; None if only its path is known.
    """

    number: int
    path: str
    shape: Shape
    donated: bool | None = None
    role: str | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes on one device."""
        return shape_bytes(self.shape)

    @property
    def part(self) -> str:
        """The role of the leaf: `params`, `optimizer`, `batch`, a kind of other state, or empty for anything else."""
        return role_by_path(self.path) if self.role is None else self.role


def leaves_of(
    module: HloModule, named: Sequence[tuple[str, bool | None]], roles: Mapping[str, str] | None = None
) -> tuple[Leaf, ...]:
    """Return every parameter of a program with its path.

    Args:
        module: the program.
        named: what is known of its arguments, as `passed_arguments` returns it; empty if nothing is.
        roles: what the leaves of its state are, by path.
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
        path = path or _written(one.op_name)
        leaves.append(Leaf(int(one.value), path, one.shapes[0], donated, (roles or {}).get(path)))
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
    # Flax keeps each array in a variable, whose `.value` is no part of a path (`core/paths.py`).
    if name.endswith(".value"):
        parts = parts[:-1]
    return join_parts((root[0], *parts))


@dataclass(frozen=True)
class PlacedAlike:
    """Leaves of one part of the state or batch with the same dtype and the same place.

    Attributes:
        part: the first name in their paths, such as `params`, `opt_state` or `batch`.
        dtype: their dtype.
        spec: how they are split, such as `P('data', None)`.
        on_host: whether they live in the host's memory.
        num_leaves: how many they are.
        bytes_per_device: their bytes on one device, or on its host.
        bytes_total: their bytes, each array counted once.
        example: the path of the largest.
    """

    part: str
    dtype: str
    spec: str
    on_host: bool
    num_leaves: int
    bytes_per_device: int
    bytes_total: int
    example: str


@dataclass(frozen=True)
class LayoutFacts(OneLine):
    """A layout and what became of it.

    Attributes:
        names: the strategies and files that wrote its rules, in order; `own rules` for a user's.
        placed: the leaves, those of a part together, most bytes first.
        num_parameters: the numbers that its parameters hold, each once.
        batch: the dims of a step's batch: samples, and tokens of each if it has a leaf of that name; empty if unknown.
    """

    names: tuple[str, ...]
    placed: tuple[PlacedAlike, ...]
    num_parameters: int = 0
    batch: tuple[int, ...] = ()


def layout_facts(layout: Layout, plan: Plan) -> LayoutFacts:
    """Return the layout of a program, by what its plan made of it."""
    names = dict.fromkeys(rule.source or "own rules" for rule in layout.rules)
    alike: dict[tuple[str, str, str, bool], list[LeafPlan]] = {}
    for leaf in (*plan.state, *plan.of_kind("batch")):
        part = next(iter(split_path(leaf.path)), "")
        alike.setdefault((part, leaf.dtype, spec_text(leaf.spec), leaf.stored == "host"), []).append(leaf)
    placed = [
        PlacedAlike(
            part=part,
            dtype=dtype,
            spec=spec,
            on_host=on_host,
            num_leaves=len(leaves),
            bytes_per_device=sum(leaf.bytes_per_device for leaf in leaves),
            bytes_total=sum(leaf.bytes_total for leaf in leaves),
            example=max(leaves, key=lambda leaf: leaf.bytes_total).path,
        )
        for (part, dtype, spec, on_host), leaves in alike.items()
    ]
    held = {
        part: sum(one.bytes_per_device for one in placed if one.part == part) for part in {one.part for one in placed}
    }
    # Parts stay together, those that hold most first.
    placed.sort(key=lambda one: (-held[one.part], one.part, -one.bytes_per_device))
    params = (leaf for leaf in plan.state if role_by_path(leaf.path) == PARAMS)
    return LayoutFacts(tuple(names), tuple(placed), sum(math.prod(leaf.shape) for leaf in params), batch_dims(plan))


def batch_dims(plan: Plan) -> tuple[int, ...]:
    """Return the dims of a batch that say how much a step takes: samples, and tokens of each; empty if unknown."""
    batch = plan.of_kind("batch")
    tokens = next((leaf.shape for leaf in batch if leaf.path == _TOKENS and len(leaf.shape) == 2), None)
    if tokens is not None:
        return tokens
    first = {leaf.shape[0] if leaf.shape else 0 for leaf in batch}
    return (first.pop(),) if len(first) == 1 else ()


def roles_of(state: Any) -> dict[str, str]:
    """Return the role of each leaf of a state by its path: one of the above, or the kind of an NNX variable.

    >>> roles_of({"params": {"w": np.ones(3)}, "batch_stats": {"mean": np.ones(3)}, "key": jax.random.key(0)})
    {'batch_stats.mean': 'batch statistics', 'key': 'rng state', 'params.w': 'params'}
    """
    nnx = sys.modules.get("flax.nnx")
    leaves = flatten_paths(state, None if nnx is None else lambda node: isinstance(node, nnx.Variable))[0]
    return {path: _role(nnx, path, leaf) for path, leaf in leaves}


def _role(nnx: Any, path: str, leaf: Any) -> str:
    # Moments have the type of the variables that they follow; an `nnx.Optimizer` holds the model, and types of its own.
    is_moment = "opt_state" in split_path(path)[:2]
    return OPTIMIZER if is_moment else _of_variable(nnx, leaf) or role_by_path(path, leaf)


def role_by_path(path: str, leaf: Any = None) -> str:
    """Return the role of a leaf by the names in its path, and by its dtype if that is of random keys.

    >>> role_by_path("opt_state.0.mu.w"), role_by_path("state.params.w"), role_by_path("model.layers.0.w")
    ('optimizer', 'params', 'params')
    """
    first, *rest = (*split_path(path), "")
    names = (first, rest[0]) if rest else (first,)
    if first == BATCH:
        return BATCH
    if any(name in OPTIMIZER_ROOTS for name in names):
        return OPTIMIZER
    if str(getattr(leaf, "dtype", "")).startswith("key<"):
        return RANDOM
    if "batch_stats" in names:
        return STATISTICS
    return PARAMS if "params" in names or first in PARAMETERS else OTHER


def _of_variable(nnx: Any, node: Any) -> str:
    """Return the role of a variable of NNX by its type; nothing for the base type, and for what is none."""
    if nnx is None or not isinstance(node, nnx.Variable) or type(node) is nnx.Variable:
        return ""
    kinds = {
        nnx.Param: PARAMS,
        nnx.OptState: OPTIMIZER,
        nnx.BatchStat: STATISTICS,
        nnx.RngState: RANDOM,
        nnx.metrics.MetricState: METRICS,
    }
    return next((role for kind, role in kinds.items() if isinstance(node, kind)), type(node).__name__)
