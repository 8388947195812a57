"""The Brain from its file, what is shown of it, and what its placement is worth."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.contract.placed_as_planned import blocks

import outlay
from outlay.analysis.parts.measure_parts import measure_parts
from outlay.brain.files.read_brain import read_brain
from outlay.graph.graph_loop import GraphLoop
from outlay.layout.strategies import by_rows

MODEL = Path(__file__).parents[1] / "data/example_ab_model.scfg"
PLACES = {"spiker": 0, "integrator": 1, "A_ex": 2, "A_in": 3, "B_ex": 4, "B_in": 5}
INPUTS = {"drive": np.sin(np.arange(40)[:, None] / 9 + np.arange(4)).astype(np.float32)}


@pytest.fixture(scope="module")
def brain():
    return read_brain(MODEL)


@pytest.fixture(scope="module")
def half(brain):
    """Without the populations B, which are as A are."""
    modules = {name: module for name, module in brain.modules.items() if not name.startswith("B_")}
    connections = [one for one in brain.connections if not {one.origin[:2], one.target[:2]} & {"B_"}]
    return dataclasses.replace(brain, modules=modules, connections=connections)


@pytest.fixture(scope="module")
def state(brain):
    return jax.jit(brain.init)(jax.random.key(0))


@pytest.fixture(scope="module")
def placed(brain):
    mesh = outlay.mesh(devices=jax.devices()[:6], modules=6)
    return outlay.program(
        GraphLoop(brain.graph), brain.init, INPUTS, layout=outlay.by_module(PLACES), mesh=mesh, mode="placed"
    )


@pytest.fixture(scope="module")
def explained(placed):
    return outlay.explain(placed)


@pytest.mark.processes
def test_six_simulated_devices() -> None:
    program = (
        "import outlay; outlay.simulate(6); import jax; print([d.id for d in jax.devices()], jax.default_backend())"
    )
    environment = {key: value for key, value in os.environ.items() if key not in ("XLA_FLAGS", "JAX_PLATFORMS")}
    environment["JAX_PLATFORM_NAME"] = "cpu"
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True, timeout=280
    )
    assert done.stdout.strip() == "[0, 1, 2, 3, 4, 5] cpu"


def test_the_model_is_loaded_from_its_file_and_takes_an_input_of_four_zeros(brain, state) -> None:
    assert {name: tuple(shape) for name, shape in brain.inputs.items()} == {"drive": (4,)}
    state, outputs = jax.jit(brain.step)(state, {"drive": jnp.zeros(4)})
    assert outputs["action"].shape == (2,)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state))


def test_the_tree(brain) -> None:
    tree = brain.inspect()
    types = {module.name: module.type for module in tree.modules}
    neurons = dict.fromkeys(("A_ex", "A_in", "B_ex", "B_in"), "Neuron")
    assert types == {"spiker": "TopologicalLinearSpiker", "integrator": "ExponentialIntegrator", **neurons}
    components = {
        "soma": "AdaptiveLeakySoma",
        "delays": "N2NDelays",
        "synapses": "LinearSynapses",
        "learning_rule": "ZenkeRule",
    }
    for module in tree.modules:
        if module.name in neurons:
            assert components.items() <= dict(module.components).items()
    assert all(name in str(tree) for name in (*types, *components.values()))


def test_by_default_everything_is_on_device_0(state) -> None:
    for leaf in jax.tree.leaves(state):
        assert blocks(leaf) == [[0]]
    assert state["A_ex"]["soma"]["potential"].shape == (256,)
    assert state["B_ex"]["synapses"]["kernel"].shape == (256, 832)
    assert {leaf.shape for leaf in state["integrator"]["trace"].values()} == {(2,)}
    assert state["cache"]["B_in"]["out_spikes"].shape == (64,)


def test_every_leaf_is_listed_by_its_path(brain, placed) -> None:
    state = jax.eval_shape(brain.init, jax.random.key(0))
    shown = str(outlay.show(placed.plan))
    paths = {leaf.path for leaf in placed.plan.state}
    assert len(paths) == len(jax.tree.leaves(state))
    assert {"A_ex.soma.potential", "B_ex.synapses.kernel", "integrator.trace.rise", "cache.B_in.out_spikes"} <= paths
    assert all(path in shown for path in paths)


def test_the_best_possible_gain_of_the_placement_is_printed(explained) -> None:
    assert explained.by_parts.best_gain == pytest.approx(
        explained.by_parts.work / max(part.cost for part in explained.by_parts.parts)
    )
    assert 2 < explained.by_parts.best_gain < 2.5
    assert f"can be faster than {explained.by_parts.best_gain:.1f}x one device (sum / max)" in str(explained)
    assert explained.by_parts["B_ex"].cost > 10 * explained.by_parts["spiker"].cost
    assert [part.devices for part in explained.by_parts.parts] == [
        (PLACES[part.name],) for part in explained.by_parts.parts
    ]


@pytest.mark.thorough  # test_measure.py measures parts, and the test below prices them
def test_the_cost_of_each_module_is_measured_and_shown(half) -> None:
    times = measure_parts(GraphLoop(half.graph), half.init, {"drive": INPUTS["drive"][:10]}, num_rounds=1)
    assert all(seconds > 0 for seconds in times.seconds.values())
    assert times.largest == max(times.seconds, key=times.seconds.__getitem__)
    assert times.best_gain == pytest.approx(times.sum / max(times.seconds.values()))
    headline, _, table = str(times).partition("\n")
    assert headline == "each part alone, measured on cpu, medians of 10 steps"
    assert all(name in table for name in half.modules)


def test_the_cache_is_shown_by_path(placed, explained) -> None:
    owners = {leaf.path: leaf.device_ids for leaf in placed.plan.state if leaf.path.startswith("cache.")}
    ports = {"spiker": "spikes", "integrator": "signal"}
    assert owners == {f"cache.{name}.{ports.get(name, 'out_spikes')}": (at,) for name, at in PLACES.items()}
    assert {one.path: one.owners for one in explained.by_parts.cached} == owners
    copies = {one.path: one.sent_to for one in explained.by_parts.cached}
    assert copies["cache.spiker.spikes"] == (2, 4)
    assert copies["cache.A_ex.out_spikes"] == (1, 3)
    assert copies["cache.integrator.signal"] == ()
    for text in (str(explained), str(outlay.show(placed.plan))):
        assert all(path in text for path in owners)


@pytest.mark.thorough  # test_by_rows.py counts the exchanges
@pytest.mark.any_jax
@pytest.mark.newest
def test_by_neuron_one_all_gather_a_step(half) -> None:
    mesh = outlay.mesh(devices=jax.devices()[:6], neurons=6)
    layout = by_rows("neurons")
    explained = outlay.explain(
        outlay.program(GraphLoop(half.graph), half.init, INPUTS, layout=layout, mesh=mesh, mode="manual")
    )
    (gather,) = [one for one in explained.collectives if one.count >= 40]
    assert (gather.kind, gather.count, gather.axes) == ("all-gather", 40, ("neurons",))
    # 43 + 11 neurons a device in words of 16, to five others.
    assert gather.bytes_moved == 4 * 5 * (3 + 1)
    assert "subgraph.py" in str(gather.source)
    assert any("a device sends 80 B in 1 collective" in note for note in explained.notes)
