"""`verify` of a graph whose part does not work on some rows as on all: the part is named."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
from tests.unit.program.waves import graph, init_of, inputs

import outlay
from outlay.graph.graph_loop import GraphLoop
from outlay.layout.strategies import by_rows


def test_a_part_that_draws_for_all_its_rows_at_once_is_named():
    whole = graph()
    plain = whole.parts["b"].step

    def noisy(state, read):
        after, produced = plain(state, read)
        noise = jax.random.normal(jax.random.key(0), after["height"].shape) * 0.1
        height = after["height"] + noise
        return {**after, "height": height}, {**produced, "height": jnp.asarray(height)}

    parts = {**whole.parts, "b": dataclasses.replace(whole.parts["b"], step=noisy)}
    step = GraphLoop(type(whole)(parts, whole.outputs))
    mesh = outlay.mesh(devices=jax.devices()[:2], n=2)
    program = outlay.program(step, init_of(step.graph), inputs(), layout=by_rows("n"), mesh=mesh, mode="manual")
    verification = outlay.verify(program, steps=1, batches=[inputs()])
    assert verification.verdict == "different"
    (cause,) = verification.causes
    assert cause.startswith("'b' is the first to differ, in step 1 of the graph loop, from the same state and inputs: ")
    assert "random numbers must be drawn for each row by the row's number" in cause
