"""A Brain like `ab_brain` with 2,048 neurons in each excitatory population: placed on six devices, against one device.

The devices are simulated and share the machine's cores, so that placing can gain nothing but what one program leaves
idle: the ratio shows what it costs to run the modules in programs of their own and to exchange their spikes every step.
"""

import tempfile
from importlib.resources import files
from pathlib import Path

import jax
import numpy as np
from _timing import compare

import outlay
from outlay.analysis.parts.measure_parts import measure_exchange

outlay.simulate(6)

BAR = 1.1
NUM_STEPS = 20
POSITIONS = {"spiker": 0, "integrator": 1, "A_ex": 2, "A_in": 3, "B_ex": 4, "B_in": 5}


def large_brain():
    """Return `ab_brain` with eight times the neurons."""
    text = (files("outlay.brain.run") / "ab_brain.toml").read_text()
    for count in (256, 64):
        assert f"\ncount = {count}\n" in text
        text = text.replace(f"\ncount = {count}\n", f"\ncount = {8 * count}\n")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "large.toml")
        file.write_text(text)
        return outlay.brain.read_brain(file)


brain = large_brain()
graph_loop = outlay.graph.GraphLoop(brain.graph)
inputs = {"drive": np.sin(np.arange(NUM_STEPS)[:, None] / 20 + np.arange(4)).astype(np.float32)}
whole = outlay.Layout([("**", outlay.replicate()), ("batch.**", outlay.replicate())])
one = outlay.program(graph_loop, brain.init, inputs, layout=whole, mesh=outlay.mesh("one=1", devices=jax.devices()[:1]))
mesh = outlay.mesh("devices=6")
placed = outlay.program(graph_loop, brain.init, inputs, layout=outlay.by_module(POSITIONS), mesh=mesh, mode="placed")
states = {"one": one.init(jax.random.key(0)), "placed": placed.init(jax.random.key(0))}
spikes = {}


def call(name, program):
    states[name], outputs = program(states[name], inputs)
    spikes[name] = jax.block_until_ready(outputs)["outputs"]["action"]


def call_placed():
    call("placed", placed)


def call_one():
    call("one", one)


call_placed(), call_one()
placed_time, one_time, ratio = compare(call_placed, call_one, rounds=8, calls=1)
np.testing.assert_array_equal(spikes["placed"], spikes["one"])
verdict = "within" if ratio <= BAR else "ABOVE"
times = f"six devices {1e3 * placed_time / NUM_STEPS:.2f} ms a step, one device {1e3 * one_time / NUM_STEPS:.2f} ms"
print(f"2,048-neuron populations, placed: {times}, ratio {ratio:.3f} ({verdict} the bar of {BAR}); the same action")

exchange, costs = measure_exchange(jax.devices()), outlay.explain(placed).by_parts
spent = 6 * exchange.per_group + len(costs.sent) * exchange.per_transfer
print(
    f"exchange: {costs.bytes_per_step:,.0f} bytes a step in {len(costs.sent)} transfers; six devices that do nothing "
    f"else take {1e6 * spent:.0f} us a step, {spent * NUM_STEPS / placed_time:.1%} of the step"
)
print(f"best possible gain of placing whole modules on devices of their own: {costs.best_gain:.2f}x, by the estimate")
