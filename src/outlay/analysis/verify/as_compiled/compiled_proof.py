"""Prove a program as it was compiled for hardware that is not there: compute the compiler's text here, and compare.

The judge takes nothing from the program but its text: the reference is the user's own step on one device of this
machine, and the text is computed operation by operation, in another process.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding

from outlay.analysis.attribution.leaves import each_sharding
from outlay.analysis.hlo.execute.as_function import num_left_out, unknown_operations
from outlay.analysis.hlo.execute.operation import Products
from outlay.analysis.hlo.hlo_module import HloModule
from outlay.analysis.hlo.parse import parse_hlo
from outlay.analysis.verify.as_compiled.closeness import (
    NUM_MOVED,
    Results,
    close,
    from_same_start,
    longest_sum,
    moved,
)
from outlay.analysis.verify.as_compiled.in_float64 import can_settle, scaled, settled, wide_floats
from outlay.analysis.verify.as_compiled.kernels import has_kernels, kernel_texts
from outlay.analysis.verify.as_compiled.own_rounding import coarsest_allowed
from outlay.analysis.verify.as_compiled.room_here import HOW_TO_SHRINK, why_no_room, why_no_room_for_a_step
from outlay.analysis.verify.as_compiled.run_compiled import Job, JudgeStoppedError, ProgramResults, run_apart
from outlay.analysis.verify.batches import KINDS, in_float64, made_up_words, make_up, take
from outlay.analysis.verify.dependence import Dependence
from outlay.analysis.verify.host import by_path, default_kind, to_host
from outlay.analysis.verify.runs import Leaves
from outlay.analysis.verify.sides import OneDevice, own_leaves
from outlay.analysis.verify.stages import Stage
from outlay.analysis.verify.static.stored_over import overwritten
from outlay.analysis.verify.verification import Kind, LeafCheck, Verification
from outlay.core.jax_compat import text_with_constants, without_compilation_cache
from outlay.core.jax_pallas import interpreted_on_cpus, kernels_in
from outlay.core.quantities import counted, listed
from outlay.program.compiler_faults import known_faults
from outlay.program.program import Program

DISABLED_PASSES = "xla_disable_hlo_passes"
_MAX_PLACES = 4
_FLOAT32 = np.dtype(np.float32)
_PRODUCTS: dict[str, Products] = {"gpu": "tf32", "cuda": "tf32", "tpu": "bfloat16"}


@dataclass(frozen=True)
class _Step:
    """A step of the user's on one device.

    Attributes:
        before: the state before it, by path.
        batch: its batch.
        right: what it computed.
        others: what it computed from moved numbers.
        precise: what it computed in float64; None if that was not asked for.
    """

    before: Leaves
    batch: Any
    right: Results
    others: list[Results]
    precise: Results | None = None


class CompiledProof:
    """Compares a program as compiled for its target with the user's step on one device of this machine.

    Args:
        program: the program; its devices need not be here.
        steps: how many steps, each from the state of one device.
        tolerance: the share of the largest update that may differ; None for what rounding is seen to do.
        stage: is told what is done next.
        seconds_for_passes: how long to look for the pass that makes a program wrong; 0 to leave that out.
    """

    def __init__(
        self,
        program: Program,
        steps: int,
        tolerance: float | None,
        stage: Stage,
        *,
        seconds_for_passes: float = 600.0,
    ) -> None:
        self.program, self.steps, self.tolerance, self.stage = program, steps, tolerance, stage
        self.seconds_for_passes = seconds_for_passes
        self.one_device = OneDevice(program, device=jax.local_devices(backend="cpu")[0])
        self.platform = program.mesh.devices.flat[0].platform

    def of(self, key: Any, batches: Any) -> Verification:
        """Return the proof from the state of a key and from batches, or from made-up ones."""
        if why := why_no_room(self.program, self.steps):
            return self._too_big(why)
        self.stage("compiling for the target")
        compiled = self.program.compiled
        if why := why_no_room_for_a_step(self.program, compiled):
            return self._too_big(why)
        module = parse_hlo(text_with_constants(compiled))
        with interpreted_on_cpus() if has_kernels(module) else contextlib.nullcontext():
            return self._of(compiled, module, key, batches)

    def _too_big(self, why: str) -> Verification:
        return self._verification("were not taken", (), doubts=(f"{why}; {HOW_TO_SHRINK}",))

    def _of(self, compiled: jax.stages.Compiled, module: HloModule, key: Any, batches: Any) -> Verification:
        self.stage("making the state on one device")
        state = self.one_device.start(default_kind(key))
        numbers, words = self._batches(batches)
        kernels = self._kernels(module)
        if unknown := unknown_operations(module, {name: parse_hlo(text) for name, text in kernels.items()}):
            names = listed([str(one) for one in unknown], 20)
            doubt = f"the compiled program has operations whose meaning is not known here: {names}"
            return self._verification(words, (), doubts=(doubt,))
        coarsest = coarsest_allowed(module, self.one_device.variant.traced, self.platform)
        steps = self._on_one_device(state, numbers, coarsest)
        self.stage(f"the compiled program on {self.program.mesh.size} simulated devices, in another process")
        try:
            answer = run_apart(self._job(compiled, steps))
            checks = self._checked(answer, steps, longest_sum(module))
            if any(check.fault for check in checks) and coarsest.itemsize < _FLOAT32.itemsize:
                steps = [self._with_precise(step) for step in steps]
                checks = self._checked(answer, steps, longest_sum(module))
            wrong: set[tuple[Kind, str]] = {(check.kind, check.path) for check in checks if check.fault}
            if not wrong and any(map(can_settle, checks)):
                checks = settled(checks, *self._in_float64(compiled, steps[0]))
            places = self._places(compiled, module, steps[0], wrong) if wrong else []
            causes = (*places, *self._causes(steps, longest_sum(module))) if wrong else ()
            checks, stored_over = self._stored_over(module, checks)
        except JudgeStoppedError as error:
            doubt = f"the process that computes the compiled program ended without an answer ({error})"
            return self._verification(words, (), doubts=(doubt,))
        limits = (
            _judged_words(module, kernels, self.program.mesh.size),
            self._precision_words(answer, steps[0].before),
            *(f"compiler options: {note}" for note in self.program.compiler_options.notes),
        )
        causes = causes or stored_over
        return self._verification(words, checks, causes=causes, limits=tuple(filter(None, limits)))

    def _stored_over(
        self, module: HloModule, checks: tuple[LeafCheck, ...]
    ) -> tuple[tuple[LeafCheck, ...], tuple[str, ...]]:
        """Return the checks with the results as faults that are stored over arguments: values alone do not show it."""
        by_key = {self._keys[one.result]: one for one in overwritten(module) if one.result < len(self._keys)}
        if not by_key:
            return checks, ()
        places = [f"memory of another: {one.in_words(module)}" for one in by_key.values()]
        faults = {key: one.words for key, one in by_key.items()}
        marked = (replace(one, fault=one.fault or faults.get((one.kind, one.path), "")) for one in checks)
        return tuple(marked), tuple(places[:_MAX_PLACES])

    def _on_one_device(self, state: Leaves, numbers: list[Any], coarsest: np.dtype) -> list[_Step]:
        """Take the steps as the user wrote them, and again from numbers that are moved by what the program rounds."""
        eps = float(jnp.finfo(coarsest).eps) / 2
        run, steps = self.one_device.variant.run, []
        for number, batch in enumerate(numbers, start=1):
            self.stage(f"step {number} of {self.steps} on one device")
            right = run(state, batch)
            others = []
            for seed in range(NUM_MOVED):
                start = moved(state, eps, seed)
                others.append(from_same_start(run(start, moved(batch, eps, seed)).leaves, state, start))
            steps.append(_Step(state, batch, right.leaves, others))
            state = right.state if self.program.donate else state
        return steps

    def _with_precise(self, step: _Step) -> _Step:
        """Add what one device computes in float64."""
        self.stage("the step on one device in float64")
        try:
            precise = self.one_device.variant.replay(in_float64(step.before), in_float64(step.batch)).leaves
        except Exception:  # a kernel of the user's may know no float64: then nothing more is allowed for
            return step
        return replace(step, precise=precise)

    def _in_float64(self, compiled: jax.stages.Compiled, first: _Step) -> tuple[Results, Results, Leaves]:
        """Return what the program and one device compute in float64, and from what; nothing where one cannot.

        It takes as long again, and adds to an answer that is known already: so it may fail.
        """
        right = first.precise or self._with_precise(first).precise
        if right is None:
            return {}, {}, {}
        self.stage(f"the compiled program in float64 on {self.program.mesh.size} simulated devices, in another process")
        start = replace(first, before=wide_floats(first.before), batch=wide_floats(first.batch))
        try:
            answer = run_apart(replace(self._job(compiled, [start]), is_wide=True))
        except JudgeStoppedError:
            return {}, {}, {}
        return self._named(answer.exact[0]), right, first.before

    def _checked(self, answer: ProgramResults, steps: list[_Step], num_added: int) -> tuple[LeafCheck, ...]:
        differing = frozenset(self._keys[at] for at in answer.differing)
        return tuple(
            check
            for number, (step, exact) in enumerate(zip(steps, answer.exact, strict=True), start=1)
            for check in close(
                number,
                step.before,
                self._named(exact),
                step.right,
                step.others,
                differing,
                num_added,
                self.tolerance,
                step.precise,
            )
        )

    def _places(
        self, compiled: jax.stages.Compiled, module: HloModule, first: _Step, wrong: set[tuple[Kind, str]]
    ) -> list[str]:
        """Say where in the text the fault is: what no right program has, or what only wrong results follow from."""
        self.stage("looking for the line")
        # Imported here: a program that is right needs none of it.
        from outlay.analysis.verify.as_compiled.only_wrong import only_in_wrong
        from outlay.analysis.verify.static.static_proof import of_text

        faults = [fault.in_words for fault in of_text(self.program, compiled, module).faults[:_MAX_PLACES]]
        numbers = [number for number, key in enumerate(self._keys) if key in wrong]
        if faults:
            return faults
        lines = only_in_wrong(module, numbers)[:_MAX_PLACES]
        factor = scaled(wrong, *self._in_float64(compiled, first)) if lines else ""
        return [f"{factor}; {line}" if factor else line for line in lines]

    def _causes(self, steps: list[_Step], num_added: int) -> tuple[str, ...]:
        """Compile again without each pass that is known to be wrong at times: is the program right then?"""
        options: dict[str, Any] = dict(self.program.compiler_options.values)
        given = [*filter(None, str(options.get(DISABLED_PASSES, "")).split(","))]
        causes = []
        for fault in known_faults():
            if fault.disabled_pass in given:
                continue
            self.stage(f"compiling without the pass {fault.disabled_pass}")
            passes = ",".join([*given, fault.disabled_pass])
            with without_compilation_cache(self.program.mesh.devices.flat[0]):
                compiled = self.program.lowered.compile({**options, DISABLED_PASSES: passes})
            if not any(check.fault for check in self._checked(run_apart(self._job(compiled, steps)), steps, num_added)):
                causes.append(
                    f"XLA's pass {fault.disabled_pass} ({fault.name}: {fault.what}); without it the program is "
                    f'right: compiler_options={{"{DISABLED_PASSES}": "{passes}"}}, or the preset, which leaves it out'
                )
        return tuple(causes) or self._blamed(steps, num_added, options, given)

    def _blamed(self, steps: list[_Step], num_added: int, options: dict[str, Any], given: list[str]) -> tuple[str, ...]:
        """Name the pass after which the program is wrong, and whether it is right without it."""
        if not self.seconds_for_passes:
            return ()
        # Imported here: a program that is right needs none of it.
        from outlay.analysis.verify.as_compiled.blamed_pass import after_each_pass, changed, first_wrong

        self.stage("compiling again, to keep the program after each pass")
        texts = after_each_pass(self.program.lowered, options, self.program.mesh.devices.flat[0])

        def is_right(text: str) -> bool | None:
            self.stage("computing the program as it was after a pass, to halve those that remain")
            if unknown_operations(parse_hlo(text)):
                return None
            try:
                answer = run_apart(self._job(self.program.compiled, steps[:1], text))
            except JudgeStoppedError:
                return None
            return not any(check.fault for check in self._checked(answer, steps[:1], num_added))

        blamed = first_wrong(texts, is_right, self.seconds_for_passes)
        if blamed is None:
            return ()
        axes = tuple((str(name), self.program.mesh.shape[name]) for name in self.program.mesh.axis_names)
        lines = changed(blamed, axes)[:_MAX_PLACES]
        words = f"{blamed.in_words}{': ' if lines else ''}{'; '.join(lines)}"
        if not blamed.name:
            return (words,)
        without = ",".join([*given, blamed.name])
        self.stage(f"compiling without the pass {blamed.name}")
        try:
            with without_compilation_cache(self.program.mesh.devices.flat[0]):
                compiled = self.program.lowered.compile({**options, DISABLED_PASSES: without})
            text = text_with_constants(compiled)
        except jax.errors.JaxRuntimeError:
            return (f"{words}; the compiler does not go without it",)
        if is_right(text):
            option = f'compiler_options={{"{DISABLED_PASSES}": "{without}"}}'
            return (f"{words}; without it the program is right: {option}",)
        return (f"{words}; it is not right without it, either",)

    def _verification(
        self,
        words: str,
        checks: tuple[LeafCheck, ...],
        *,
        causes: tuple[str, ...] = (),
        doubts: tuple[str, ...] = (),
        limits: tuple[str, ...] = (),
    ) -> Verification:
        return Verification(
            f"mode {self.program.mode} on {self.program.plan.mesh} as compiled for it",
            "one device",
            self.steps,
            words,
            checks,
            causes=causes,
            doubts=doubts,
            limits=limits,
        )

    def _batches(self, batches: Any) -> tuple[list[Any], str]:
        if batches is not None:
            return [to_host(batch) for batch in take(batches, self.steps)], "given"
        traced = self.one_device.variant.traced()
        num_state = len(traced.jaxpr.invars) - len(jax.tree.leaves(self.program.batch_shapes))
        sizes = Dependence.of(traced, num_state).sizes
        kind = next(iter(KINDS))
        shapes = self.program.batch_shapes
        return [to_host(one) for one in make_up(shapes, self.steps, sizes, kind)], made_up_words(shapes, sizes, kind)

    def _job(self, compiled: jax.stages.Compiled, steps: list[_Step], text: str = "") -> Job:
        mesh = self.program.mesh
        at = each_sharding(compiled.args_info, compiled.input_shardings)
        paths, own = list(by_path(self.program.state_shapes)), own_leaves(self.program)
        calls = []
        for step in steps:
            known = {**step.before, **own}
            leaves = [*(known[path] for path in paths), *jax.tree.leaves(step.batch)]
            # JAX drops the arguments that a step does not use.
            calls.append([leaf for leaf, where in zip(leaves, at, strict=True) if where is not None])
        text = text or text_with_constants(compiled)
        return Job(
            text=text,
            axes=tuple((name, mesh.shape[name]) for name in mesh.axis_names),
            in_specs=tuple(_spec(where) for where in at if where is not None),
            out_specs=tuple(_spec(where) for where in jax.tree.leaves(compiled.output_shardings)),
            calls=tuple(calls),
            products=_PRODUCTS.get(self.platform, "float32"),
            kernels=self._kernels(parse_hlo(text)),
            device_ids=tuple(device.id for device in mesh.devices.flat),
        )

    def _kernels(self, module: HloModule) -> dict[str, str]:
        """Return what the calls of kernels compute; the step is traced again only for a program that has some."""
        if not has_kernels(module):
            return {}
        return kernel_texts(module, kernels_in(self.program.lowered_trace()))

    @property
    def _keys(self) -> list[tuple[Kind, str]]:
        """Return what each result of the compiled program is, by kind and path."""
        outputs = by_path(self.program.output_shapes, "outputs")
        state = by_path(self.program.state_shapes) if self.program.donate else {}
        return [*(("state", path) for path in state), *(("output", path) for path in outputs)]

    def _named(self, results: list[np.ndarray]) -> Results:
        return dict(zip(self._keys, results, strict=True))

    def _precision_words(self, answer: ProgramResults, before: Leaves) -> str:
        """Say by how much the target's products move the state, as a share of its update."""
        worst, where = 0.0, ""
        for key, exact in self._named(answer.exact[0]).items():
            rounded = self._named(answer.rounded)[key]
            if key[0] != "state" or not np.issubdtype(exact.dtype, np.floating):
                continue
            update = np.linalg.norm(exact.astype(np.float64) - before[key[1]].astype(np.float64))
            share = np.linalg.norm(rounded.astype(np.float64) - exact.astype(np.float64)) / update if update else 0.0
            if share > worst:
                worst, where = float(share), key[1]
        products = _PRODUCTS.get(self.platform, "float32")
        if not worst or products == "float32":
            return ""
        return (
            f"products were compared in float32; as this target rounds them ({products}), a step differs by up to "
            f"{worst:.1%} of the update ({where})"
        )


def _judged_words(module: HloModule, kernels: Mapping[str, str], num_devices: int) -> str:
    num, left_out = sum(1 for _ in module.instructions()), num_left_out(module)
    pallas = f"{counted(len(kernels), 'call')} of Pallas kernels by Pallas's own interpreter; " if kernels else ""
    calls = f"{counted(left_out, 'callback')} whose results nothing uses, such as jax.debug.print, left out; "
    return (
        f"all {num:,} operations of the compiled program were computed in the order of its text, over "
        f"{num_devices} simulated devices; {pallas}{calls if left_out else ''}what lies below the text was not judged: "
        "machine code, the kernels of libraries, the network, and races between streams"
    )


def _spec(sharding: Any) -> tuple[Any, ...]:
    return tuple(sharding.spec) if isinstance(sharding, NamedSharding) else ()
