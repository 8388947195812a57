"""Mistakes in Python are told with the module that has them."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import outlay
from outlay.brain import (
    Brain,
    Connection,
    Initializer,
    KernelFile,
    LeakySoma,
    LinearSynapses,
    Module,
    Neuron,
    Port,
    Soma,
    ZenkeRule,
)
from outlay.brain.initializers import GivenKernel
from outlay.brain.module import BrainError
from outlay.brain.synapses import Synapses

WIRES = [Connection("inputs:x", "n:in_spikes")]


def initialized(connections=WIRES, modules=None, **parts):
    model = Brain({"n": Neuron(4, **parts)} if modules is None else modules, connections, inputs={"x": (3,)})
    state = model.init(jax.random.key(0))
    jax.eval_shape(model.step, state, {"x": jnp.ones(3)})


@dataclass(frozen=True)
class Odd(Soma):
    what: str

    def step(self, state, current, *, dt):
        spikes = {"three": jnp.zeros(3, bool), "numbers": 0.7 * current, "whole": jnp.ones(4, jnp.int8), "list": [True]}
        return None if self.what == "nothing" else (state, spikes[self.what])


@dataclass(frozen=True)
class Kernel(Initializer):
    what: str

    def __call__(self, key, shape, dtype):
        return {"transposed": jnp.ones(shape[::-1], dtype), "number": jnp.ones((), dtype), "list": [1.0]}[self.what]


@dataclass(frozen=True)
class OddSynapses(Synapses):
    def receive(self, state, brought, *, dt):
        return state, brought.sum()


@dataclass(frozen=True)
class Numbers(Module):
    """Writes numbers, or counts, to a port of spikes."""

    dtype: str

    def inputs(self):
        return {"in_spikes": Port("spikes")}

    def outputs(self, shapes):
        return {"out": Port("spikes", (3,))}

    def init(self, key, shapes, *, dt, dtype):
        return {}

    def step(self, state, inputs, *, dt):
        return state, {"out": 5 * inputs["in_spikes"].astype(self.dtype)}


@pytest.mark.parametrize(
    ("mistake", "where", "match"),
    [
        ({"soma": LeakySoma}, "n", r"soma is the class LeakySoma\n.*soma=LeakySoma\(\)"),
        ({"soma": LinearSynapses()}, "n", "which is no Soma"),
        ({"learning_rule": LeakySoma()}, "n", "learning_rule is .* which is no LearningRule"),
        ({"learning_rule": ZenkeRule}, "n", "learning_rule is the class ZenkeRule"),
        ({"synapses": LinearSynapses(3.0)}, "n", r"synapses\.kernel is 3\.0, which is no Initializer"),
        ({"connections": ["inputs:x -> n:in_spikes"]}, "connections[0]", r'Connection\("inputs:x", "n:in_spikes"\)'),
        ({"connections": ["a:b -> c:d after 2 ms"]}, "connections[0]", r'Connection\("a:b", "c:d", delay=2\)'),
        ({"connections": [("inputs:x", "n:in_spikes")]}, "connections[0]", r'Connection\("inputs:x", "n:in_spikes"\)'),
        ({"connections": "inputs:x -> n:in_spikes"}, "connections", "a list"),
        ({"modules": [Neuron(4)]}, "modules", "a dict by name"),
        ({"modules": {"n": Neuron}}, "n", "it is the class Neuron"),
        ({"modules": {"n": LeakySoma()}}, "n", "which is no Module"),
        ({"soma": Odd("three")}, "n.soma", r"bool\[3\] as spikes"),
        ({"soma": Odd("numbers")}, "n.soma", r"float32\[4\] as spikes"),
        ({"soma": Odd("whole")}, "n.soma", r"int8\[4\] as spikes"),
        ({"soma": Odd("list")}, "n.soma", "a list as spikes"),
        ({"soma": Odd("nothing")}, "n.soma", "returned None"),
        (
            {"synapses": LinearSynapses(Kernel("transposed"))},
            "n.synapses.kernel",
            r"\(3, 4\), and the kernel is \(4, 3\)",
        ),
        ({"synapses": LinearSynapses(Kernel("number"))}, "n.synapses.kernel", r"shape \(\)"),
        ({"synapses": LinearSynapses(Kernel("list"))}, "n.synapses.kernel", "a list"),
        ({"synapses": OddSynapses()}, "n.synapses", r"float32\[\] as current"),
        ({"modules": {"n": Numbers("float32")}}, "n:out", "step returned float32, and spikes are 1, 0, or -1"),
    ],
)
def test_a_mistake_names_its_module_and_the_fix(mistake, where, match):
    with pytest.raises(BrainError, match=match) as error:
        initialized(**mistake)
    assert [problem.where for problem in error.value.problems] == [where]


def test_counts_at_a_port_of_spikes_are_spikes_on_any_number_of_devices():
    model = Brain({"n": Numbers("int8")}, WIRES, inputs={"x": (3,)}, outputs={"out": "n:out"})
    _, outputs = model.step(model.init(jax.random.key(0)), {"x": jnp.array([1, 0, -1])})
    assert outputs["out"].tolist() == [1, 0, -1]


@pytest.mark.parametrize(
    ("kernel", "match"),
    [
        (np.full((4, 3), np.nan, np.float32), r"nan at \[0, 0\], and 12 numbers"),
        (np.where(np.eye(4, 3) > 0, np.inf, 0), r"inf at \[0, 0\]"),
        (np.full((4, 3), 1e39), "that float32 does not hold"),
        (np.full((4, 3), 3 + 1j), "complex128"),
        (np.full((4, 3), "a"), "not numbers"),
    ],
)
def test_a_kernel_that_is_no_kernel_is_refused_when_it_is_read(tmp_path, kernel, match):
    np.save(tmp_path / "k.npy", kernel)
    for initializer in (KernelFile(str(tmp_path / "k.npy")), GivenKernel(kernel)):
        with pytest.raises(BrainError, match=match):
            initialized(synapses=LinearSynapses(initializer))


def test_inputs_that_no_machine_holds_are_weighed_first():
    model = Brain({"n": Neuron(2, graded=True)}, WIRES, inputs={"x": (100_000, 10_000_000)})
    with pytest.raises(BrainError, match=r"a step need 3\.6 TiB(.|\n)*\(100000, 10000000\) is 3\.6 TiB a step"):
        outlay.brain.run_brain(model, steps=2)
