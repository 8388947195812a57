"""Give `keep()`, `recompute()` and `on_host()` their meaning for the values that a model names.

What is to be differentiated is traced first, and its operations are run again inside `jax.checkpoint`, with a policy
that knows the values by name: each turn of a loop by itself, so that a loop over layers keeps no more of a layer than
the policy says, and each stretch between such loops. Loops and stretches that hold no such value stay as they are.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import Var, jaxprs_in_params
from jax.sharding import PartitionSpec

from outlay.arrays.shardings import HOST
from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_tracing import (
    CALLS,
    CHECKPOINTS,
    SCAN,
    Operations,
    intercept_vjp,
    operations,
    rerun_scan,
    run_jaxpr,
)
from outlay.core.paths import map_with_paths, under
from outlay.core.primitives import KEEPS
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.layout.placement import Stored
from outlay.layout.plan import Plan
from outlay.program.host_state import check as check  # a rule may keep what is inside on the host, too
from outlay.program.modes import Step
from outlay.program.passes import Planned

_NAME = "name"
Storages = Mapping[str, Stored]
"""Where rules store values, by their names."""

_UNCHANGED = "outlay: kept"
"""The name of all values that stay where they were, where only some are to be recomputed."""


def wrap(step: Step, planned: Planned) -> Step:
    """Wrap a step so that all its gradients follow the rules; a graph that is split by rows has none."""
    return step if planned.is_split_by_rows else Rematerialization(planned.plan).step(step)


def naming_by(plan: Plan) -> Callable[[str | PartitionSpec, Any], Any]:
    """Return what names the values of a tree by their paths, for the policy of a checkpoint.

    Values that are constrained by a spec have no name.

    Args:
        plan: the plan, whose rules may store values.
    """
    stored = {leaf.path for leaf in plan.of_kind("intermediate") if leaf.stored}

    def named(where: str | PartitionSpec, tree: Any) -> Any:
        if isinstance(where, PartitionSpec):
            return tree

        def one(path: str, value: Any) -> Any:
            path = under(where, path)
            return checkpoint_name(value, path) if path in stored else value

        return map_with_paths(one, tree)

    return named


class Rematerialization:
    """Applies the storage rules of a layout to the values inside a step.

    Args:
        plan: the plan of the step.
    """

    def __init__(self, plan: Plan) -> None:
        self._stored: Storages = {leaf.path: leaf.stored for leaf in plan.of_kind("intermediate") if leaf.stored}
        self._seen: set[str] = set()

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap a function so that its derivative keeps, recomputes or offloads values as the rules say."""

        def stored(*args: Any) -> Any:
            jaxpr, result = jax.make_jaxpr(function, return_shape=True)(*args)
            if not (here := _names_in(jaxpr, self._stored)):
                return function(*args)
            self._seen |= here
            results = _run(jaxpr, jax.tree.leaves(args), self._stored, prevent_cse=True)
            return jax.tree.unflatten(jax.tree.structure(result), results)

        return stored

    def step(self, step: Step) -> Step:
        """Wrap a step so that all its gradients follow the rules.

        Raises:
            ProgramError: while it is traced, if no gradient passes through some of the values.
        """

        @functools.wraps(step)
        def differentiated(state: Any, batch: Any) -> Any:
            with intercept_vjp(self):
                result = step(state, batch)
            self._check_all_seen()
            return result

        return differentiated

    def _check_all_seen(self) -> None:
        problems = [
            Problem(
                "no gradient",
                path,
                "a rule says how it is stored for the backward pass, but no gradient is taken through it",
                "delete the rule, or name the value inside of what is differentiated"
                + (f"; {did_you_mean(path, self._seen)}" if self._seen else ""),
            )
            for path in self._stored
            if path not in self._seen
        ]
        if problems:
            head = f"no backward pass needs {counted(len(problems), 'value')} that the layout stores:"
            raise ProgramError(head, problems)


def _run(jaxpr: Any, values: Sequence[Any], storages: Storages, *, prevent_cse: bool) -> list[Any]:
    """Run a program with every stretch that holds a ruled value under `jax.checkpoint`."""
    consts, jaxpr = getattr(jaxpr, "consts", ()), getattr(jaxpr, "jaxpr", jaxpr)
    known = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *values], strict=True))
    for stretch in _stretches(jaxpr, storages):
        operands = [known[variable] for variable in stretch.invars]
        if _is_entered(stretch.eqns[0], storages):
            results = _inside(stretch, operands, storages, prevent_cse=prevent_cse)
        elif names := _names_in(stretch, storages):
            inside = _all_kept if all(storages[name] == "recomputed" for name in names) else _plainly
            turn = functools.partial(inside, stretch, storages)
            results = jax.checkpoint(turn, policy=_policy(storages), prevent_cse=prevent_cse)(*operands)
        else:
            results = _plainly(stretch, storages, *operands)
        known.update(zip(stretch.outvars, results, strict=True))
    return [known[atom] if isinstance(atom, Var) else atom.val for atom in jaxpr.outvars]


def _stretches(jaxpr: Any, storages: Storages) -> Iterator[Operations]:
    """Cut a program before and after every loop, call or checkpoint that holds ruled values."""
    # A checkpoint around everything would recompute a loop's carry from its first turn; around each turn it need not.
    runs: list[list[Any]] = [[]]
    for eqn in jaxpr.eqns:
        if _is_entered(eqn, storages):
            runs += [[eqn], []]
        else:
            runs[-1].append(eqn)
    needed = [{atom for atom in jaxpr.outvars if isinstance(atom, Var)}]
    for run in reversed(runs):
        needed.append(needed[-1] | {atom for eqn in run for atom in eqn.invars if isinstance(atom, Var)})
    for run, later in zip(runs, reversed(needed[:-1]), strict=True):
        made = {variable: None for eqn in run for variable in eqn.outvars}
        read = {atom: None for eqn in run for atom in eqn.invars if isinstance(atom, Var) and atom not in made}
        if run:
            yield Operations(run, list(read), [variable for variable in made if variable in later])


def _is_entered(eqn: Any, storages: Storages) -> bool:
    return eqn.primitive.name in (SCAN, *CHECKPOINTS, *CALLS) and bool(_names_in(Operations([eqn], (), ()), storages))


def _inside(stretch: Operations, operands: Sequence[Any], storages: Storages, *, prevent_cse: bool) -> list[Any]:
    """Run the single operation of a stretch, a loop, call or checkpoint that holds ruled values."""

    def entered(eqn: Any, values: list[Any], _: Any) -> list[Any]:
        if eqn.primitive.name == SCAN:
            # A loop's turns are not merged with their recomputation: the barrier of prevent_cse would only cost time.
            return rerun_scan(
                eqn.params, values, lambda turn: _run(eqn.params["jaxpr"], turn, storages, prevent_cse=False)
            )
        inner = next(iter(jaxprs_in_params(eqn.params)))
        if eqn.primitive.name in CALLS:
            return _run(inner, values, storages, prevent_cse=prevent_cse)
        policy = _policy(storages, eqn.params["policy"])
        plainly = functools.partial(_plainly, inner, storages)
        return jax.checkpoint(plainly, policy=policy, prevent_cse=eqn.params["prevent_cse"])(*values)

    return run_jaxpr(stretch, operands, entered)


def _plainly(jaxpr: Any, _: Storages, *values: Any) -> list[Any]:
    return run_jaxpr(jaxpr, values, lambda eqn, values, bind: bind(*values))


def _all_kept(jaxpr: Any, storages: Storages, *values: Any) -> list[Any]:
    """Run a program with a name on every value that is not to be recomputed, so that a policy can keep those."""
    # JAX's save_anything_except_these_names would keep the operand of the name, which is the same array.
    recomputed = _recomputed(getattr(jaxpr, "jaxpr", jaxpr), storages)

    def named(eqn: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
        if id(eqn) in recomputed:
            return bind(*values)
        inner = next(iter(jaxprs_in_params(eqn.params)), None)
        if eqn.primitive.name in CALLS:
            return _all_kept(inner, storages, *values)
        if eqn.primitive.name == SCAN:
            return rerun_scan(eqn.params, values, lambda turn: _all_kept(eqn.params["jaxpr"], storages, *turn))
        return [checkpoint_name(x, _UNCHANGED) if jnp.issubdtype(x.dtype, jnp.inexact) else x for x in bind(*values)]

    return run_jaxpr(jaxpr, values, named)


def _recomputed(jaxpr: Any, storages: Storages) -> set[int]:
    """Return the ids of the operations that make or merely copy the values to be recomputed."""
    made_by = {variable: eqn for eqn in jaxpr.eqns for variable in eqn.outvars}
    operations: dict[int, Any] = {}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == _NAME and storages.get(eqn.params["name"]) == "recomputed":
            maker: Any = eqn
            while maker is not None:
                operations[id(maker)] = maker
                maker = made_by.get(maker.invars[0]) if maker.primitive.name in KEEPS else None
    copies = {variable for eqn in operations.values() if eqn.primitive.name == _NAME for variable in eqn.outvars}
    for eqn in jaxpr.eqns:
        if eqn.primitive.name in KEEPS and copies.intersection(v for v in eqn.invars if isinstance(v, Var)):
            operations[id(eqn)] = eqn
            copies.update(eqn.outvars)
    return set(operations)


def _policy(storages: Storages, otherwise: Callable[..., Any] | None = None) -> Callable[..., Any]:
    """Return a policy for `jax.checkpoint`: named values as the rules say, others as another policy says."""
    named: dict[Stored, list[str]] = {stored: [] for stored in ("device", "host", "recomputed")}
    for name, stored in storages.items():
        named[stored].append(name)
    by_name = jax.checkpoint_policies.save_and_offload_only_these_names(
        names_which_can_be_saved=[*named["device"], _UNCHANGED],
        names_which_can_be_offloaded=named["host"],
        offload_src="device",
        offload_dst=HOST,
    )

    def keeps(primitive: Any, *types: Any, **params: Any) -> Any:
        is_named = primitive.name == _NAME and (params["name"] in storages or params["name"] == _UNCHANGED)
        policy = by_name if is_named or otherwise is None else otherwise
        return policy(primitive, *types, **params)

    return keeps


def _names_in(jaxpr: Any, storages: Storages) -> set[str]:
    """Return the ruled names in a program, with those in its loops and calls."""
    return {eqn.params["name"] for eqn in operations(jaxpr, _NAME)} & storages.keys()
