"""A public wrong program, openxla/xla#49143: both proofs name the line, and the report the pass and the option."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_gpu_compiler

import outlay
from outlay.analysis.verify.as_compiled import compiled_proof
from outlay.analysis.verify.as_compiled.compiled_proof import CompiledProof
from outlay.analysis.verify.as_compiled.run_compiled import compute
from outlay.program.compiler_faults import known_faults

pytestmark = [
    pytest.mark.compiles,
    needs_gpu_compiler,
    pytest.mark.skipif(not known_faults(), reason="the compilers of this jaxlib have no known fault"),
]
NUM_ROWS, NUM_MICROBATCHES = 24, 2
BATCH = {
    "ids": np.random.default_rng(0).integers(0, NUM_ROWS, (16, 4)).astype(np.int32),
    "updates": np.random.default_rng(1).normal(size=(16, 4, 8)).astype(np.float32),
}


def add_rows(table, part):
    return table.at[part["ids"]].add(part["updates"]), None


def step(state, batch):
    """Rows that are added to a table over microbatches, as an embedding's gradient is."""
    parts = jax.tree.map(lambda x: x.reshape(-1, NUM_MICROBATCHES, *x.shape[1:]).swapaxes(0, 1), batch)
    total, _ = jax.lax.scan(add_rows, jnp.zeros_like(state["table"]), parts)
    return {"table": state["table"] - total}, {"sum": jnp.sum(total)}


@functools.cache
def program(options):
    return outlay.program(
        step,
        lambda key: {"table": jnp.zeros((NUM_ROWS, 8))},
        BATCH,
        layout=outlay.Layout([("table", P())]) + outlay.data_parallel(),
        mesh=outlay.mesh(data=4, target="h100:1x4"),
        compiler_options=options,
    )


LINE = f"test_known_fault.py:{add_rows.__code__.co_firstlineno + 1}"


def test_the_known_fault_is_found_statically():
    (fault,) = outlay.verify(program("none"), static=True).faults
    assert (fault.kind, fault.axis) == ("sum missing", "data")
    assert LINE in str(fault.source)
    assert fault.instruction.startswith("scatter ")


def test_the_preset_has_no_fault():
    verification = outlay.verify(program("preset"), static=True)
    assert (verification.verdict, verification.undecided) == ("no fault found", ())


def verified(monkeypatch, options):
    """The proof, computed in this process."""

    def here(job):
        with jax.enable_x64(True):
            return compute(job)

    monkeypatch.setattr(compiled_proof, "run_apart", here)
    return CompiledProof(program(options), 1, None, lambda stage: None).of(None, [BATCH])


def test_with_the_preset_it_is_the_same_and_the_report_says_what_was_left_out_and_why(monkeypatch):
    verification = verified(monkeypatch, "preset")
    assert verification.verdict == "same"
    assert "compiler options: without the pass while-loop-all-reduce-code-motion: sums over" in str(verification)


def test_the_report_names_the_line_the_pass_and_the_option(monkeypatch):
    verification = verified(monkeypatch, "none")
    assert verification.verdict == "different"
    line, blamed = verification.causes
    assert "sum missing over 'data': scatter %" in line
    assert LINE in line
    assert "pass while-loop-all-reduce-code-motion (openxla/xla#49143" in blamed
    assert "without it the program is right: compiler_options=" in blamed
