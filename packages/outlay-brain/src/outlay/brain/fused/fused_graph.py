"""The graph of a Brain whose populations take one pass over their pairs in a step."""

from __future__ import annotations

import dataclasses
import functools
import warnings
from dataclasses import dataclass, field
from typing import Any

import jax

from outlay.brain.brain import Brain
from outlay.brain.fused.deferred_neuron import DeferredNeuron
from outlay.brain.fused.jax_machine_code import one_thread_reason
from outlay.brain.fused.pair_change import compute_together
from outlay.brain.fused.row_equations import NoPasses, NotCompiled
from outlay.brain.module import State
from outlay.brain.neuron import Neuron
from outlay.brain.rounding import rounds_each
from outlay.graph import LoopForm, SharedStep, StepGraph
from outlay.kit import plural


def fused_graph(brain: Brain, graph: StepGraph, kernel: str) -> StepGraph:
    """Return the graph of a Brain whose populations take one pass over their pairs in a step, where they can.

    Those that cannot run in plain JAX, and one warning says which and why.

    Args:
        brain: the Brain.
        graph: its graph.
        kernel: the kind of pass, one of `pair_change.PASSES`.
    """
    warn, parts = _Warning(brain, kernel), dict(graph.parts)
    for name, part in graph.parts.items():
        neuron = brain.modules[name]
        if isinstance(neuron, Neuron):
            # One for all traces of the loop, so that a pass is traced and made once.
            deferred = DeferredNeuron(brain, name, neuron, kernel)
            parts[name] = dataclasses.replace(part, loop_form=functools.partial(_loop_form, deferred, warn))
    return dataclasses.replace(graph, parts=parts)


@dataclass(frozen=True)
class _Warning:
    """Warns of populations that run in plain JAX, once.

    Attributes:
        brain: the Brain.
        kernel: the kind of pass that they do not take.
        past: the warnings given, and each population and reason that they name.
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
        # All are asked at once, by their shapes, so that one warning names every population without a pass.
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


def _loop_form(deferred: DeferredNeuron, warn: _Warning, state: State) -> LoopForm | None:
    try:
        deferred.check(state)
    except NotCompiled as reason:
        warn.of(deferred.name, reason)
        return None
    if deferred.kernel == "fast-cpu" and (reason := one_thread_reason()):
        warn(f"one thread computes the pairs: {reason}")
    # In a narrow Brain each operation of these rounds; the pass sees to that by itself.
    before, after, end = (
        rounds_each(function, deferred.brain.dtype) for function in (deferred.before, deferred.after, deferred.end)
    )
    # Bounds and constants of a rule may be infinite, which says nothing of the state.
    return LoopForm(deferred.begin, SharedStep(before, compute_together, after), end, lambda carried: carried["state"])
