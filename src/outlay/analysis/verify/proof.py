"""A proof: a program and its reference take the same steps from the same states, and every array is compared."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import jax
import jax.numpy as jnp
import numpy as np

from outlay.analysis.verify.batches import (
    KINDS,
    MIXED,
    in_float64,
    made_up_words,
    make_up,
    more,
    results_of_perturbed,
    shifted,
    take,
)
from outlay.analysis.verify.causes import Causes
from outlay.analysis.verify.compare import Pair, Standard, compare
from outlay.analysis.verify.dependence import BATCH, DRAWN, Dependence, Marks
from outlay.analysis.verify.doubts import DRAWN_BY_DEVICE, DRAWN_UNTIL, doubts_of
from outlay.analysis.verify.host import by_path, default_kind, is_finite, num_bytes, to_host
from outlay.analysis.verify.own_dtypes import OwnDtypes
from outlay.analysis.verify.parts import parts_that_differ
from outlay.analysis.verify.reference.plain_loop import LossesOnly, PlainLoop
from outlay.analysis.verify.replay import DRAWN_BITS, draws_until
from outlay.analysis.verify.runs import Leaves, Result, Variant
from outlay.analysis.verify.same_operations import are_same_operations
from outlay.analysis.verify.sides import OneDevice, as_planned, in_mode_of, own_leaves
from outlay.analysis.verify.stages import Stage
from outlay.analysis.verify.verification import LeafCheck, Verification
from outlay.arrays.check_arrays import check_same_leaves
from outlay.core.quantities import counted
from outlay.program.modes import Mode
from outlay.program.program import Program

Against = Literal["one-device", "auto", "manual"]

NUM_PERTURBED = 4
"""Each step gives the sign of a number that is only rounding, such as Adam multiplies, another chance to flip."""

NUM_FURTHER = 10
"""Further steps compared in float64 alone; the last two from the state of another key, in which nothing is zero."""

# A large step takes only the two from another key, in which nothing is zero.
_NUM_FURTHER_OF_LARGE, _LARGE = 2, 2**24

_NUM_FURTHER_ALONE = 4

_MIXES = 1e-9
"""By how much of the largest loss that of a sample may depend on the others; in float64 rounding is far below."""


class Proof:
    """Compares a program with its reference.

    Args:
        program: the program.
        steps: how many steps.
        against: the reference.
        tolerance: see `outlay.verify`.
        stage: is told what is done next.
    """

    def __init__(self, program: Program, steps: int, against: Against, tolerance: float | None, stage: Stage) -> None:
        self.program, self.steps, self.against, self.tolerance, self.stage = program, steps, against, tolerance, stage
        self.checks: list[LeafCheck] = []
        self.causes: list[str] = []
        self.further: list[LeafCheck] = []
        self.meant: list[str] = []
        self.not_replayed, self.num_further, self.cost = "", 0, ""
        self.run, self.planned = as_planned(program)
        self.one_device = OneDevice(program)
        self.exact, self.in_fp8 = program.is_exact, bool(program.fp8)
        self.marks: Mapping[Any, Marks] = {}
        self.sizes: Mapping[int, int] | None = None
        self.coarsest: Any = np.float32

    def of(self, key: Any, batches: Any) -> Verification:
        """Return the proof from the state of a key and from batches, or from made-up ones."""
        self.key = default_kind(key)
        state = self._initial_state()
        if not self.program.is_graph:
            self.stage("tracing the step")
            self._analyse_trace()
        if batches is None:
            numbers, words = self._made_up(state)
        else:
            numbers, words = take(batches, self.steps), "given"
            for batch in numbers:
                check_same_leaves(batch, self.program.plan.of_kind("batch"), "this program", root="batch")
        if not self._in_own_dtypes(state, batches, numbers):
            for number, batch in enumerate(map(to_host, numbers), start=1):
                self.stage(f"step {number} of {self.steps}, on {self._names()}")
                state = self._step(number, state, batch)
            if not self.program.is_graph and not any(check.fault for check in self.checks):
                self._go_on(state, batches, numbers)
        doubts = tuple(doubts_of(self.checks, numbers, None if self.program.is_graph else self.program.plan))
        self._settle()
        return Verification(
            f"mode {self.program.mode} on {self.program.plan.mesh}",
            "one device" if self.against == "one-device" else f"mode {self.against}",
            self.steps,
            words,
            tuple(self.checks),
            tuple(self.causes),
            doubts,
            self._replayed_words(),
            self.num_further,
            self._reference_words(),
        )

    def _names(self) -> str:
        other = "one device" if self.against == "one-device" else f"in mode {self.against}"
        return f"{self.program.plan.mesh} and {other}"

    def _initial_state(self) -> Leaves:
        """Return the state that both start from; the program must make the same."""
        self.program.check_memory()  # one device needs no less than the mesh, and would end the process
        if self.against != "one-device":
            self.stage("making the state under the layout")
            self.reference = in_mode_of(self.program, cast(Mode, self.against))
            return self._made_by_program(self.key)
        self.stage("making the state on one device")
        state = self.one_device.start(self.key)
        self.reference = self.one_device.variant
        if self._draws_alike_anywhere() and not self._has_the_same_init():
            self.stage("making the state under the layout")
            start = {path: np.zeros_like(leaf) for path, leaf in state.items()}
            pair = Pair(Result(self._made_by_program(self.key), {}, {}), Result(state, {}, {}))
            checks = compare(0, start, pair, None, self.program.plan.mesh.axis_sizes, Standard(exact=self.exact))
            self.checks += [check for check in checks if check.fault]
        return state

    def _has_the_same_init(self) -> bool:
        """Return whether the program's init consists of the same operations as that on one device."""
        traced = self.program.traced_init(self.key)
        return traced is not None and are_same_operations(traced, self.one_device.traced_init)

    def _made_by_program(self, key: Any) -> Leaves:
        made = by_path(self.program.crop(to_host(self.program.arrays_of(self.program.init(key)))))
        own = own_leaves(self.program)
        return {path: leaf for path, leaf in made.items() if path not in own}

    def _draws_alike_anywhere(self) -> bool:
        """Return whether JAX's keys draw the same numbers on any devices; XLA's own generator does not promise that."""
        return (
            str(jax.random.key_impl(self.key)).startswith("threefry")
            and jax.config.values["jax_threefry_partitionable"]
        )

    def _analyse_trace(self) -> None:
        """Learn from the trace what depends on what, and how coarse the step's floats are."""
        traced = self.reference.traced()
        depends = Dependence.of(traced, len(traced.jaxpr.invars) - len(jax.tree.leaves(self.program.batch_shapes)))
        places, results = self.reference.places, iter(depends.results)
        marks = [[next(results) for _ in range(1 + max((n for _, n in kind), default=-1))] for kind in places]
        by_kind: Any = [{path: of[n] for path, n in kind} for kind, of in zip(places, marks, strict=True)]
        named: Any = Result(*by_kind)
        self.marks, self.sizes = named.leaves, depends.sizes
        self.coarsest = max(depends.dtypes, key=lambda dtype: float(jnp.finfo(dtype).eps), default=np.float32)

    def _in_own_dtypes(self, state: Leaves, batches: Any, numbers: Sequence[Any]) -> bool:
        """Return whether the proof is done without float64, and record it if so."""
        if self.program.is_graph or self.against != "one-device" or self.checks or self.tolerance is not None:
            return False
        if not are_same_operations(self.program.compiled_trace() or self.planned.traced(), self.reference.traced()):
            return False
        alone = OwnDtypes(self.reference.run, self.run, self._alone)
        self.stage(f"{counted(self.steps, 'step')} on {self._names()}")
        further = [*enumerate(map(to_host, self._further_batches(batches, numbers)), start=self.steps + 1)]
        # What both mean is the same in every step, so a few show how each was compiled.
        further = further[-_NUM_FURTHER_ALONE:]
        if not alone.compare_steps(state, [*enumerate(map(to_host, numbers), start=1)], donate=self.program.donate):
            return False
        self.stage(f"{counted(len(further), 'further step')} on {self._names()}")
        if not alone.compare_further(further[:-2], further[-2:], self._other_state, donate=self.program.donate):
            return False
        self.checks, self.further, self.num_further = alone.checks, alone.further, alone.num_further
        self.not_replayed = (
            "not replayed in float64: the program consists of the same operations as the step on one device, and every "
            "array changed by more than rounding hides"
        )
        return True

    def _step(self, number: int, state: Leaves, batch: Any) -> Leaves:
        checks, right, got, precise = self._both(number, state, batch)
        if any(check.fault for check in checks) and self._takes_microbatches(state, batch):
            checks, right, got, precise = self._both(number, state, batch)
        if any(check.verdict == "different" for check in checks) and self.against == "one-device":
            checks = self._explained(checks, number, state, batch, got, precise)
        self.checks += checks
        # A program that does not donate only reads its state, and returns none (decision 41).
        return right.state if self.program.donate else state

    def _both(self, number: int, state: Leaves, batch: Any) -> tuple[list[LeafCheck], Result, Result, Pair | None]:
        right = self.reference.run(state, batch)
        got = self.run(state, batch)
        own = self._own(got, right, state, batch)
        precise = self._precise(state, batch)
        if self.in_fp8 and not self.cost:
            from outlay.analysis.verify.fp8_rounding import cost_in_words

            self.cost = cost_in_words(got, right, state)
        return self._compared(number, state, own, precise), right, got, precise

    def _takes_microbatches(self, state: Leaves, batch: Any) -> bool:
        """Return whether the loss sees microbatches on purpose, as documented, and take them in the reference too.

        That is so for a loss whose samples depend on one another, or with a model state; not because a step says so.
        """
        losses = [one for one in self.one_device.step.losses if one.accumulate > 1]
        if self.against != "one-device" or not losses or self.meant:
            return False
        if not any(one.model_state for one in losses) and not self._mixes_samples(losses[0].accumulate, state, batch):
            return False
        num = losses[0].accumulate
        self.one_device = OneDevice(self.program, PlainLoop(in_microbatches=True))
        self.one_device.start(self.key)
        self.reference = self.one_device.variant
        self.meant.append(
            f"the loss sees one of {num} microbatches at a time on both sides (accumulate={num}), since its samples "
            "depend on one another or on the model state: over the whole batch it gives other numbers"
        )
        return True

    def _mixes_samples(self, num: int, state: Leaves, batch: Any) -> bool:
        """Return whether the losses of samples in a microbatch are others than in the whole batch."""
        try:
            each = []
            for num_microbatches in (1, num):
                side = OneDevice(self.program, LossesOnly(num_microbatches))
                side.start(self.key)
                each.append(side.variant.replay(state, batch).outputs)
            return any(
                not np.allclose(each[1][path], each[0][path], rtol=0, atol=_MIXES * np.abs(each[0][path]).max())
                for path in each[0]
            )
        except Exception:  # a step around the loss may not take what this returns; then nothing is known
            return False

    def _further_batches(self, batches: Any, numbers: Sequence[Any]) -> Sequence[Any]:
        shapes = (self.program.state_shapes, self.program.batch_shapes)
        num = NUM_FURTHER if num_bytes(shapes) <= _LARGE else _NUM_FURTHER_OF_LARGE
        if batches is None:
            return make_up(self.program.batch_shapes, num, self.sizes, MIXED, seed=1)
        return more(batches, numbers, num)

    def _other_state(self) -> Leaves:
        """Return the state of another key in which nothing is zero."""
        # Any other key will do; one of these bits needs no compiled program.
        key = default_kind(np.asarray(jax.random.key_data(self.key)) + np.uint32(1))
        made = self.one_device.start(key) if self.against == "one-device" else self._made_by_program(key)
        return shifted(made)

    def _go_on(self, state: Leaves, batches: Any, numbers: Sequence[Any]) -> None:
        """Compare further steps in float64, until one differs."""
        batch_of = self._further_batches(batches, numbers)
        self.stage(f"{counted(len(batch_of), 'further step')} in float64, on {self._names()}")
        for number, batch in enumerate(map(to_host, batch_of), start=self.steps + 1):
            if number == self.steps + len(batch_of) - 1:
                state = self._other_state()
            precise = self._precise(state, batch)
            if precise is None:
                return
            # Behind NaN nothing shows, and batches that are made up may give some.
            if not is_finite(precise.right.leaves, state):
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

    def _alone(self, number: int, state: Leaves, batch: Any, got: Result, right: Result) -> list[LeafCheck]:
        return self._compared(number, state, self._own(got, right, state, batch), None)

    def _compared(self, number: int, state: Leaves, own: Pair, precise: Pair | None) -> list[LeafCheck]:
        rounded = frozenset(self.planned.rounded | self.reference.rounded) if precise else frozenset[str]()
        standard = Standard(self.exact, self.tolerance, self.coarsest, rounded, self.in_fp8, self.marks)
        return list(compare(number, state, own, precise, self.program.plan.mesh.axis_sizes, standard))

    def _explained(
        self, checks: list[LeafCheck], number: int, state: Leaves, batch: Any, got: Result, precise: Pair | None
    ) -> list[LeafCheck]:
        """Return the checks of a step that differs, and what the numbers say about it."""
        self.stage(f"trying the usual mistakes, since step {number} differs")
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
        in_loops = bool(drawn) and draws_until(self.reference.traced().jaxpr)
        doubt = DRAWN_UNTIL if in_loops else DRAWN_BY_DEVICE
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

    def _precise(self, state: Leaves, batch: Any) -> Pair | None:
        """Replay both in float64; None if that is impossible."""
        if self.program.is_graph or self.not_replayed:
            return None
        try:
            return self._replays((self.planned, self.reference), state, batch)
        except Exception as error:  # some operations and devices do not support float64
            self.not_replayed = f"not replayed in float64: {type(error).__name__}: {str(error).splitlines()[0][:200]}"
            return None

    def _replays(self, variants: tuple[Variant, Variant], state: Leaves, batch: Any) -> Pair:
        got, right = (variant.replay(state, batch) for variant in variants)
        return Pair(got, right, self._perturbed(variants[1].replay, in_float64(state), in_float64(batch)))

    def _own(self, got: Result, right: Result, state: Leaves, batch: Any) -> Pair:
        least = 2**-4 if self.in_fp8 else 0.0  # what e4m3 rounds a number by
        return Pair(got, right, self._perturbed(self.reference.run, state, batch, least))

    def _perturbed(self, run: Any, *inputs: Any) -> Any:
        return results_of_perturbed(run, *inputs, num=0 if self.exact else NUM_PERTURBED)

    def _made_up(self, state: Leaves) -> tuple[list[Any], str]:
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

    def _is_of_use(self, state: Leaves, batch: Any) -> bool:
        result = self.reference.run(state, batch)
        trained = [key for key, marks in self.marks.items() if key[0] != "output" and BATCH in marks]
        starts = {key: state[key[1]] if key[0] == "state" else 0 for key in trained if key in result.leaves}
        moved = [np.any(result.leaves[key] != start) for key, start in starts.items()]
        return is_finite(result.leaves, state) and (any(moved) or not moved)

    def _replayed_words(self) -> str:
        rounded = sorted(self.planned.rounded | self.reference.rounded)
        if rounded:
            return f"in the replay in float64 these keep their own dtypes: {', '.join(rounded)}"
        return self.not_replayed

    def _reference_words(self) -> str:
        if self.against != "one-device":
            return ""
        losses = self.one_device.step.losses
        if not losses:
            return "one device ran the step as it was written, under jax.jit, from the state of the init as written"
        words = "one device took the loss and the optimizer as they were written: jax.value_and_grad of the mean "
        words += "over the whole batch, then the optimizer's update"
        if "random_bits" in str(self.reference.traced()):
            words += "; the key of a sample is jax.random.fold_in twice, by the step and by its place in the batch"
        return "; ".join(filter(None, [words, *self.meant, self.cost]))
