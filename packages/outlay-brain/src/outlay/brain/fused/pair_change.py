"""The change of the pairs that a step leaves to the next: traced, and asked for with the next step's current."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp

from outlay.brain.delays import Arrivals, arrives
from outlay.brain.fused.machine_code_pass import MachineCodePass
from outlay.brain.fused.pair_pass import MOST_STEPS, PairPass, PassCall
from outlay.brain.fused.row_equations import TracedRow
from outlay.brain.learning_rules.learning_rule import KernelChange, PairwiseRule
from outlay.brain.module import State
from outlay.brain.neuron import RULE, Neuron

PASSES: dict[str, Callable[..., PairPass]] = {"fast-cpu": MachineCodePass}
"""Kinds of passes by the name of the kernel: machine code for this processor."""

InLoop = dict[str, Any]
"""The state of a population in a loop. `rows`, `delays` and `vectors` have an entry for each pair or some, and only
the pass changes them. `state` is all else of the population's state. The rows are one change behind it: `pending` is
what that depends on besides `state`, and `left_out` is what `SparseSteps` carries."""


@dataclass(frozen=True)
class RuleChange:
    """What a step does to a learning rule.

    Attributes:
        state: its state after the step, but for what it has of each pair.
        rows: the equations of the pairs: of a row whose neuron did not spike, and of one whose neuron did.
        consts: what these close over besides leaves of `state`.
        places: which of both, one after the other, each array is that they close over.
    """

    state: State
    rows: tuple[TracedRow, ...] = ()
    consts: tuple[Any, ...] = ()
    places: tuple[int, ...] = ()

    @classmethod
    def of(
        cls, neuron: Neuron, dt: float, state: State, sent: jax.Array, spikes: jax.Array, read: dict[str, jax.Array]
    ) -> RuleChange:
        """Compute the rule's state, and trace the equations of the pairs.

        Args:
            neuron: the population.
            dt: the duration of a step, ms.
            state: its state, after the step's delays.
            sent: which pre neurons spiked.
            spikes: which neurons did.
            read: what the rule reads.
        """
        rule = neuron.learning_rule
        if not isinstance(rule, PairwiseRule):
            return cls({})
        delays, kernel = state["delays"].get("delays"), state["synapses"]["kernel"]
        arrived = arrives(state["delays"]["history"], delays)
        arrivals = Arrivals(sent, arrived, state["delays"]["inhibitory"], delays)
        after, change = rule.change(state[RULE], arrivals, spikes, {**read, "inhibitory": state["inhibitory"]}, dt=dt)
        like = [kernel, *(state[RULE][name] for name in sorted(change.pairs))]
        rows = [jax.ShapeDtypeStruct(array.shape[1:], array.dtype) for array in like]
        number, where = jax.ShapeDtypeStruct((), jnp.uint32), jax.ShapeDtypeStruct(kernel.shape[1:], bool)
        own_delays = [jax.ShapeDtypeStruct(delays.shape[1:], delays.dtype)] if has_own_delays(state) else []
        # Two kinds of rows: few neurons spike, and the rows of all others need not compute what only a spike brings.
        of_both = [
            jax.make_jaxpr(functools.partial(_row, change, arrivals, spiked, dt))(number, rows, where, *own_delays)
            for spiked in (False, True)
        ]
        closed_over = [const for closed in of_both for const in closed.consts]
        different, leaves = _different(closed_over), jax.tree.leaves(after)
        # What the state has anyway is not carried a second time.
        consts = _different([*leaves, *closed_over])[len(_different(leaves)) :]
        traced = tuple(
            TracedRow(
                closed.jaxpr,
                tuple(jax.ShapeDtypeStruct(jnp.shape(const), const.dtype) for const in closed.consts),
                tuple(_place(const, different) for const in closed.consts),
            )
            for closed in of_both
        )
        places = tuple(_place(const, [*leaves, *consts]) for const in closed_over)
        return cls(after, traced, tuple(jnp.asarray(const) for const in consts), places)


def _different(arrays: Sequence[Any]) -> list[Any]:
    # By identity: a traced array has no value to compare.
    return [array for k, array in enumerate(arrays) if not any(array is other for other in arrays[:k])]


def _place(array: Any, arrays: Sequence[Any]) -> int:
    return next(k for k, other in enumerate(arrays) if other is array)


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
    """Return the rows of one neuron after a step: kernel, and what the rule keeps for each pair."""
    kernel, names = rows[0], sorted(change.pairs)
    pairs = {name: change.pairs[name](kernel, row) for name, row in zip(names, rows[1:], strict=True)}
    own_delays = arrivals.delays if delays is None else delays
    # A pass gathers nothing.
    at_neuron = Arrivals(arrivals.sent, arrived, arrivals.inhibitory, own_delays, most_selected=MOST_STEPS)
    all_rows = {**pairs, "kernel": kernel.astype(jnp.float32)}
    after = change.to_row(neuron, all_rows, at_neuron, spiked=spiked, dt=dt)
    return [after.astype(kernel.dtype), *pairs.values()]


@dataclass(frozen=True)
class PairChange:
    """A traced change of the pairs.

    Attributes:
        pairs: the pass.
        names: the leaves of the rule's state that have an entry for each pair.
        consts: shapes and dtypes of `RuleChange.consts`.
        places: as of `RuleChange`.
    """

    pairs: PairPass
    names: tuple[str, ...]
    consts: tuple[jax.ShapeDtypeStruct, ...]
    places: tuple[int, ...]

    @classmethod
    def traced(cls, neuron: Neuron, dt: float, kernel: str, state: State, read: Any) -> PairChange:
        """Trace what a step does to the pairs.

        Args:
            neuron: the population.
            dt: the duration of a step, ms.
            kernel: the kind of pass, one of `PASSES`.
            state: a state, or its shapes and dtypes.
            read: shape and dtype of what the rule reads.
        """
        changes: list[RuleChange] = []

        def change(*happened: Any) -> Any:
            changes.append(RuleChange.of(neuron, dt, *happened))
            return changes[0].state, changes[0].consts

        bools = [
            jax.ShapeDtypeStruct(shape, jnp.bool_)
            for shape in (state["delays"]["history"].shape[1:], state["inhibitory"].shape)
        ]
        rule, consts = jax.eval_shape(change, state, *bools, read)
        names = sorted(name for name in state.get(RULE, {}) if name not in rule)
        arrays = [state["synapses"]["kernel"], *(state[RULE][name] for name in names)]
        quiet, spiking = changes[0].rows or (None, None)
        pairs = PASSES[kernel](
            rows=tuple(array.dtype for array in arrays),
            num_inputs=arrays[0].shape[1],
            delays=state["delays"]["delays"].dtype if has_own_delays(state) else None,
            quiet=quiet,
            spiking=spiking,
        )
        return cls(pairs, tuple(names), consts, changes[0].places)

    def closed_over(self, bare: State, pending: Any) -> list[jax.Array]:
        """Return the closed-over arrays of the state without pairs, and of pending changes."""
        arrays = [*jax.tree.leaves(bare.get(RULE, {})), *pending["consts"]]
        return [arrays[place] for place in self.places]


def has_own_delays(state: State) -> bool:
    """Return whether each pair has its own delay."""
    return "delays" in state["delays"] and state["delays"]["delays"].ndim == 2


def apart(state: State, names: Sequence[str]) -> tuple[dict[str, Any], State]:
    """Return the arrays of a state that have an entry for each pair, and the state without them.

    Args:
        state: the state.
        names: those of the rule's leaves that have.
    """
    synapses, delays = dict(state["synapses"]), dict(state["delays"])
    rows = {"kernel": synapses.pop("kernel"), **{name: state[RULE][name] for name in names}}
    own_delays = [delays.pop("delays")] if has_own_delays(state) else []
    bare = {**state, "synapses": synapses, "delays": delays}
    if RULE in state:
        bare[RULE] = {name: leaf for name, leaf in state[RULE].items() if name not in names}
    return {"rows": rows, "delays": own_delays}, bare


def whole(carried: InLoop) -> State:
    """Undo `apart`."""
    rows, state = dict(carried["rows"]), dict(carried["state"])
    state["synapses"] = {**state["synapses"], "kernel": rows.pop("kernel")}
    if RULE in state:
        state[RULE] = {**state[RULE], **rows}
    if carried["delays"]:
        state["delays"] = {**state["delays"], "delays": carried["delays"][0]}
    return state


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Request:
    """What a pass over the pairs of a population takes besides its state.

    Attributes:
        change: the change of the pairs.
        words: as of `PairPass.__call__`.
        sign: likewise.
    """

    change: PairChange = field(metadata={"static": True})
    words: jax.Array
    sign: jax.Array

    def call(self, carried: InLoop) -> PassCall:
        """Return the call of the pass."""
        rows, pending = carried["rows"], carried["pending"]
        return self.change.pairs.call(
            [rows[name] for name in ("kernel", *self.change.names)],
            carried["delays"][0] if carried["delays"] else None,
            self.words,
            self.sign,
            pending["spikes"],
            pending["is_there"],
            self.change.closed_over(carried["state"], pending),
            [carried["left_out"]["numbers"], *carried["vectors"]] if carried["left_out"] else [],
        )


def compute_together(requests: dict[str, tuple[InLoop, Request]]) -> dict[str, tuple[Any, jax.Array]]:
    """Compute the passes of several populations; return of each the pairs, and what spikes bring."""
    passes = [request.change.pairs for _, request in requests.values()]
    calls = [request.call(carried) for carried, request in requests.values()]
    answers = {}
    for (name, (_, request)), results in zip(requests.items(), type(passes[0]).compute_all(passes, calls), strict=True):
        rows, brought, taken = results
        changed = dict(zip(("kernel", *request.change.names), rows, strict=True))
        answers[name] = {"rows": changed, "vectors": taken[1:]}, brought
    return answers
