"""Multiply parameters in FP8, where a rule of the layout says so (`outlay.layout.fp8`).

What is differentiated is traced first and run again with other products, each with gradients of its own; of a step that
differentiates nothing, the step itself. A `train_step` says what it differentiates; in any other step, `jax.grad` and
its relatives do.
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.core.constrain import Gradient, History, Sums, current_history, current_runner
from outlay.core.context_values import within
from outlay.core.error_types import Problem, ProgramError
from outlay.core.jax_source import source_line
from outlay.core.jax_tracing import at_source_of, intercept_vjp
from outlay.core.paths import flatten_paths, under
from outlay.core.quantities import counted, listed
from outlay.devices.mesh_info import is_explicit
from outlay.layout.fp8 import Float8, Fp8
from outlay.layout.placement import is_optimizer
from outlay.layout.rule import Rule
from outlay.program.fp8.delayed_scaling import (
    GRADIENT,
    OTHER,
    PARAMETER,
    Beside,
    after,
    delayed_leaves,
    histories,
    is_delayed,
    no_place,
    scales_of,
)
from outlay.program.fp8.fp8_product import Fp8Product, Rounded
from outlay.program.fp8.fp8_scaling import SCALES, Narrow, narrowed
from outlay.program.fp8.parameter_products import (
    ORIGINS,
    Origin,
    Origins,
    Surroundings,
    out_of_reach,
    run_with_products,
)
from outlay.program.gradient_splits import root_of
from outlay.program.modes import Step
from outlay.program.passes import Planned
from outlay.program.traced_gradients import of_arguments, traced_function, traced_gradients

NAME = "fp8_products"
"""The name of the pass; its note says how many products are in FP8."""


def wrap(step: Step, planned: Planned) -> Step:
    """Wrap a step so that products of the leaves of FP8 rules are in FP8.

    Raises:
        ProgramError: while it is traced: a rule names no leaf that is multiplied.
    """

    @functools.wraps(step, updated=())
    def run(state: Any, batch: Any) -> Any:
        products = _Products(planned)
        if planned.traced.sums_over_batch:
            with within(current_runner, products.runner(current_runner.get())):
                results = step(state, batch)
        else:
            results = products.run_step(step, state, batch)
        products.check()
        planned.notes[NAME] = products.in_words()
        return results

    return run


def check(planned: Planned) -> None:
    """Raise for FP8 rules where the step does not see whole arrays as it was traced, or belongs to a graph."""
    if planned.mode == "placed" and planned.layout.keeps_scales:
        what = (
            "stages in mode placed are programs of their own, which do not tell each other what their products needed"
        )
        fix = 'scaling="current", or mode="auto"'
        of = [Problem("not here", rule.written, what, fix) for rule in _rules(planned) if is_delayed(rule)]
        raise ProgramError(f"{counted(len(of), 'rule')} of the layout cannot be applied here:", of)
    is_graph = planned.is_split_by_rows or (planned.mode == "placed" and not planned.has_pipelines)
    if not is_graph and not is_explicit(planned.mesh):
        return
    where = "a mesh with explicit axes" if is_explicit(planned.mesh) else f"a graph in mode {planned.mode}"
    what = f"products in FP8 are for steps on automatic axes that are no graph; this is {where}"
    of = [Problem("not here", rule.written, what, "leave the rule out") for rule in _rules(planned)]
    raise ProgramError(f"{counted(len(of), 'rule')} of the layout cannot be applied here:", of)


def _rules(planned: Planned) -> list[Rule]:
    return [rule for rule in planned.layout if isinstance(rule.placement, Fp8)]


@dataclass
class _Products:
    """The products of one trace.

    Attributes:
        planned: the program.
        rules: its rules for FP8.
        read: the leaves that products in FP8 read, each with the number of its rule.
        lines: the products, by where they are in the step.
        beyond: what multiplies such leaves and stays as it is, with its line, and the leaves.
        rows: of leaves with delayed scaling the scales, and zeros that take what occurs.
    """

    planned: Planned
    read: dict[str, int] = field(default_factory=dict)
    lines: Counter[tuple[int, int, str]] = field(default_factory=Counter)
    beyond: dict[tuple[str, str], frozenset[str]] = field(default_factory=dict)
    rows: dict[str, tuple[Any, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.rules = _rules(self.planned)
        self._num_runs = 0
        # XLA for TPUs would multiply in wide floats.
        self._knows_scaled_operands = self.planned.mesh.devices.flat[0].platform != "tpu"
        self.origins = {}
        for leaf in self.planned.plan.of_kind("state"):
            number = next((i for i, rule in enumerate(self.rules) if rule.matches(leaf.path, "state")), None)
            if number is not None and not is_optimizer(leaf.path):
                self.origins[leaf.path] = Origin(frozenset([leaf.path]), number)

    def runner(self, around: Callable[..., Any] | None) -> Callable[..., Any]:
        """Return what takes the gradients of sums in FP8, in the way of the passes around."""

        def run(gradient: Gradient, sums: Sums, params: Any, samples: Any) -> tuple[Any, Any, Any]:
            root = root_of(params, self.planned.plan)

            @functools.wraps(sums)
            def in_fp8(*args: Any) -> Any:
                paths = [under(root, path) for path, _ in flatten_paths(args[0])[0]]
                origins = [*map(self.origins.get, paths), *[None] * (len(jax.tree.leaves(args)) - len(paths))]
                jaxpr, results = jax.make_jaxpr(sums, return_shape=True)(*args)
                return jax.tree.unflatten(jax.tree.structure(results), self._run(jaxpr, jax.tree.leaves(args), origins))

            taken = gradient if around is None else functools.partial(around, gradient)
            history = current_history.get()
            if history is None or not self.planned.layout.keeps_scales:
                return taken(in_fp8, params, samples)
            return self._with_scales(history, root, taken, in_fp8, params, samples)

        return run

    def _with_scales(
        self, history: History, root: str, taken: Callable[..., Any], sums: Sums, params: Any, samples: Any
    ) -> tuple[Any, Any, Any]:
        """Take gradients with the scales of a history, and write into it what the next step is given."""
        paths, scales = delayed_leaves(params, root, self.planned.layout), scales_of(history.values)

        @functools.wraps(sums)
        def with_scales(both: Beside, *args: Any) -> Any:
            self.rows = {path: (scales[row], both.array[row]) for row, path in enumerate(paths)}
            return sums(both.params, *args)

        zeros = jnp.zeros((*scales.shape, len(SCALES)), jnp.float32)
        grads, totals, carried = taken(with_scales, Beside.of(params, zeros), samples)
        # Gradients of each example by itself have a dim in front.
        tallies = jnp.sum(grads.array.reshape(-1, *zeros.shape), axis=0)
        history.values = after(history.values, tallies)
        return grads.params, totals, carried

    def run_step(self, step: Step, state: Any, batch: Any) -> Any:
        """Run any other step, in FP8 in what it differentiates, or else as a whole."""
        jaxpr, results, differentiated = traced_gradients(step, state, batch)
        paths = [path for path, _ in flatten_paths(state)[0]]
        origins = [*map(self.origins.get, paths), *[None] * len(jax.tree.leaves(batch))]
        self._read_scales(state, is_trained=bool(differentiated))
        if not differentiated:
            values = self._run(jaxpr, jax.tree.leaves((state, batch)), origins)
            return jax.tree.unflatten(jax.tree.structure(results), values)
        origins_of = of_arguments(differentiated, ORIGINS.named(jaxpr, origins))
        number = iter(range(len(differentiated)))

        def change(function: Callable[..., Any], *primals: Any) -> Callable[..., Any]:
            jaxpr, structure = traced_function(function, primals)
            within = origins_of[next(number)]

            def run(*args: Any) -> Any:
                return jax.tree.unflatten(structure, self._run(jaxpr, jax.tree.leaves(args), within))

            return run

        with intercept_vjp(change, with_arguments=True):
            return step(state, batch)

    def _read_scales(self, state: Any, *, is_trained: bool) -> None:
        """Read the scales in a state, for a step that writes none."""
        if not self.planned.layout.keeps_scales:
            return
        known = histories(state, self.planned.layout)
        if known is None or is_trained:
            raise no_place(self.planned.layout)
        paths, history = known
        zeros = jnp.zeros((3, len(SCALES)), jnp.float32)
        self.rows = {path: (scales, zeros) for path, scales in zip(paths, scales_of(history), strict=True)}

    def _run(self, jaxpr: Any, values: Sequence[Any], origins: Origins) -> list[Any]:
        self._num_runs += 1
        for eqn, what, paths in out_of_reach(jaxpr, origins):
            at = (what, source_line(eqn))
            self.beyond[at] = self.beyond.get(at, frozenset()) | paths
        # In a loop over layers, each microbatch would round all parameters again.
        several = self.planned.has_pipelines or self.planned.traced.num_microbatches > 1
        round_stack = self._rounded_stack if several and self.planned.mode != "placed" else None
        return run_with_products(jaxpr, values, origins, self._multiply, round_stack)

    def _rounded_stack(self, stack: Any, of_slice: Origin) -> Rounded | None:
        rule: Any = self.rules[of_slice.rule].placement
        if rule.scaling == "blockwise":
            return None
        for dtype in of_slice.casts:
            stack = stack.astype(dtype)
        scale = self._row(min(of_slice.paths), PARAMETER)[0] if rule.scaling == "delayed" else None
        return jax.vmap(lambda x: Rounded.of(x, rule.forward, scale))(jax.lax.stop_gradient(stack))

    def _multiply(
        self,
        eqn: Any,
        values: list[Any],
        origins: Origins,
        shared: dict[Any, Any],
        surroundings: Surroundings,
    ) -> list[Any]:
        own = [one for one in origins if one is not None]
        number = min(one.rule for one in own)
        self.read |= {path: number for one in own for path in one.paths}
        self.lines[self._num_runs, number, source_line(eqn)] += 1
        rule: Any = self.rules[number].placement
        # Of two parameters, one under another rule was rounded as that one says.
        pairs = zip(surroundings.rounded, origins, strict=True)
        rounded: list[Rounded | None] = [made if one and one.rule == number else None for made, one in pairs]
        are_parameters = (origins[0] is not None, origins[1] is not None)
        left, right = values
        product = Fp8Product.of(
            eqn,
            are_parameters,
            rule,
            # XLA merges a product in FP8 with the gelu behind it, by its tanh, and then refuses its own result.
            is_apart=surroundings.is_before_tanh,
            constraints=surroundings.constraints if self._knows_scaled_operands else None,
            is_recomputed=surroundings.is_recomputed,
            at_source=at_source_of(eqn),
        )
        if rule.scaling == "delayed":
            scales, zeros = self._scales_of(eqn, origins, number, shared)
            return [product.delayed(left, right, scales, zeros, rounded)]

        def narrow(place: int, form: Float8) -> Narrow:
            if (before := rounded[place]) is not None:
                return before.narrow
            key = (eqn.invars[place], form)
            if key not in shared:
                shared[key] = narrowed(jax.lax.stop_gradient(values[place]), form)
            return shared[key]

        return [product(left, right, narrow)]

    def _scales_of(self, eqn: Any, origins: Origins, number: int, shared: dict[Any, Any]) -> tuple[list[Any], Any]:
        """Return the scales of the operands of a product and of its gradient, and the zeros that take what occurs.

        What several leaves are multiplied with has one scale, in the row of the first: so it is rounded once.
        """
        place, one = next((place, one) for place, one in enumerate(origins) if one is not None and one.rule == number)
        path = min(one.paths)
        of_other = shared.setdefault((eqn.invars[1 - place], "history"), path)
        rows = [(of_other, OTHER), (path, PARAMETER)]
        rows = [*(rows if place == 1 else rows[::-1]), (path, GRADIENT)]
        scales, zeros = zip(*(self._row(path, row) for path, row in rows), strict=True)
        return list(scales), jnp.stack(zeros)

    def _row(self, path: str, row: int) -> tuple[Any, Any]:
        """Return a scale of a leaf with delayed scaling, and the zeros that take what occurs."""
        if path not in self.rows:
            raise no_place(self.planned.layout)
        scales, zeros = self.rows[path]
        return scales[row], zeros[row]

    def check(self) -> None:
        """Raise if a rule has no product."""
        of = []
        for number, rule in enumerate(self.rules):
            if rule.optional or number in self.read.values():
                continue
            paths = [path for path, origin in self.origins.items() if origin.rule == number]
            what = f"no product of this step reads {listed(paths) if paths else 'what it names'}"
            beyond = [
                f"{line} multiplies it in {kind}" for (kind, line), taken in self.beyond.items() if taken & {*paths}
            ]
            if beyond:
                what += f" where it can be changed; {listed(beyond)}"
            fix = (
                'name what is multiplied by @, jnp.einsum or a layer, such as ("**.kernel", outlay.layout.fp8())'
                "\nor delete the rule, or allow it to match nothing with outlay.Rule(..., optional=True)"
            )
            of.append(Problem("no product", rule.written, what, fix))
        if of:
            raise ProgramError(f"{counted(len(of), 'rule')} of the layout changes no product:", of)

    def in_words(self) -> str:
        """Say how many products are in FP8, by rule, and which leaves are not multiplied so."""
        lines = []
        for number, rule in enumerate(self.rules):
            # A step may run what it differentiates several times, for shapes too: one of them counts.
            runs = Counter[int]()
            for (run, of, _), num in self.lines.items():
                runs[run] += num if of == number else 0
            paths = [path for path, of in self.read.items() if of == number]
            if paths:
                how = str(rule.placement).removeprefix("products ")
                num = counted(max(runs.values()), "product")
                lines.append(f"{num} of {counted(len(paths), 'leaf', 'leaves')} {how}")
            left = [path for path, one in self.origins.items() if one.rule == number and path not in self.read]
            if left and paths:
                lines.append(f"not in a product, so as they were: {listed(left)}")
        lines += [f"as it was, in {what}: {line}" for what, line in self.beyond]
        return "\n".join(lines)
