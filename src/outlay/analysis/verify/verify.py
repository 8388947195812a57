"""`outlay.verify`: check whether a program computes what one device computes, array by array."""

from __future__ import annotations

import dataclasses
import functools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp
import numpy as np

from outlay.analysis.verify.batches import (
    KINDS,
    MIXED,
    all_samples_are_alike,
    in_float64,
    made_up_words,
    make_up,
    more,
    perturbed,
    shifted,
    take,
)
from outlay.analysis.verify.causes import Causes, parts_that_differ
from outlay.analysis.verify.compare import Pair, Standard, compare
from outlay.analysis.verify.dependence import BATCH, DRAWN, Dependence, Marks
from outlay.analysis.verify.host import by_path, default_kind, is_key, to_host
from outlay.analysis.verify.replay import DRAWN_BITS, draws_until
from outlay.analysis.verify.runs import Result, Variant, as_planned, one_device, other_mode
from outlay.analysis.verify.verification import LeafCheck, Verification
from outlay.arrays.check_arrays import check_same_leaves
from outlay.core.error_types import ProgramError
from outlay.core.suggest import did_you_mean
from outlay.program.program import Program

Against = Literal["one-device", "auto", "manual"]

NUM_PERTURBED = 4
"""Each step gives the sign of a number that is only rounding, such as Adam multiplies, another chance to flip."""

NUM_FURTHER = 10
"""Further steps compared in float64 alone; the last two from the state of another key, in which nothing is zero."""

# A large step takes only the two from another key, in which nothing is zero.
_NUM_FURTHER_OF_LARGE, _LARGE = 2, 2**24

_DRAWN = (
    "each device draws its own random numbers, by its number (axis_index), and with equal numbers one device "
    "computes the same: that is right if any random numbers will do, but not if one device's are meant. To prove it, "
    "key them by sample: jax.vmap(jax.random.fold_in, (None, 0))(key, numbers of the samples in the global batch)"
)
_DRAWN_UNTIL = (
    "each device draws its own random numbers, by its number (axis_index), until one is accepted, so that nothing can "
    "be said about equal numbers: key them by sample, or draw in a way that needs no loop"
)


def verify(
    program: Program,
    steps: int = 3,
    against: Against = "one-device",
    *,
    batches: Any = None,
    key: Any = None,
    tolerance: float | None = None,
) -> Verification:
    """Run a program and a reference on the same numbers, and compare everything that they compute.

    It compares the outputs, the new state and, for steps from `outlay.train_step`, the gradients (of the sum over the
    batch). Each side runs in its own dtypes, and is replayed in float64. In float64 both must agree in what the step
    changed, so that a fault shows at any learning rate and in any dtype. In its own dtypes the program must be as near
    to that as rounding allows, however badly the reference rounds. Arrays that should be equal on several devices must
    be so bit for bit. Both start each step from the reference's state, so that rounding does not add up. Further steps,
    with other batches and from another key, are compared in float64 alone, for what the first ones cannot show. For a
    graph loop in mode manual or placed no rounding is allowed: its parts compute the same bits wherever they run.

    The answer is `same`, `different` or `unknown`: unknown if a fault could hide, as behind NaN on both sides, or
    gradients that are all zero. If something differs, the usual mistakes are tried on one device, and those that the
    numbers confirm are named. The proof makes its own state, and leaves the program as it was.

    Args:
        program: what to check.
        steps: how many steps.
        against: `one-device` runs the step on one device of the mesh; `auto` and `manual` run it under the same layout
            in that mode.
        batches: one batch per step, as an iterable or as `batches[step]`, such as a recipe's data. Without them,
            batches of the planned shapes are made up: floats normal, or positive if that gives NaN; integers random,
            below the size of what they index; weights between 0.5 and 1.5.
        key: the PRNG key of the initial state; `jax.random.key(0)` if None.
        tolerance: by how much of its largest entry, or of its largest update, an array may differ, in float64 and in
            its own dtype. If None, 1e-6 in float64, and in its own dtype a share that follows the step's dtypes.

    Returns:
        The answer for every array. Its `raise_if_different()` raises unless the answer is `same`.

    Raises:
        LayoutError: a batch does not have the planned shapes.
        ProgramError: the step cannot run in the reference's mode, there are too few batches, or an argument has the
            wrong type.

    Example:
        >>> def step(state, batch):
        ...     return state - batch.mean(), {"mean": batch.mean()}
        >>> program = outlay.program(
        ...     step, lambda key: jnp.ones(8), np.ones((16, 2), np.float32),
        ...     layout=outlay.fsdp(min_size=8) + outlay.data_parallel(), mesh=outlay.mesh(data=8))
        >>> outlay.verify(program).verdict
        'same'
    """
    _check_arguments(program, steps, against, tolerance)
    proof = _Proof(program, operator.index(steps), against, tolerance)
    return proof.of(proof.begin(key), batches)


@dataclass
class _Proof:
    program: Program
    steps: int
    against: Against
    tolerance: float | None
    checks: list[LeafCheck] = field(default_factory=list)
    causes: list[str] = field(default_factory=list)
    not_replayed: str = ""
    further: list[LeafCheck] = field(default_factory=list)
    num_further: int = 0

    def __post_init__(self) -> None:
        self.run, self.planned = as_planned(self.program)
        against = self.against
        self.reference = one_device(self.program) if against == "one-device" else other_mode(self.program, against)
        self.exact = self.program.is_exact
        self.marks: Mapping[Any, Marks] = {}
        self.sizes: Mapping[int, int] | None = None
        self.coarsest: Any = np.float32
        if not self.program.is_graph:
            self._look()

    def _look(self) -> None:
        """Learn from the trace what depends on what, and how coarse the step's floats are."""
        traced, info = self.reference.traced()
        depends = Dependence.of(traced, len(jax.tree.leaves(self.program.state_shapes)))
        new_state, outputs, grads = jax.tree.unflatten(jax.tree.structure(info), depends.results)
        marks: Any = Result(new_state, outputs, by_path(grads)).leaves
        self.marks, self.sizes = marks, depends.sizes
        self.coarsest = max(depends.dtypes, key=lambda dtype: float(jnp.finfo(dtype).eps), default=np.float32)

    def begin(self, key: Any) -> Any:
        """Return the state that both start from, on the host."""
        self.key = default_kind(key)
        return self.program.crop(to_host(self.program.init(self.key)))

    def of(self, state: Any, batches: Any) -> Verification:
        """Return the proof from a state and batches, or from made-up ones."""
        if batches is None:
            numbers, words = self._made_up(state)
        else:
            numbers, words = take(batches, self.steps), "given"
            for batch in numbers:
                check_same_leaves(batch, self.program.plan.of_kind("batch"), "this program", root="batch")
        for number, batch in enumerate(map(to_host, numbers), start=1):
            state = self._step(number, state, batch)
        if not self.program.is_graph and not any(check.fault for check in self.checks):
            self._go_on(state, batches, numbers)
        where = f"mode {self.program.mode} on {self.program.plan.mesh}"
        with_ = "one device" if self.against == "one-device" else f"mode {self.against}"
        doubts = tuple(self._doubts(numbers))
        self._settle()
        checks, causes, replayed = tuple(self.checks), tuple(self.causes), self._replayed_words()
        return Verification(where, with_, self.steps, words, checks, causes, doubts, replayed, self.num_further)

    def _step(self, number: int, state: Any, batch: Any) -> Any:
        right = self.reference.run(state, batch)
        got = self.run(state, batch)
        own = Pair(got, right, self._perturbed(self.reference.run, state, batch))
        precise = self._precise(state, batch)
        checks = self._compared(number, state, own, precise)
        if any(check.verdict == "different" for check in checks) and self.against == "one-device":
            checks = self._explained(checks, number, state, batch, got, precise)
        self.checks += checks
        # A program that does not donate only reads its state, and returns none (decision 41).
        return right.state if self.program.donate else state

    def _go_on(self, state: Any, batches: Any, numbers: Sequence[Any]) -> None:
        """Compare further steps in float64, until one differs."""
        shapes = (self.program.state_shapes, self.program.batch_shapes)
        num = NUM_FURTHER if _num_bytes(shapes) <= _LARGE else _NUM_FURTHER_OF_LARGE
        if batches is None:
            batch_of = make_up(self.program.batch_shapes, num, self.sizes, MIXED, seed=1)
        else:
            batch_of = more(batches, numbers, num)
        for number, batch in enumerate(map(to_host, batch_of), start=self.steps + 1):
            if number == self.steps + num - 1:
                state = shifted(self.begin(jax.random.fold_in(self.key, 1)))
            precise = self._precise(state, batch)
            if precise is None:
                return
            # Behind NaN nothing shows, and batches that are made up may give some.
            if not self._is_finite(precise.right, state):
                continue
            self.num_further += 1
            checks = self._compared(number, state, precise, precise)
            if any(check.fault for check in checks) and self.against == "one-device":
                checks = self._explained(checks, number, state, batch, precise.got, precise)
            if any(check.fault for check in checks):
                # Those that passed would bury the steps that were asked for.
                self.checks += [check for check in checks if check.fault]
                return
            self.further += checks
            state = precise.right.state if self.program.donate else state

    def _settle(self) -> None:
        """Drop doubts about arrays that further steps showed to be the same, and record what these steps changed."""
        same = {(c.kind, c.path) for c in self.further if c.ok and c.moved}

        def settled(check: LeafCheck) -> LeafCheck:
            if (check.kind, check.path) not in same:
                return check
            if check.is_settled_by_others:
                check = dataclasses.replace(check, doubt="", note="shown by further steps")
            return dataclasses.replace(check, moved=True)

        self.checks = [settled(check) for check in self.checks]

    def _compared(self, number: int, state: Any, own: Pair, precise: Pair | None) -> list[LeafCheck]:
        standard = Standard(
            exact=self.exact,
            share=self.tolerance,
            coarsest=self.coarsest,
            rounded=frozenset(self.planned.rounded | self.reference.rounded) if precise else frozenset(),
            marks=self.marks,
        )
        return list(compare(number, state, own, precise, self.program.plan.mesh.axis_sizes, standard))

    def _explained(
        self, checks: list[LeafCheck], number: int, state: Any, batch: Any, got: Result, precise: Pair | None
    ) -> list[LeafCheck]:
        """Return the checks of a step that differs, and what the numbers say about it."""
        if self.program.is_graph:
            if not self.causes:
                self.causes += parts_that_differ(self.program, state, batch)
            return checks
        if precise is None:
            return checks
        variants = (self.planned, self.reference)
        drawn = {
            (c.kind, c.path): c
            for c in checks
            if c.fault and DRAWN in self.marks.get((c.kind, c.path), ()) and c.path not in got.differing
        }
        in_loops = bool(drawn) and draws_until(self.reference.traced()[0].jaxpr)
        doubt = _DRAWN_UNTIL if in_loops else _DRAWN
        if drawn and not in_loops:
            for bits in DRAWN_BITS:
                # With equal draws both must agree in all else; what does not is a fault (decision 43).
                alike = (self.planned.drawing(bits), self.reference.drawing(bits))
                pair = self._replays(alike, state, batch)
                wrong = {(c.kind, c.path) for c in self._compared(number, state, pair, pair) if c.fault}
                if wrong & drawn.keys():
                    drawn = {key: check for key, check in drawn.items() if key not in wrong}
                    variants, precise = alike, pair
        checks = [dataclasses.replace(c, fault="", doubt=doubt) if (c.kind, c.path) in drawn else c for c in checks]
        failed = [check for check in checks if check.fault]
        if failed and not self.causes:
            results = (precise.got, precise.right)
            self.causes += Causes(self.program, variants, state, batch, results, failed, got.copies).named()
        return checks

    def _precise(self, state: Any, batch: Any) -> Pair | None:
        """Replay both in float64; None if that is impossible."""
        if self.program.is_graph or self.not_replayed:
            return None
        try:
            return self._replays((self.planned, self.reference), state, batch)
        except Exception as error:  # some operations and devices do not support float64
            self.not_replayed = f"not replayed in float64: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
            return None

    def _replays(self, variants: tuple[Variant, Variant], state: Any, batch: Any) -> Pair:
        got, right = (variant.replay(state, batch) for variant in variants)
        return Pair(got, right, self._perturbed(variants[1].replay, in_float64(state), in_float64(batch)))

    def _perturbed(self, run: Callable[[Any, Any], Result], state: Any, batch: Any) -> Callable[[], Sequence[Result]]:
        @functools.cache
        def results() -> Sequence[Result]:
            return [] if self.exact else [run(*perturbed((state, batch), seed)) for seed in range(NUM_PERTURBED)]

        return results

    def _made_up(self, state: Any) -> tuple[list[Any], str]:
        """Return batches from which the step computes numbers, and that change its state; and how they were made."""
        shapes = self.program.batch_shapes
        kinds = list(KINDS) if any(jnp.issubdtype(x.dtype, jnp.inexact) for x in jax.tree.leaves(shapes)) else []
        made = {}
        for kind in kinds[:1] if self.program.is_graph else kinds:
            made[kind] = make_up(shapes, self.steps, self.sizes, kind)
            if self.program.is_graph or self._is_of_use(state, to_host(made[kind][0])):
                return made[kind], made_up_words(shapes, self.sizes, kind)
        kind = next(iter(KINDS))
        return make_up(shapes, self.steps, self.sizes, kind), made_up_words(shapes, self.sizes, kind)

    def _is_of_use(self, state: Any, batch: Any) -> bool:
        result = self.reference.run(state, batch)
        old = by_path(state)
        trained = [key for key, marks in self.marks.items() if key[0] != "output" and BATCH in marks]
        moved = [np.any(result.leaves[key] != (old[key[1]] if key[0] == "state" else 0)) for key in trained]
        return self._is_finite(result, state) and (any(moved) or not moved)

    def _is_finite(self, result: Result, state: Any) -> bool:
        """Return whether everything that a step changed is finite."""
        old = by_path(state)
        return all(
            np.isfinite(leaf.astype(np.complex128)).all()
            for (kind, path), leaf in result.leaves.items()
            if jnp.issubdtype(leaf.dtype, jnp.inexact) and not (kind == "state" and np.array_equal(leaf, old[path]))
        )

    def _doubts(self, batches: Sequence[Any]) -> list[str]:
        """Return why nothing is known about the whole."""
        doubts = []
        if not self.checks:
            doubts.append("nothing was compared: the step returns neither state nor outputs; return what it computes")
        if not self.program.is_graph and all_samples_are_alike(batches, self.program.plan):
            doubts.append(
                "every sample of the batches is the same, so that one left out or counted twice would not show: "
                "give batches of different samples (batches=), or leave them out and have some made up"
            )
        trained = [c for c in self.checks if c.trains]
        shown = [c for c in self.checks if c.reads_batch and c.kind == "output"]
        if trained and not any(c.moved for c in trained):
            doubts.append(
                "all gradients or updates are zero, so that one counted twice would not show: give another initial "
                "state (key=, or an init that is not all zeros) or batches that it learns from"
            )
        elif not trained and shown and not any(c.moved for c in shown):
            doubts.append("all that the step computes is zero: give batches (batches=) that it computes something from")
        return doubts

    def _replayed_words(self) -> str:
        rounded = sorted(self.planned.rounded | self.reference.rounded)
        if rounded:
            return f"in the replay in float64 these keep their own dtypes: {', '.join(rounded)}"
        return self.not_replayed


def _num_bytes(shapes: Any) -> int:
    return sum(leaf.size * np.dtype(leaf.dtype).itemsize for leaf in jax.tree.leaves(shapes) if not is_key(leaf))


def _check_arguments(program: Program, steps: Any, against: str, tolerance: Any) -> None:
    if not isinstance(program, Program):
        raise ProgramError(
            f"outlay.verify takes a program, not a {type(program).__name__}\n"
            "  fix: outlay.verify(outlay.program(step, init, batch, layout=layout, mesh=mesh))"
        )
    if against not in get_args(Against):
        raise ProgramError(f"there is no reference {against!r}: {did_you_mean(str(against), get_args(Against))}")
    # `True` is an integer, too.
    if isinstance(steps, bool) or not isinstance(steps, int | np.integer) or operator.index(steps) < 1:
        given = f"steps is {type(steps).__name__}" if hasattr(steps, "shape") else f"steps={steps!r:.80}"
        raise ProgramError(
            f"{given}: a proof takes a whole number of steps, 1 or more\n"
            "  fix: steps=3; batches have a name of their own: outlay.verify(program, batches=[batch] * 3)"
        )
    is_share = isinstance(tolerance, int | float) and not isinstance(tolerance, bool) and 0 <= tolerance < 1
    if tolerance is not None and not (is_share and math.isfinite(tolerance)):
        raise ProgramError(
            f"tolerance={tolerance!r}: it must be a share of an array's largest entry, from 0 up to 1\n"
            "  fix: tolerance=1e-3, or leave it out for one that follows the step's dtypes"
        )
    if program.is_graph and against != "one-device":
        raise ProgramError(
            f"a graph loop in mode {program.mode} is laid out by its graph, which does not exist in mode {against}\n"
            '  fix: against="one-device"'
        )
    if against == program.mode:
        raise ProgramError(
            f"the program itself runs in mode {against}, so there is nothing to compare\n"
            f'  fix: against="one-device", or a program in the other mode'
        )
    if not all(device.process_index == jax.process_index() for device in program.mesh.devices.flat):
        raise ProgramError(
            f"{program.plan.mesh} spans several processes, and a proof reads all numbers in one\n"
            "  fix: verify the same program on simulated devices: outlay.simulate(n)"
        )
