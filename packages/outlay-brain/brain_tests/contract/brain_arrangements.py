"""Half of the recorded Brain on one device and laid out: `python brain_arrangements.py` prints what differs.

A program of its own, since it must be compiled as users compile it: without what makes tests quick, which rounds
otherwise in one place than in another. Half, since the other two populations are as these are and take as long again.
"""

import functools
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[4]))
sys.path.insert(0, str(Path(__file__).parents[2]))
import jax
import jax.numpy as jnp
import numpy as np
from brain_tests.contract.ab_reference import ab_brain, recorded, recorded_start

import outlay
from outlay.brain.brain import Brain
from outlay.brain.connections import Connection

POPULATIONS = ("A_ex", "A_in")
ALONE_AND_ON_SEVERAL = {"spiker": 0, "integrator": 1, "A_ex": [1, 2], "A_in": 3}
NUM_STEPS = 100


@functools.cache
def model() -> Brain:
    """The Brain of the two populations A, whose inhibitory neurons inhibit A itself."""
    whole = ab_brain()
    read_by_a = ("spiker:spikes", "A_ex:out_spikes", "A_in:out_spikes")
    connections = [
        Connection("inputs:drive", "spiker:signal"),
        *(Connection(origin, "A_ex:in_spikes") for origin in read_by_a),
        Connection("A_ex:out_spikes", "A_in:in_spikes"),
        Connection("A_ex:out_spikes", "integrator:spikes"),
    ]
    modules = {name: whole.modules[name] for name in ALONE_AND_ON_SEVERAL}
    return Brain(modules, connections, inputs=whole.inputs, outputs=whole.outputs)


def recorded_start_of_half():
    """The recorded first state; the integrator, which reads one population less, begins as it does by itself."""
    start, own = recorded_start(ab_brain(), recorded()), jax.jit(lambda key: model().init(key)["integrator"])
    cache = {name: start["cache"][name] for name in ALONE_AND_ON_SEVERAL}
    modules = {name: start[name] for name in ALONE_AND_ON_SEVERAL}
    return jax.device_get({**modules, "integrator": own(jax.random.key(0)), "cache": cache})


def drive() -> dict[str, np.ndarray]:
    return {"drive": np.asarray(recorded()["drive"][:NUM_STEPS], np.float32)}


def program(start, layout, num_devices, axis, mode):
    spikes = (*(f"{name}:out_spikes" for name in POPULATIONS), "spiker:spikes")
    graph_loop = outlay.graph.GraphLoop(model().graph, record=(*spikes, "A_ex.soma.potential"))
    mesh = outlay.mesh(f"{axis}={num_devices}", devices=jax.devices()[:num_devices])

    def init(key):
        return jax.tree.map(jnp.asarray, start)

    return outlay.program(graph_loop, init, drive(), layout=layout, mesh=mesh, mode=mode)


def run(program):
    state, outputs = program(program.init(jax.random.key(0)), drive())
    return jax.device_get((program.crop(state), outputs))


def main() -> None:
    outlay.simulate(6)
    everywhere = [("**", jax.sharding.PartitionSpec()), ("batch.**", jax.sharding.PartitionSpec())]
    start = recorded_start_of_half()
    alone = run(program(start, everywhere, 1, "all", "auto"))
    arrangements = {
        "some alone, some on several": (outlay.by_module(ALONE_AND_ON_SEVERAL), 4, "all", "placed"),
        "by neuron over 6": (outlay.layout.by_rows("neurons"), 6, "neurons", "manual"),
    }
    for name in sys.argv[1:]:
        laid_out = run(program(start, *arrangements[name]))
        same = jax.tree_util.tree_leaves_with_path(jax.tree.map(np.array_equal, laid_out, alone))
        spikes = {
            population: int(np.abs(laid_out[1]["recorded"][f"{population}:out_spikes"]).sum())
            for population in POPULATIONS
        }
        differing = [jax.tree_util.keystr(path) for path, equal in same if not equal]
        print(json.dumps({"arrangement": name, "leaves": len(same), "differing": differing, "spikes": spikes}))


if __name__ == "__main__":
    main()
