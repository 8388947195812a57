"""Faults planted in a compiled program that exchanges with neighbours and keeps its loops: both proofs find them."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.unit.analysis.verify.as_compiled import test_planted
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay
from outlay.analysis.verify.as_compiled import compiled_proof
from outlay.analysis.verify.as_compiled.compiled_proof import CompiledProof
from outlay.analysis.verify.as_compiled.run_compiled import compute
from outlay.analysis.verify.static import static_proof
from outlay.core.jax_compat import text_with_constants

pytestmark = [pytest.mark.compiles, needs_gpu_compiler]
NUM_LAYERS = 5


def init(key):
    return {"layers": jax.random.normal(key, (NUM_LAYERS, 16, 16)) / 4}


def step(params, batch):
    """Layers in a loop, over rows that each get something of the row before, which may be a neighbour's."""

    def loss(params):
        x = batch["x"] + 0.5 * jnp.roll(batch["x"], 1, axis=0)
        h, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), x, params["layers"])
        return jnp.mean((h - batch["y"]) ** 2)

    value, grads = jax.value_and_grad(loss)(params)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), {"loss": value}


@functools.cache
def program():
    rng = np.random.default_rng(0)
    batch = {name: rng.normal(size=(16, 16)).astype(np.float32) for name in ("x", "y")}
    mesh = outlay.mesh(data=4, target="h100:1x4")
    return outlay.program(step, init, batch, layout=outlay.data_parallel(), mesh=mesh), batch


@functools.cache
def text():
    return text_with_constants(program()[0].compiled)


def changed_once(old, new):
    assert old in text()
    return text().replace(old, new, 1)


def one_round_less():
    """The text whose first loop ends a round early."""
    condition = next(line for line in text().splitlines() if f"s32[] constant({NUM_LAYERS})" in line)
    return changed_once(condition, condition.replace(f"constant({NUM_LAYERS})", f"constant({NUM_LAYERS - 1})"))


PLANTED = {
    "two devices send to each other's neighbour": lambda: changed_once(
        "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}", "source_target_pairs={{0,1},{1,3},{2,2},{3,0}}"
    ),
    "nobody sends to one device": lambda: changed_once(
        "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}", "source_target_pairs={{0,1},{2,3},{3,0}}"
    ),
    "all send to the neighbour's neighbour": lambda: changed_once(
        "source_target_pairs={{0,1},{1,2},{2,3},{3,0}}", "source_target_pairs={{0,2},{1,3},{2,0},{3,1}}"
    ),
    "a round of a loop left out": one_round_less,
}
SEEN_STATICALLY = {  # that all send too far shows in numbers alone
    "nobody sends to one device": ("numbers of devices", "data"),
    "two devices send to each other's neighbour": ("numbers of devices", "data"),
    "a round of a loop left out": ("rounds of a loop", ""),
}


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("name", ["none", *PLANTED])
def test_a_fault_in_the_text_is_called_different(monkeypatch, name):
    changed = PLANTED[name]() if name in PLANTED else text()

    def here(job):
        with jax.enable_x64(True):
            return compute(job)

    monkeypatch.setattr(compiled_proof, "text_with_constants", lambda compiled: changed)
    monkeypatch.setattr(compiled_proof, "run_apart", here)
    monkeypatch.setattr(compiled_proof, "known_faults", tuple)
    own, batch = program()
    verification = CompiledProof(own, 1, None, lambda stage: None, seconds_for_passes=0).of(None, [batch])
    assert verification.verdict == ("different" if name in PLANTED else "same"), str(verification)
    assert bool(verification.causes) == (name in SEEN_STATICALLY)
    assert all("test_planted_in_loops.py:" in cause for cause in verification.causes)


@pytest.mark.parametrize("name", ["none", *PLANTED])
def test_a_planted_fault_is_found_statically(monkeypatch, name):
    changed = PLANTED[name]() if name in PLANTED else text()
    monkeypatch.setattr(static_proof, "text_with_constants", lambda compiled: changed)
    verification = outlay.verify(program()[0], static=True)
    seen = [(fault.kind, fault.axis) for fault in verification.faults]
    assert seen == ([SEEN_STATICALLY[name]] if name in SEEN_STATICALLY else []), str(verification)
    assert all("test_planted_in_loops.py" in str(fault.source) for fault in verification.faults)


def test_most_faults_are_found_without_computing():
    """Of all that are planted here and in `test_planted`, each of which both tests try."""
    planted, seen = {**PLANTED, **test_planted.PLANTED}, {**SEEN_STATICALLY, **test_planted.SEEN_STATICALLY}
    assert len(planted) >= 20
    assert len(seen) >= 15
    assert set(seen) < set(planted)
