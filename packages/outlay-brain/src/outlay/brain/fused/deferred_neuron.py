"""A population whose weight update is deferred to the next step's pass.

The change of a step and the current of the next go over the same pairs, and both are known when the next step begins:
one pass does for two. In between the pairs are one change behind; `end` makes it good, with the same code and so with
the same bits, wherever a state is looked at.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.brain import Brain
from outlay.brain.delays import Delays
from outlay.brain.fused.pair_change import InLoop, PairChange, Request, RuleChange, apart, compute_together, whole
from outlay.brain.fused.pair_pass import MOST_STEPS, PairPass, check_pass
from outlay.brain.fused.row_equations import NotCompiled
from outlay.brain.learning_rules.learning_rule import PairwiseRule
from outlay.brain.module import State
from outlay.brain.neuron import RULE, Neuron, signed
from outlay.brain.synapses import Synapses
from outlay.kit import Read


@dataclass(frozen=True)
class DeferredNeuron:
    """The loop form of one population.

    Attributes:
        brain: the Brain.
        name: the name of the population.
        neuron: the population.
        kernel: the kind of its pass over the pairs, one of `pair_change.PASSES`.
    """

    brain: Brain
    name: str
    neuron: Neuron
    kernel: str
    _traced: dict[Any, PairChange] = field(default_factory=dict, compare=False)

    def check(self, state: State) -> None:
        """Raise unless the pass can be compiled, and computes what it should.

        Raises:
            NotCompiled: it cannot.
            BrainError: plain JAX cannot run it either, such as a soma whose step returns a state without a leaf.
        """
        self._check_step(state)
        neuron, steps = self.neuron, self.neuron.delays.num_steps(dt=self.brain.dt)
        for part, base in ((neuron, Neuron), (neuron.synapses, Synapses), (neuron.delays, Delays)):
            # A pass computes what the base classes say; a step of its own would be left out.
            if type(part).step is not base.step:
                raise NotCompiled(f"{type(part).__name__} has a step of its own")
        if neuron.graded:
            raise NotCompiled("its input is graded, and the pass takes spikes")
        if steps > MOST_STEPS:
            raise NotCompiled(f"its delays are of up to {steps} steps, and the pass takes up to {MOST_STEPS}")
        rule = neuron.learning_rule
        if rule is not None and not (isinstance(rule, PairwiseRule) and type(rule).step is PairwiseRule.step):
            raise NotCompiled(f"{type(rule).__name__} does not say its equations as a KernelChange")
        if self._changes_kernel(state):
            raise NotCompiled(f"{type(neuron.synapses).__name__}.receive changes the kernel or the names in its state")
        check_pass(self.pairs(state))

    def _check_step(self, state: State) -> None:
        """Trace a step in plain JAX, which checks it: here, what a step leaves out would stay as it was."""
        ports, shapes = self.neuron.inputs(), self.brain.wiring.input_shapes[self.name]
        read = {
            port: (jax.ShapeDtypeStruct(shape, self.brain.dtype_of(ports[port])),) for port, shape in shapes.items()
        }
        jax.eval_shape(self.brain.graph.parts[self.name].step, state, read)

    def _changes_kernel(self, state: State) -> bool:
        """Return whether the synapses do themselves what only a rule does to a kernel in a pass."""
        changes: list[bool] = []

        def receive(synapses: State, brought: jax.Array) -> State:
            neuron = self.neuron.with_settings(state)
            after, _ = neuron.synapses.receive(synapses, brought, dt=self.brain.dt)
            changes.append(after.keys() != synapses.keys() or after["kernel"] is not synapses["kernel"])
            return after

        brought = jax.ShapeDtypeStruct(state["inhibitory"].shape, jnp.float32)
        jax.eval_shape(receive, state["synapses"], brought)
        return changes[0]

    def pairs(self, state: State) -> PairPass:
        """Return the pass over its pairs."""
        return self._change(state).pairs

    def begin(self, state: State) -> InLoop:
        """Return the state in the loop: nothing is pending."""
        change = self._change(state)
        sparse = change.pairs.sparse
        arrays, bare = apart(state, change.names)
        # Nothing is pending yet, but a loop carries the same arrays in every turn.
        pending = {
            "is_there": jnp.zeros((), bool),
            "spikes": jnp.zeros(state["inhibitory"].shape, bool),
            "consts": tuple(jnp.zeros(const.shape, const.dtype) for const in change.consts),
        }
        left_out = sparse.begin(sparse.bounds(change.closed_over(bare, pending))) if sparse else None
        vectors = sparse.vectors(len(pending["spikes"])) if sparse else []
        return {**arrays, "vectors": vectors, "state": bare, "pending": pending, "left_out": left_out}

    def before(self, carried: InLoop, read: Read) -> tuple[Any, tuple[Any, Request]]:
        """Send spikes, and ask for the last step's change of the pairs and the current of this step."""
        before = carried["state"]["delays"]
        inputs = self.brain.arriving(self.name, read)
        delays, arrivals = self.neuron.delays.step(whole(carried)["delays"], inputs["in_spikes"].reshape(-1))
        request, left_out = self._request(carried, delays["history"], arrivals.inhibitory)
        # Only what changed: each array that goes through a branch costs a copy.
        changed = {name: delays[name] for name in before if delays[name] is not before[name]}
        passed = {"sent": arrivals.sent, "read": {port: inputs[port] for port in self._ports}}
        return {"state": {"delays": changed}, "left_out": left_out}, (passed, request)

    def after(self, carried: InLoop, given: tuple[Any, jax.Array]) -> tuple[Any, dict[str, jax.Array]]:
        """Advance the synapses, the soma and the rule; the change of the pairs is pending."""
        (passed, brought), state, dt = given, whole(carried), self.brain.dt
        neuron = self.neuron.with_settings(state)
        synapses, current = neuron.synapses.receive(state["synapses"], brought, dt=dt)
        soma, spikes = neuron.fire(state["soma"], current, dt=dt)
        rule = RuleChange.of(self.neuron, self.brain.dt, state, passed["sent"], spikes, passed["read"])
        # Without the kernel, which only the pass changes.
        changed = {"synapses": {name: synapses[name] for name in carried["state"]["synapses"]}, "soma": soma}
        if RULE in state:
            changed[RULE] = rule.state
        pending = {"is_there": jnp.ones((), bool), "spikes": spikes, "consts": rule.consts}
        return {"state": changed, "pending": pending}, {"out_spikes": signed(spikes, state["inhibitory"])}

    def end(self, carried: InLoop) -> State:
        """Return the state after the last step's change."""
        delays = carried["state"]["delays"]
        # As in one more step, in which nobody spikes: what it changes is what the last step left.
        request, left_out = self._request(carried, delays["history"] << 1, delays["inhibitory"], all_pairs=True)
        changes, _ = compute_together({self.name: ({**carried, "left_out": left_out}, request)})[self.name]
        return whole({**carried, **changes})

    @property
    def _ports(self) -> list[str]:
        return list(self.neuron.learning_rule.reads) if self.neuron.learning_rule else []

    def _request(
        self, carried: InLoop, history: jax.Array, inhibitory: jax.Array, *, all_pairs: bool = False
    ) -> tuple[Request, Any]:
        """Return what is asked of the pass over the pairs, and what it leaves out.

        Args:
            carried: as it is in the loop.
            history: the spikes of pre neurons, those of this step included.
            inhibitory: which of them are inhibitory.
            all_pairs: whether none is to be left out.
        """
        state, pending = whole(carried), carried["pending"]
        change = self._change(state)
        sparse, consts = change.pairs.sparse, change.closed_over(carried["state"], pending)
        delays = state["delays"].get("delays")
        words, delays_at = history[0] << 1, None if delays is None else delays.astype(jnp.uint32)
        if carried["delays"]:
            # Without the spikes that arrived everywhere before.
            num_bits = self.neuron.delays.num_steps(dt=self.brain.dt) + 1
            words &= jnp.uint32((2 << num_bits) - 2)
        else:
            words, num_bits = (words >> (1 if delays_at is None else delays_at)) & 3, 2
        left_out = carried["left_out"]
        if sparse:
            few = sparse.few_arrive(words, num_bits) & (not all_pairs)
            left_out = sparse.step(left_out, few, pending["is_there"], sparse.bounds(consts))
        sign = jnp.where(inhibitory, -1.0, 1.0).astype(jnp.float32)
        return Request(change, words, sign), left_out

    def _change(self, state: State) -> PairChange:
        """Return what a step does to the pairs of such a state."""
        shapes = tuple((leaf.shape, leaf.dtype) for leaf in jax.tree.leaves(state))
        # Whole states and the rows of one device are traced each for itself.
        if shapes not in self._traced:
            dtype, read = jnp.dtype(self.brain.dtype), self.brain.wiring.input_shapes[self.name]
            like = {port: jax.ShapeDtypeStruct(read[port], dtype) for port in self._ports}
            self._traced[shapes] = PairChange.traced(self.neuron, self.brain.dt, self.kernel, state, like)
        return self._traced[shapes]
