"""What is gathered because it is indexed along its split dim is told so, and the advice moves fewer bytes."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import outlay

pytestmark = [pytest.mark.newest, pytest.mark.any_jax]  # test_findings.py has findings there
BATCH = np.random.default_rng(0).normal(size=(64, 256)).astype(np.float32)
GATHERED = BATCH.nbytes * 7 // 8


def explained(step, target=None):
    layout = outlay.Layout([("**", outlay.replicate()), ("batch", P("data")), ("outputs.**", P("data"))])
    program = outlay.program(
        step, lambda key: {}, BATCH, layout=layout, mesh=outlay.mesh(data=8, target=target or "cpu:8")
    )
    return outlay.explain(program)


def shuffled(state, x):
    return state, {"y": x[jnp.argsort(x.sum(1))]}


def neighbours(state, x):
    near = (jnp.abs(x[:, :8]) * 9).astype(jnp.int32) % len(x)
    return state, {"y": x[near].sum(1)}


def in_a_loop(state, x):
    parent = (jnp.abs(x[:, 0]) * 9).astype(jnp.int32) % len(x)
    return state, {"y": jax.lax.fori_loop(0, 4, lambda _, y: y[parent] / 2, x)}


@pytest.mark.parametrize(
    ("step", "num_bytes", "times"),
    [(shuffled, GATHERED, "once"), (neighbours, GATHERED, "once"), (in_a_loop, 4 * GATHERED, "4 times")],
)
def test_a_gathered_operand_is_named_with_line_and_bytes(step, num_bytes, times):
    findings = [finding for finding in explained(step).findings if finding.cost_bytes >= GATHERED]
    (finding,) = findings  # and none that advises the split that is there
    assert finding.kind == "indexed-operand"
    assert finding.cost_bytes == num_bytes
    assert re.search(rf"gathered over data at \S+test_indexed_operands.py:\d+ {times} a step", finding.text)
    assert "outlay.constrain(x, P(None, 'data'))" in finding.fix


def test_the_advice_moves_fewer_bytes():
    def step(state, x):
        return state, {"y": outlay.constrain(x, P(None, "data"))[jnp.argsort(x.sum(1))]}

    report = explained(step)
    assert "indexed-operand" not in [finding.kind for finding in report.findings]
    assert report.bytes_per_step < explained(shuffled).bytes_per_step / 3


def test_an_index_along_a_whole_dim_is_none():
    report = explained(lambda state, x: (state, {"y": jnp.take_along_axis(x, x.argmax(1)[:, None], 1)}))
    assert not report.findings
