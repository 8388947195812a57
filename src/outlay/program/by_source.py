"""Values that rules name by their source: what a module or a function returns, what a line or a named scope makes.

A step is traced, and its operations are run again with `constrain` after those that make such values, in what is
differentiated before it is differentiated: so the gradient of a value lives where the value does. What functions return
is marked while they are traced. The value of a line, or of a scope, is what its operations make and something else
takes; scopes are looked for where no function or module has the name.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import ClosedJaxpr, Var, jaxprs_in_params
from jax.sharding import AxisType, Mesh

from outlay.core.as_written import current_observer
from outlay.core.constrain import Gradient, constrain, current_runner, use_resolver
from outlay.core.context_values import within
from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_source import MARK, calls_to, is_of_a_derivative, line_of, marking_returns
from outlay.core.jax_tracing import CALLS, CHECKPOINTS, COND, SCAN, WHILE, intercept_vjp, rerun, run_jaxpr
from outlay.core.quantities import counted
from outlay.graph.graph_loop import GraphLoop
from outlay.layout.rule import Rule
from outlay.program.modes import Step
from outlay.program.passes import Planned
from outlay.program.source_names import Line, Scope, SourceNames, is_readable, line_in

_ENTERED = (SCAN, WHILE, COND, *CALLS, *CHECKPOINTS)


def wrap(step: Step, planned: Planned) -> Step:
    """Wrap a step so that it constrains the values that rules name by source; see `check` for where it can.

    Raises:
        ProgramError: while it is traced: rules that match nothing, or values that cannot be placed, or whose spec has
            more dims than a value.
    """
    if why_no_source_rules(planned.step, planned.mode, planned.mesh):
        return step
    rules = [rule for rule in planned.layout if rule.is_of_value]

    @functools.wraps(step, updated=())
    def placed(*args: Any) -> Any:
        return _BySource(rules).run(step, args)

    return placed


def check(planned: Planned) -> None:
    """Raise for rules that name values by source if the compiler does not place values inside the step."""
    rules = [rule for rule in planned.layout if rule.is_of_value and not rule.optional]
    where = why_no_source_rules(planned.step, planned.mode, planned.mesh)
    if rules and where:
        fix = "delete the rule" + (', or mode="auto"' if planned.mode != "auto" else "")
        what = f"it names a value by its source, which is for mode auto on automatic axes; this is {where}"
        problems = [Problem("source rule in this program", rule.written, what, fix) for rule in rules]
        head = f"{counted(len(rules), 'rule')} of the layout cannot be applied here:"
        raise ProgramError(head, problems)


def why_no_source_rules(step: Any, mode: str, mesh: Mesh) -> str:
    """Return, in words, what keeps rules from naming values by source; empty if nothing does."""
    if mode != "auto":
        return f"mode {mode}"
    if AxisType.Explicit in mesh.axis_types:
        return "a mesh with explicit axes"
    return "a graph of parts" if isinstance(step, GraphLoop) else ""


@dataclass(frozen=True)
class _Value:
    """A value that a rule matches.

    Attributes:
        path: its path in the plan.
        rank: the number of the first rule that matches it.
        batched: the dims that `jax.vmap` has added to it, the first to be named first.
        source: the line that makes it.
    """

    path: str
    rank: int
    batched: tuple[int, ...] = ()
    source: str = ""


@dataclass
class _BySource:
    """One trace of a step."""

    rules: Sequence[Rule]
    problems: dict[str, Problem] = field(default_factory=dict)
    paths: dict[str, list[tuple[Any, ...]]] = field(default_factory=dict)
    used: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.names = SourceNames(self.rules)
        self.sources: dict[int, Line | Scope] = {
            rank: line_in(rule.pattern) or Scope(rule) for rank, rule in enumerate(self.rules)
        }

    def run(self, step: Callable[..., Any], args: tuple[Any, ...]) -> Any:
        """Run the step.

        A first trace, which is thrown away, tells whether there is anything to place outside of what is differentiated.
        If there is nothing, the step itself is called, so that what a runner of sums keeps belongs to its trace.
        """
        num_sums = 0

        def count(gradient: Gradient, *of: Any) -> Any:
            nonlocal num_sums
            num_sums += 1
            return gradient(*of)

        with marking_returns(self.names.of_returned), intercept_vjp(self._rerun):
            unseen = within(current_observer, lambda gradients: None)  # those of this trace are nobody's
            with unseen, within(current_runner, count), use_resolver(lambda where, tree, optional: tree):
                jaxpr = _traced(step, args)[0]
            outside = {value.path: value for value in self._deep(jaxpr, self.sources)}
            if outside and num_sums:
                self._out_of_reach(outside, "the optimizer's part of a training step")
            self._refuse(outside)
            if not outside:
                return step(*args)
            results = self._rerun(step)(*args)
            self._refuse(outside)  # what was seen only while values were placed
            return results

    def _rerun(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function, updated=())
        def rerun(*args: Any) -> Any:
            jaxpr, structure = _traced(function, args)
            return jax.tree.unflatten(structure, self._run(jaxpr, jax.tree.leaves(args)))

        return rerun

    def _run(self, jaxpr: Any, values: Sequence[Any]) -> list[Any]:
        jaxpr, consts = getattr(jaxpr, "jaxpr", jaxpr), getattr(jaxpr, "consts", None)
        here = self._values(jaxpr, self.sources)
        placed = [self._place(variable, value, here) for variable, value in zip(jaxpr.invars, values, strict=True)]
        closed = jaxpr if consts is None else ClosedJaxpr(jaxpr, consts)

        def evaluate(eqn: Any, values: list[Any], bind: Callable[..., list[Any]]) -> list[Any]:
            if eqn.primitive.name == MARK:
                return values
            results = self._inside(eqn, values) if self._is_entered(eqn) else bind(*values)
            return [self._place(variable, one, here) for variable, one in zip(eqn.outvars, results, strict=True)]

        return run_jaxpr(closed, placed, evaluate)

    def _place(self, variable: Any, value: Any, here: Mapping[Any, _Value]) -> Any:
        of = here.get(variable)
        if of is None:
            return value
        self.used.add(of.rank)
        own = [dim for dim in range(value.ndim) if dim not in of.batched]
        first = (*of.batched, *own)
        moved = value if first == (*range(value.ndim),) else value.transpose(first)
        if self._is_too_short(of, moved):
            return value
        moved = constrain(moved, self._path(of.path, moved), optional=True)
        return moved if first == (*range(value.ndim),) else moved.transpose([first.index(d) for d in range(value.ndim)])

    def _is_too_short(self, of: _Value, value: Any) -> bool:
        spec = self.rules[of.rank].spec
        if spec is None or len(spec) <= value.ndim:
            return False
        what = f"rule {self.rules[of.rank].written} gives {len(spec)} dims, but the value has {value.ndim}: "
        what += f"{value.dtype}{list(value.shape)}" + (f", made at {of.source}" if of.source else "")
        fix = "give at most one entry a dim, or write a pattern that leaves this value out"
        self.problems.setdefault(what, Problem("too many dims", of.path, what, fix))
        return True

    def _path(self, path: str, value: Any) -> str:
        """Return the path of a value; values of the same name with other shapes are numbered."""
        shapes = self.paths.setdefault(path, [])
        if (shape := (value.shape, value.dtype)) not in shapes:
            shapes.append(shape)
        number = shapes.index(shape) + 1
        return path if number == 1 else f"{path}#{number}"

    def _values(self, jaxpr: Any, sources: Mapping[int, Line | Scope]) -> dict[Any, _Value]:
        """Find the values that rules name, except those inside loops and calls."""
        values: dict[Any, _Value] = {}
        made_by = {variable: eqn for eqn in jaxpr.eqns for variable in eqn.outvars}
        named = [
            (eqn.invars[0], _Value(path, rank, eqn.params["batched"], _line_of_eqn(made_by.get(eqn.invars[0]))))
            for eqn in jaxpr.eqns
            if eqn.primitive.name == MARK and isinstance(eqn.invars[0], Var)
            for path, rank in [self.names.path_and_rank(eqn.params["name"])]
        ]
        for eqn in jaxpr.eqns:
            self.names.add_scopes(eqn)
        of_sources = [
            (variable, _Value(path, rank, (), _line_of_eqn(made_by[variable])))
            for rank, source in sources.items()
            if isinstance(source, Line) or rank not in self.names.returned
            for variable, turn in _leaving(jaxpr, source).items()
            for path in [source.path(turn) if isinstance(source, Scope) else self.rules[rank].pattern]
        ]
        for variable, value in [*named, *of_sources]:
            if variable not in values or value.rank < values[variable].rank:
                values[variable] = value
        return values

    def _is_entered(self, eqn: Any) -> bool:
        """Return whether there are values to place inside an operation."""
        inner = list(jaxprs_in_params(eqn.params))
        if not inner or is_of_a_derivative(eqn):
            return False
        there = {value.path: value for one in inner for value in self._deep(one, self._sources_inside(eqn))}
        has_shardings = _has_shardings(eqn)  # which would be lost in what is run again
        if eqn.primitive.name in _ENTERED and not has_shardings:
            return bool(there)
        self._out_of_reach(there, "jax.jit with shardings of its own" if has_shardings else eqn.primitive.name)
        return False

    def _out_of_reach(self, values: Mapping[str, _Value], inside: str) -> None:
        for path, value in values.items():
            at = f", at {value.source}" if value.source else ""
            what = f"it is made inside {inside}{at}, where no value can be placed from outside"
            fix = "name what the function around it returns, or the line that calls that function"
            self.problems.setdefault(path, Problem("out of reach", path, what, fix))
            self.used.add(value.rank)

    def _deep(self, jaxpr: Any, sources: Mapping[int, Line | Scope]) -> Iterator[_Value]:
        """Find the values of a program, including those inside its operations."""
        jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
        yield from self._values(jaxpr, sources).values()
        for eqn in jaxpr.eqns:
            inside = [] if is_of_a_derivative(eqn) else jaxprs_in_params(eqn.params)
            for inner in inside:
                yield from self._deep(inner, self._sources_inside(eqn, sources))

    def _sources_inside(self, eqn: Any, sources: Mapping[int, Line | Scope] | None = None) -> dict[int, Line | Scope]:
        """Return the lines and scopes whose values may be inside an operation that is not itself on them."""
        sources = self.sources if sources is None else sources
        return {rank: source for rank, source in sources.items() if source.turn(eqn) is None}

    def _inside(self, eqn: Any, values: list[Any]) -> list[Any]:
        """Run an operation with the values inside it placed."""
        around, self.sources = self.sources, self._sources_inside(eqn)
        try:
            return rerun(eqn, values, self._run)
        finally:
            self.sources = around

    def _refuse(self, outside: Mapping[str, _Value]) -> None:
        problems, used = [*self.problems.values()], self.used | {value.rank for value in outside.values()}
        for rank, rule in enumerate(self.rules):
            if rank not in used and not rule.optional:
                problems.append(Problem("unused rule", rule.written, *self.names.why_unused(rule)))
        if problems:
            head = f"{counted(len(problems), 'problem')} with rules that name values by their source:"
            raise ProgramError(head, problems)


def _traced(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Any]:
    """Trace a function anew; return its operations and the structure of its results."""
    # The lambda is a new function each time, so JAX cannot return a cached trace, which would hold no marks.
    jaxpr, result = jax.make_jaxpr(lambda *args: function(*args), return_shape=True)(*args)
    return jaxpr, jax.tree.structure(result)


def _leaving(jaxpr: Any, source: Line | Scope) -> dict[Any, Any]:
    """Find the floating-point values that leave a line or a scope, for something else or for its own next round.

    Each with the turn in which it is made.
    """
    made: dict[Any, Any] = {}
    left: dict[Any, Any] = {}
    for eqn in jaxpr.eqns:
        turn = None if is_of_a_derivative(eqn) else source.turn(eqn)
        if eqn.primitive.name == MARK:
            continue
        for variable in eqn.invars:
            is_made = isinstance(variable, Var) and variable in made
            if is_made and (turn is None or not source.is_same(made[variable], turn)):
                left[variable] = made[variable]
        if turn is not None:
            made.update((variable, turn) for variable in eqn.outvars if _is_number(variable))
    left.update((one, made[one]) for one in jaxpr.outvars if isinstance(one, Var) and one in made)
    return left


def _has_shardings(eqn: Any) -> bool:
    shardings = (*eqn.params.get("in_shardings", ()), *eqn.params.get("out_shardings", ()))
    return any(isinstance(sharding, jax.sharding.Sharding) for sharding in shardings)


def _is_number(variable: Any) -> bool:
    return jnp.issubdtype(variable.aval.dtype, jnp.inexact) and bool(variable.aval.shape)


def _line_of_eqn(eqn: Any) -> str:
    """Return the innermost line of the user's own code that makes a value."""
    for step in reversed(calls_to(eqn)) if eqn is not None else ():
        if is_readable(step[0].co_filename):
            return f"{step[0].co_filename}:{line_of(step)}"
    return ""
