"""The recorded Brain on one device and laid out: `python brain_arrangements.py` prints what differs.

A program of its own, since it must be compiled as users compile it: without what makes tests quick, which rounds
otherwise in one place than in another.
"""

import functools
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))
import jax
import numpy as np
from tests.contract.ab_reference import POPULATIONS, ab_brain, recorded, recorded_start

import outlay

MODULES = {"spiker": 0, "integrator": 1, "A_ex": 2, "A_in": 3, "B_ex": 4, "B_in": 5}
NUM_STEPS = 100


@functools.cache
def model():
    return ab_brain()


def drive() -> dict[str, np.ndarray]:
    return {"drive": np.asarray(recorded()["drive"][:NUM_STEPS], np.float32)}


def program(layout, num_devices, axis, mode):
    spikes = (*(f"{name}:out_spikes" for name in POPULATIONS), "spiker:spikes")
    graph_loop = outlay.graph.GraphLoop(model().graph, record=(*spikes, "A_ex.soma.potential"))
    mesh = outlay.mesh(f"{axis}={num_devices}", devices=jax.devices()[:num_devices])
    start = functools.partial(recorded_start, model(), recorded())
    return outlay.program(graph_loop, lambda key: start(), drive(), layout=layout, mesh=mesh, mode=mode)


def run(program):
    state, outputs = program(program.init(jax.random.key(0)), drive())
    return jax.device_get((program.crop(state), outputs))


def main() -> None:
    outlay.simulate(6)
    everywhere = [("**", jax.sharding.PartitionSpec()), ("batch.**", jax.sharding.PartitionSpec())]
    alone = run(program(everywhere, 1, "all", "auto"))
    arrangements = {
        "by module": (outlay.by_module(MODULES), 6, "all", "placed"),
        "mixed": (outlay.by_module(MODULES | {"A_ex": [1, 2], "B_ex": [3, 4, 5]}), 6, "all", "placed"),
        "by neuron over 6": (outlay.layout.by_rows("neurons"), 6, "neurons", "manual"),
    }
    for name, arrangement in arrangements.items():
        laid_out = run(program(*arrangement))
        same = jax.tree_util.tree_leaves_with_path(jax.tree.map(np.array_equal, laid_out, alone))
        spikes = {
            population: int(np.abs(laid_out[1]["recorded"][f"{population}:out_spikes"]).sum())
            for population in POPULATIONS
        }
        differing = [jax.tree_util.keystr(path) for path, equal in same if not equal]
        print(json.dumps({"arrangement": name, "leaves": len(same), "differing": differing, "spikes": spikes}))


if __name__ == "__main__":
    main()
