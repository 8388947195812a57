"""A Brain: modules and their connections."""

from __future__ import annotations

import functools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

import jax
import jax.numpy as jnp
from jax.core import Tracer

from outlay.brain.check_arguments import check_kinds
from outlay.brain.check_modules import check_state, checked_step, naming
from outlay.brain.connections import Blueprint, Connection
from outlay.brain.inspection import Inspection, inspect
from outlay.brain.module import BrainError, Module, Port, Shape, State
from outlay.brain.rounding import rounds_each
from outlay.brain.row_steps import row_steps
from outlay.brain.spike_inputs import check_spike_dtypes, check_spikes, with_spike_dtypes
from outlay.brain.wiring import Wiring, port_of, wire
from outlay.errors import Problem
from outlay.graph import Part, RowStep, Source, StepGraph
from outlay.kit import CACHE, Encoding, OneLine, counted, did_you_mean, flatten_paths, map_with_paths, matches


@dataclass(frozen=True)
class Brain(OneLine):
    """A network of modules that run in steps of `dt`; each module reads what the others wrote in the previous step.

    The constructor checks everything: modules, ports, shapes, units and settings.

    Attributes:
        modules: the modules by name.
        connections: the connections; several sources of one port are concatenated in this order.
        inputs: the shape of each input by name; modules read them as `inputs:NAME`.
        outputs: the ports that a step returns, by name, as `MODULE:PORT`.
        dt: the duration of a step in ms.
        dtype: the dtype of potentials, kernels, traces and currents: `float32`, `float16` or `bfloat16`.

    Raises:
        BrainError: something does not fit; the message lists every problem.

    Example:
        >>> from outlay.brain import Brain, Connection, LinearSpiker
        >>> brain = Brain({"eye": LinearSpiker()}, [Connection("inputs:light", "eye:signal")], inputs={"light": (3,)},
        ...               outputs={"seen": "eye:spikes"})
        >>> state, outputs = brain.step(brain.init(jax.random.key(0)), {"light": jnp.ones(3)})
        >>> outputs["seen"].shape
        (3,)
    """

    modules: Mapping[str, Module]
    connections: Sequence[Connection]
    inputs: Mapping[str, Shape] = field(default_factory=dict)
    outputs: Mapping[str, str] = field(default_factory=dict)
    dt: float = 1.0
    dtype: str = "float32"

    def __post_init__(self) -> None:
        check_kinds(self.modules, self.connections)
        inputs = {name: tuple(shape) if isinstance(shape, list) else shape for name, shape in self.inputs.items()}
        for name, value in (("modules", self.modules), ("inputs", inputs), ("outputs", self.outputs)):
            # Read-only: what is wired was checked, and a dictionary that changes later would not be checked again.
            object.__setattr__(self, name, MappingProxyType(dict(value)))
        object.__setattr__(self, "connections", tuple(self.connections))
        blueprint = Blueprint(self.modules, self.connections, self.inputs, self.outputs, self.dt, self.dtype)
        object.__setattr__(self, "wiring", wire(blueprint))

    wiring: Wiring = field(init=False, repr=False, compare=False)  # it follows from the others

    @functools.cached_property
    def graph(self) -> StepGraph:
        """The step as a graph of step functions, one per module.

        Traced, nobody looks at the numbers of an input: where a port of spikes reads it, it must be of int8 or bool.
        """
        return self._graph(check_dtypes=True)

    @functools.cached_property
    def graph_of_checked(self) -> StepGraph:
        """The same for checked inputs of any dtype: ports of spikes hold only 1, 0 and -1."""
        return self._graph(check_dtypes=False)

    def _graph(self, *, check_dtypes: bool) -> StepGraph:
        steps = {name: self._step_of(name) for name in self.modules}
        if check_dtypes:
            steps = with_spike_dtypes(self.wiring, steps)
        parts = {
            name: Part(
                steps[name],
                self.wiring.reads[name],
                module.by_neuron,
                encodings=self._encodings(name),
                row_steps=functools.partial(self._row_steps, name),
            )
            for name, module in self.modules.items()
        }
        return StepGraph(parts, self.wiring.outputs)

    def init(self, key: jax.Array) -> State:
        """Initialize the state: that of each module under its name, and the latest outputs under `cache`.

        Args:
            key: the PRNG key. A module derives its own key from it and its name, so its random numbers do not depend on
                other modules.
        """
        state = self._with_signs({name: self.init_module(name, key) for name in self.modules})
        return {**state, CACHE: self.graph_of_checked.init_cache(self.produced)}

    def init_rows(self, key: jax.Array, numbers: Mapping[str, jax.Array]) -> State:
        """Initialize the state with some rows of modules that are split by neuron.

        Args:
            key: as for `init`.
            numbers: the neurons of each such module. Other modules are initialized whole, and so is one whose rows
                depend on each other, as where kernels are normalized over post-synaptic neurons, or which is of a
                user's class; then its rows are taken.
        """
        # What is replaced below is not computed: compiled, a program has only what its results need.
        state = self.init(key)
        for name, rows in numbers.items():
            module = self.modules[name]
            whole = state[name]
            made: dict[str, jax.Array] = {}
            if module.makes_rows:
                shapes, dtype = self.wiring.input_shapes[name], jnp.dtype(self.dtype)
                drawn = module.init_rows(self._key_of(name, key), shapes, rows, dt=self.dt, dtype=dtype)
                made = dict(flatten_paths(drawn)[0])

            def own(path: str, leaf: Any, name: str = name, rows: Any = rows, made: Any = made) -> Any:
                if not any(matches(pattern, path) for pattern in self.modules[name].by_neuron):
                    return leaf
                return made[path] if path in made else leaf[rows]

            state[name] = map_with_paths(own, whole)
        return state

    def _key_of(self, name: str, key: jax.Array) -> jax.Array:
        # Fold in the name, not the position: adding a module must not change the random numbers of the others.
        return jax.random.fold_in(key, _number_of(name))

    def init_module(self, name: str, key: jax.Array) -> State:
        """Initialize the state of one module."""
        own = self._key_of(name, key)
        shapes, module = self.wiring.input_shapes[name], self.modules[name]
        with naming(name, module, "init"):
            state = module.init(own, shapes, dt=self.dt, dtype=jnp.dtype(self.dtype))
        check_state(name, module, state)
        return state

    @functools.cached_property
    def module_shapes(self) -> State:
        """The shapes and dtypes of the states of the modules: no kernel is drawn for them."""
        return jax.eval_shape(lambda: {name: self.init_module(name, jax.random.key(0)) for name in self.modules})

    def step(self, state: State, inputs: Mapping[str, Any]) -> tuple[State, dict[str, jax.Array]]:
        """Advance the state by one step of `dt`.

        Args:
            state: the state returned by `init` or by the previous step.
            inputs: one array for each input of the Brain.

        Returns:
            The new state, and the Brain's outputs.

        Raises:
            BrainError: inputs are unknown, missing, or have another shape, or a port of spikes reads one that is none
                (of traced arrays: one that is neither of int8 nor of bool); the message lists all of them.
        """
        given = {name: jnp.asarray(value) for name, value in inputs.items()}
        check_inputs(self, {name: value.shape for name, value in given.items()})
        traced = [name for name, value in given.items() if isinstance(value, Tracer)]
        check_spikes(self.wiring, {name: value for name, value in given.items() if name not in traced})
        after = self.graph_of_checked(state, given)  # a module that does not do what it must is named first
        check_spike_dtypes(self.wiring, {name: given[name].dtype for name in traced})
        return after

    def arriving(self, name: str, read: Mapping[str, tuple[jax.Array, ...]]) -> dict[str, jax.Array]:
        """Collect the inputs of a module by port from the outputs of its sources."""
        ports = self.modules[name].inputs()
        return {port: _joined(values, self.dtype_of(ports[port])) for port, values in read.items()}

    @property
    def produced(self) -> dict[str, dict[str, jax.ShapeDtypeStruct]]:
        """Return the shape and dtype of each module's outputs, by module and port."""
        return {
            name: {port: jax.ShapeDtypeStruct(p.shape, self.dtype_of(p)) for port, p in ports.items()}
            for name, ports in self.wiring.output_ports.items()
        }

    def dtype_of(self, port: Port) -> Any:
        """Return the dtype of a port's values."""
        return jnp.dtype("int8" if port.kind == "spikes" else self.dtype)

    def inspect(self) -> Inspection:
        """Describe the modules as a tree, with shapes, units and settings."""
        return inspect(self.wiring, self.init_module)

    def picture(self, path: str | os.PathLike, *, force: bool = False) -> None:
        """Write a picture of its modules and connections.

        Args:
            path: the file; its ending, such as `.png` or `.svg`, determines the format.
            force: also overwrite a file that Outlay did not create.

        Raises:
            OutputError: the file exists and is not Outlay's, cannot be written, or has an unknown ending.
        """
        from outlay.brain.picture import draw  # matplotlib takes long to import, and few Brains are drawn
        from outlay.kit import write_picture

        write_picture(Path(path), draw(self.wiring), force=force)

    def _with_signs(self, state: State) -> State:
        """Add to the state of each module which of its sources are inhibitory."""
        # Any other module has no signs to pass on.
        telling = {name: module for name, module in self.modules.items() if type(module).signs is not Module.signs}
        signs: dict[str, Mapping[str, jax.Array]] = {}
        # A module such as Concat passes signs on, so that they propagate by one module per round.
        for _ in telling:
            signs = {name: module.signs(state[name], self._signs_read(name, signs)) for name, module in telling.items()}
        return {name: m.with_signs(state[name], self._signs_read(name, signs)) for name, m in self.modules.items()}

    def _signs_read(self, name: str, signs: Mapping[str, Mapping[str, jax.Array]]) -> dict[str, jax.Array]:
        """Return for each spike port of a module which of its sources are inhibitory neurons."""

        def of_source(source: Source) -> jax.Array:
            sign = signs.get(source.part, {}).get(source.port)
            if sign is not None:
                return sign.reshape(-1)
            shape = port_of(self.inputs, source, self.wiring.output_ports)
            # Inputs of the Brain, and modules that say nothing, count as excitatory.
            return jnp.zeros(math.prod((shape and shape.shape) or ()), bool)

        ports = [port for port, what in self.modules[name].inputs().items() if what.kind != "values"]
        return {port: jnp.concatenate([of_source(s) for s in self.wiring.reads[name][port]]) for port in ports}

    def _encodings(self, name: str) -> dict[str, Encoding]:
        """Return how the outputs of a module go from device to device: a spike is +1, -1 or 0."""
        return {port: "ternary" for port, what in self.wiring.output_ports[name].items() if what.kind == "spikes"}

    def _row_steps(self, name: str) -> list[RowStep]:
        """Return what is checked of a module before a layout splits its neurons."""
        module, shapes = self.modules[name], self.module_shapes[name]
        dtypes = {port: self.dtype_of(what) for port, what in module.inputs().items()}
        state = jax.eval_shape(module.with_signs, shapes, self._sign_shapes(name))
        return row_steps(name, module, state, self.wiring.input_shapes[name], dtypes, self.dt)

    def _sign_shapes(self, name: str) -> dict[str, jax.ShapeDtypeStruct]:
        shapes, ports = self.wiring.input_shapes[name], self.modules[name].inputs()
        return {
            port: jax.ShapeDtypeStruct((math.prod(shapes[port]),), jnp.bool_)
            for port, what in ports.items()
            if what.kind != "values"
        }

    def _step_of(self, name: str):
        module, ports = self.modules[name], self.wiring.output_ports[name]

        def step(state: State, read: Mapping[str, tuple[jax.Array, ...]]) -> tuple[State, dict[str, jax.Array]]:
            with naming(name, module, "step"):
                returned = module.step(state, self.arriving(name, read), dt=self.dt)
            after, outputs = checked_step(name, module, state, returned, ports)
            # A module may compute wider than the Brain; the cache has one dtype a port, whoever writes to it.
            return after, {port: _written(outputs[port], what, self.dtype_of(what)) for port, what in ports.items()}

        return rounds_each(step, self.dtype)


def _written(output: jax.Array, port: Port, dtype: Any) -> jax.Array:
    """Return an output as it is cached: of spikes only the signs, since readers need nothing else."""
    return (jnp.sign(output) if port.kind == "spikes" and output.dtype != jnp.bool_ else output).astype(dtype)


def _joined(values: tuple[jax.Array, ...], dtype: Any) -> jax.Array:
    if len(values) == 1:
        return values[0].astype(dtype)
    # Numbers of a graded port and spikes are of different dtypes.
    same = values if len({value.dtype for value in values}) == 1 else [value.astype(dtype) for value in values]
    return jnp.concatenate([value.reshape(-1) for value in same]).astype(dtype)


def _number_of(name: str) -> int:
    """Return a number for a name, the same in every process (unlike `hash`)."""
    return int.from_bytes(name.encode(), "big") % (2**32 - 5)  # a prime below 2**32 makes collisions of names unlikely


def check_inputs(brain: Brain, shapes: Mapping[str, Shape]) -> None:
    """Raise for inputs that are unknown, missing, or have another shape.

    Args:
        brain: the Brain.
        shapes: the shapes of the given inputs, by name.

    Raises:
        BrainError: something does not fit; the message lists every problem.
    """
    problems = [
        Problem("input", name, f"the Brain has no input {name!r}", did_you_mean(name, brain.inputs))
        for name in shapes
        if name not in brain.inputs
    ]
    for name, expected in brain.inputs.items():
        if name not in shapes:
            problems.append(Problem("input", name, "nothing is given for it", f"an array of shape {expected}"))
        elif tuple(shapes[name]) != expected:
            what = f"its shape is {expected}, but the array has shape {shapes[name]}"
            problems.append(Problem("input", name, what, f"an array of shape {expected}"))
    if problems:
        raise BrainError(f"these inputs do not fit the Brain: {counted(len(problems), 'problem')}", problems)
