"""A population in a loop of many steps, each of which makes the last step's change of the kernel in its own pass.

The change of a step and the current of the next go over the same pairs, and both are known when the next step begins:
one pass does for two. In between the rule's state and the kernel are one change behind; `end` makes it good, with the
same code and so with the same bits, wherever a state is looked at.
"""

from __future__ import annotations

import dataclasses
import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.brain import Brain
from outlay.brain.delays import FEW_STEPS, Arrivals, Delays, arrives
from outlay.brain.fused.machine_code_pass import MachineCodePass
from outlay.brain.fused.pair_pass import PairPass, check_pass
from outlay.brain.fused.pallas_pass import PallasPass
from outlay.brain.fused.row_equations import NoPasses, NotCompiled
from outlay.brain.fused.traced_row import TracedRow
from outlay.brain.learning_rules.learning_rule import KernelChange, PairwiseRule
from outlay.brain.module import State
from outlay.brain.neuron import RULE, Neuron, signed
from outlay.brain.rounding import rounds_each
from outlay.brain.synapses import Synapses
from outlay.core.jax_machine_code import one_thread_reason
from outlay.core.quantities import plural
from outlay.graph.step_graph import LoopForm, Read, StepGraph

PASSES: dict[str, Callable[..., PairPass]] = {"fast-cpu": MachineCodePass, "pallas": PallasPass}
"""Kinds of passes by the name of the kernel: machine code for this processor, and Pallas for NVIDIA GPUs."""


def fused_graph(brain: Brain, graph: StepGraph, kernel: str) -> StepGraph:
    """The graph of a Brain whose populations take one pass over their pairs in a step, where they can.

    Those that cannot run in plain JAX, and one warning says which and why.

    Args:
        brain: the Brain.
        graph: its graph.
        kernel: the kind of pass, one of `PASSES`.
    """
    warn = _Warning(brain, kernel)
    parts = {
        name: dataclasses.replace(part, loop_form=functools.partial(_loop_form, brain, name, kernel, warn))
        if isinstance(brain.modules[name], Neuron)
        else part
        for name, part in graph.parts.items()
    }
    return dataclasses.replace(graph, parts=parts)


@dataclass(frozen=True)
class _Warning:
    """What is said of populations that run in plain JAX, and how: once.

    Attributes:
        brain: the Brain.
        kernel: the kind of pass that they do not take.
        past: what was said.
    """

    brain: Brain
    kernel: str
    past: set[Any] = field(default_factory=set)

    def __call__(self, text: str) -> None:
        """Warn."""
        if text not in self.past:
            self.past.add(text)
            warnings.warn(text, stacklevel=2)

    def of(self, name: str, reason: NotCompiled) -> None:
        """Warn that a population has no pass, and name all others that have none."""
        if (name, str(reason)) in self.past:
            return
        if isinstance(reason, NoPasses):
            return self(f"all populations run in plain JAX, not as {self.kernel}: {reason}")
        names_of, states = {str(reason): [name]}, jax.eval_shape(self.brain.init, jax.random.key(0))
        for other, module in self.brain.modules.items():
            if isinstance(module, Neuron) and other != name:
                try:
                    DeferredNeuron(self.brain, other, module, self.kernel).check(states[other])
                except NotCompiled as reason_of_other:
                    names_of.setdefault(str(reason_of_other), []).append(other)
        self.past.update((name, text) for text, names in names_of.items() for name in names)
        self("; ".join(f"{_run(names)} in plain JAX, not as {self.kernel}: {text}" for text, names in names_of.items()))


def _run(names: list[str]) -> str:
    return f"{', '.join(names)} {plural(len(names), 'runs', 'run')}"


def _loop_form(brain: Brain, name: str, kernel: str, warn: _Warning, state: State) -> LoopForm | None:
    neuron = brain.modules[name]
    assert isinstance(neuron, Neuron)
    deferred = DeferredNeuron(brain, name, neuron, kernel)
    try:
        deferred.check(state)
    except NotCompiled as reason:
        warn.of(name, reason)
        return None
    if kernel == "fast-cpu" and (reason := one_thread_reason()):
        warn(f"one thread computes the pairs: {reason}")
    step, end = (rounds_each(function, brain.dtype) for function in (deferred.step, deferred.end))
    return LoopForm(deferred.begin, step, end)


@dataclass(frozen=True)
class DeferredNeuron:
    """The loop form of one population.

    Its state in a loop has two parts: `state`, in which the kernel and the rule's state are one change behind, and
    `pending`, of which that change is made: who spiked and sent in the last step, and what was read for the rule.

    Attributes:
        brain: the Brain.
        name: of the population.
        neuron: the population.
        kernel: the kind of its pass over the pairs, one of `PASSES`.
    """

    brain: Brain
    name: str
    neuron: Neuron
    kernel: str

    def check(self, state: State) -> None:
        """Raise unless the pass can be compiled, and computes what it should.

        Raises:
            NotCompiled: it cannot.
        """
        neuron, steps = self.neuron, self.neuron.delays.num_steps(dt=self.brain.dt)
        for part, base in ((neuron, Neuron), (neuron.synapses, Synapses), (neuron.delays, Delays)):
            if type(part).step is not base.step:
                raise NotCompiled(f"{type(part).__name__} has a step of its own")
        if steps > FEW_STEPS:
            raise NotCompiled(f"its delays are of up to {steps} steps, and the pass takes up to {FEW_STEPS}")
        rule = neuron.learning_rule
        if rule is not None and not (isinstance(rule, PairwiseRule) and type(rule).step is PairwiseRule.step):
            raise NotCompiled(f"{type(rule).__name__} does not say its equations as a KernelChange")
        check_pass(self.pairs(state))

    def pairs(self, state: State) -> PairPass:
        """Return the pass over its pairs."""
        return self._traced(state, jax.eval_shape(self._nothing, state))[0]

    def begin(self, state: State) -> Any:
        """Nothing is pending."""
        pending = self._nothing(state)
        pairs, (_, consts) = self._traced(state, pending)
        sparse = pairs.sparse
        left_out = sparse.begin(len(pending["spikes"]), sparse.bounds(consts)) if sparse else None
        return {"state": state, "pending": pending, "left_out": left_out}

    def _nothing(self, state: State) -> Any:
        """Return what happened in the last step, before the first."""
        num_inputs, shapes = state["delays"]["history"].shape[1], self.brain.wiring.input_shapes[self.name]
        dtype = jnp.dtype(self.brain.dtype)
        reads = self.neuron.learning_rule.reads if self.neuron.learning_rule else {}
        return {
            "is_there": jnp.zeros((), bool),
            "spikes": jnp.zeros(state["inhibitory"].shape, bool),
            "sent": jnp.zeros(num_inputs, bool),
            "inhibitory": jnp.zeros(num_inputs, bool),
            "read": {port: jnp.zeros(shapes[port], dtype) for port in reads},
        }

    def step(self, carried: Any, read: Read) -> tuple[Any, dict[str, jax.Array]]:
        """One step, which begins with the change of the last."""
        neuron, dt, state = self.neuron, self.brain.dt, carried["state"]
        inputs = self.brain.arriving(self.name, read)
        delays, arrivals = neuron.delays.step(state["delays"], inputs["in_spikes"].reshape(-1))
        changed, brought, left_out = self._changed(carried, delays["history"], arrivals.inhibitory)
        synapses, current = neuron.synapses.receive(changed["synapses"], brought, dt=dt)
        soma, spikes = neuron.soma.step(state["soma"], current, dt=dt)
        pending = {
            "is_there": jnp.ones((), bool),
            "spikes": spikes,
            "sent": arrivals.sent,
            "inhibitory": arrivals.inhibitory,
            "read": {port: inputs[port] for port in carried["pending"]["read"]},
        }
        after = {**changed, "delays": delays, "synapses": synapses, "soma": soma}
        carried = {"state": after, "pending": pending, "left_out": left_out}
        return carried, {"out_spikes": signed(spikes, state["inhibitory"])}

    def end(self, carried: Any) -> State:
        """The state after the last step's change."""
        delays = carried["state"]["delays"]
        return self._changed(carried, delays["history"] << 1, delays["inhibitory"], all_pairs=True)[0]

    def _changed(
        self, carried: Any, history: jax.Array, inhibitory: jax.Array, *, all_pairs: bool = False
    ) -> tuple[State, jax.Array, Any]:
        """The state after the last step's change, what the spikes of a history bring then, and what was left out.

        Args:
            carried: as it is in the loop.
            history: the spikes of pre neurons, those of this step included.
            inhibitory: which of them are inhibitory.
            all_pairs: whether none is to be left out.
        """
        state, pending = carried["state"], carried["pending"]
        pairs, (rule_shapes, consts) = self._traced(state, pending)
        before = {name: state[RULE][name] for name in rule_shapes}
        # A branch, so that it is computed and rounded alike in a step and after the last.
        rule, consts = jax.lax.cond(
            pending["is_there"],
            lambda: self._change(state, pending, []),
            lambda: (before, [jnp.zeros(const.shape, const.dtype) for const in consts]),
        )
        names = _of_pairs(state, rule)
        delays = state["delays"].get("delays")
        own_delays = delays if delays is not None and delays.ndim == 2 else None
        words, delays_at = history[0] << 1, None if delays is None else delays.astype(jnp.uint32)
        if own_delays is not None:
            # Without the spikes that arrived everywhere before.
            num_bits = self.neuron.delays.num_steps(dt=self.brain.dt) + 1
            words &= (2 << num_bits) - 2
        else:
            words, num_bits = (words >> (1 if delays_at is None else delays_at)) & 3, 2
        left_out, taken, is_there = carried["left_out"], [], pending["is_there"]
        if pairs.sparse:
            bounds = pairs.sparse.bounds(consts)
            few = pairs.sparse.few_arrive(words, num_bits) & (not all_pairs)
            taken = pairs.sparse.inputs(left_out, pairs.sparse.mode(left_out, few, is_there, bounds), is_there)
        (kernel, *rows), brought, taken = pairs(
            [state["synapses"]["kernel"], *(state[RULE][name] for name in names)],
            own_delays,
            words,
            jnp.where(inhibitory, -1.0, 1.0).astype(jnp.float32),
            pending["spikes"],
            is_there,
            consts,
            taken,
        )
        if pairs.sparse:
            left_out = pairs.sparse.after(left_out, taken, is_there, bounds)
        after = {**state, "synapses": {**state["synapses"], "kernel": kernel}}
        if RULE in state:
            after[RULE] = {**rule, **dict(zip(names, rows, strict=True))}
        return after, brought, left_out

    def _traced(self, state: State, pending: Any) -> tuple[PairPass, tuple[State, list[jax.ShapeDtypeStruct]]]:
        """The pass over the pairs; and shape and dtype of what `_change` gives."""
        rows: list[TracedRow] = []
        shapes = jax.eval_shape(lambda state, pending: self._change(state, pending, rows), state, pending)
        arrays = [state["synapses"]["kernel"], *(state[RULE][name] for name in _of_pairs(state, shapes[0]))]
        delays = state["delays"].get("delays")
        quiet, spiking = rows or (None, None)
        return PASSES[self.kernel](
            rows=tuple(array.dtype for array in arrays),
            num_inputs=arrays[0].shape[1],
            delays=delays.dtype if delays is not None and delays.ndim == 2 else None,
            quiet=quiet,
            spiking=spiking,
        ), shapes

    def _change(self, state: State, pending: Any, traced: list[TracedRow]) -> tuple[State, list[jax.Array]]:
        """The rule's state after the last step, but for what it has of each pair; and what its equations close over.

        Args:
            state: before that.
            pending: what happened in that step.
            traced: where the equations go: of a row whose neuron did not spike, and of one whose neuron did.
        """
        rule, dt = self.neuron.learning_rule, self.brain.dt
        if not isinstance(rule, PairwiseRule):
            return {}, []
        delays, kernel = state["delays"].get("delays"), state["synapses"]["kernel"]
        arrived = arrives(state["delays"]["history"], delays)
        arrivals = Arrivals(pending["sent"], arrived, pending["inhibitory"], delays)
        read = {**pending["read"], "inhibitory": state["inhibitory"]}
        after, change = rule.change(state[RULE], arrivals, pending["spikes"], read, dt=dt)
        like = [kernel, *(state[RULE][name] for name in sorted(change.pairs))]
        rows = [jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in like]
        number, where = jax.ShapeDtypeStruct((), jnp.uint32), jax.ShapeDtypeStruct(kernel.shape[1:], bool)
        own_delays = (
            [jax.ShapeDtypeStruct(delays.shape[1:], delays.dtype)] if delays is not None and delays.ndim == 2 else []
        )
        closed_over, different = [], []
        for spiked in (False, True):
            equations = functools.partial(_row, change, arrivals, spiked, dt)
            closed = jax.make_jaxpr(equations)(number, rows, where, *own_delays)
            consts = [jnp.asarray(const) for const in closed.consts]
            different += [c for c in closed.consts if not any(c is other for other in different)]
            numbers = tuple(next(k for k, other in enumerate(different) if other is c) for c in closed.consts)
            shapes = tuple(jax.ShapeDtypeStruct(const.shape, const.dtype) for const in consts)
            traced.append(TracedRow(closed.jaxpr, shapes, numbers))
            closed_over += consts
        return after, closed_over


def _row(
    change: KernelChange,
    arrivals: Arrivals,
    spiked: bool,
    dt: float,
    neuron: jax.Array,
    rows: list[jax.Array],
    arrived: jax.Array,
    delays: jax.Array | None = None,
) -> list[jax.Array]:
    """The rows of one neuron after a step: kernel, and what the rule keeps for each pair."""
    kernel, names = rows[0], sorted(change.pairs)
    pairs = {name: change.pairs[name](kernel, row) for name, row in zip(names, rows[1:], strict=True)}
    at_neuron = Arrivals(arrivals.sent, arrived, arrivals.inhibitory, arrivals.delays if delays is None else delays)
    all_rows = {**pairs, "kernel": kernel.astype(jnp.float32)}
    after = change.to_row(neuron, all_rows, at_neuron, spiked=spiked, dt=dt)
    return [after.astype(kernel.dtype), *pairs.values()]


def _of_pairs(state: State, rule: State) -> list[str]:
    """The leaves of a rule's state that have an entry for each pair."""
    return sorted(name for name in state.get(RULE, {}) if name not in rule)
