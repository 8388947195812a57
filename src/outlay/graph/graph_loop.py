"""Run many steps of a graph in one loop: `GraphLoop`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from outlay.core.error_types import ProgramError
from outlay.core.one_line import OneLine
from outlay.core.paths import flatten_paths
from outlay.graph.recorded_outputs import Buffers, RecordedOutput
from outlay.graph.step_graph import StepGraph
from outlay.graph.subgraph import Subgraph


@dataclass(frozen=True, eq=False)  # compared and hashed by identity: jax.jit needs a hash
class GraphLoop(OneLine):
    """Run as many steps of a graph as the inputs have, in one compiled loop; itself a step for `outlay.program`.

    `graph_loop(state, inputs)` takes the state of the graph, and inputs with a leading dim of one entry per step. It
    returns the new state and a dictionary of three:

    * `outputs`: the outputs of the graph by name, one entry per step;
    * `recorded`: what was recorded, by address, one entry every `stride` steps;
    * `not_finite`: for each part the step at which a NaN or an infinity first appeared in its outputs or in its leaves
      of at most one dim; -1 if none did. Leaves with more dims are checked only after the last step, and then that
      step is given.

    Recording and checking do not change the result. Inputs that no part reads only set the number of steps.

    Attributes:
        graph: the graph.
        record: addresses: `PART:PORT` is an output of a part, `PART.PATH` a leaf of its state after a step.
        stride: the number of steps from one recorded entry to the next.

    Raises:
        ProgramError: when it is called: an address names nothing, or the inputs do not determine the number of steps.

    Example:
        >>> from outlay.graph import Part, Source, StepGraph
        >>> def count(state, read):
        ...     total = state["total"] + read["in"][0]
        ...     return {"total": total}, {"out": total}
        >>> graph = StepGraph({"counter": Part(count, {"in": (Source("inputs", "x"),)})}, {"seen": ("counter", "out")})
        >>> state = {"counter": {"total": jnp.zeros(())}, "cache": {"counter": {"out": jnp.zeros(())}}}
        >>> graph_loop = outlay.graph.GraphLoop(graph, record=("counter.total",), stride=2)
        >>> state, results = graph_loop(state, {"x": jnp.arange(4.0)})
        >>> results["outputs"]["seen"].tolist(), results["recorded"]["counter.total"].tolist()
        ([0.0, 1.0, 3.0, 6.0], [1.0, 6.0])
    """

    graph: StepGraph
    record: tuple[str, ...] = ()
    stride: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "record", tuple(self.record))
        if type(self.stride) is not int or self.stride < 1:
            raise ProgramError(f"stride={self.stride!r}: it must be a whole number of steps, 1 or more")

    def __call__(self, state: Any, inputs: Mapping[str, Any]) -> tuple[Any, dict[str, Any]]:
        """Run all steps."""
        subgraph = Subgraph(self.graph, tuple(self.graph.parts), self.recorded_outputs)
        state, buffers, not_finite = subgraph.run_alone(state, inputs, count_steps(inputs))
        return state, results(buffers, not_finite)

    @property
    def recorded_outputs(self) -> tuple[RecordedOutput, ...]:
        """The values that are kept of the steps."""
        outputs = [
            RecordedOutput("outputs", name, part, port, 1, True) for name, (part, port) in self.graph.outputs.items()
        ]
        return (*outputs, *(RecordedOutput.recorded(address, self.stride) for address in dict.fromkeys(self.record)))


def count_steps(inputs: Mapping[str, Any]) -> int:
    """Return the number of steps that these inputs are for.

    Raises:
        ProgramError: there is no input, or the first dims differ.
    """
    lengths = {path: leaf.shape[:1] for path, leaf in flatten_paths(inputs)[0]}
    if len(set(lengths.values())) == 1 and () not in lengths.values():
        return next(iter(lengths.values()))[0]
    listed = ", ".join(f"{path} has {length[0] if length else 'no dim'}" for path, length in lengths.items())
    raise ProgramError(
        "a graph loop takes inputs whose first dim is the number of steps, the same for all, but "
        f"{listed or 'there are none'}\n"
        '  fix: stack the inputs of the steps; for a graph without inputs, pass {"step": np.arange(num_steps)}'
    )


def results(buffers: Buffers, not_finite: dict[str, Any]) -> dict[str, Any]:
    """Return what a graph loop returns besides its state."""
    returned: dict[str, Any] = {"outputs": {}, "recorded": {}, "not_finite": not_finite}
    for (kind, name), values in buffers.items():
        returned[kind][name] = values
    return returned
