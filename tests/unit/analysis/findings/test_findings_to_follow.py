"""What a finding says to do can be done: its spec is written, a rule is offered, and cheap findings share a line."""

import functools
import json
import re
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.report.explain.programs import explained, named

import outlay
from outlay.analysis.findings.finding import Finding
from outlay.analysis.findings.findings import ranked
from outlay.analysis.findings.offered_rules import with_rules
from outlay.analysis.hlo.hlo_module import SourceLine

pytestmark = [pytest.mark.newest, pytest.mark.any_jax]  # test_findings.py has findings there

LINE = SourceLine("model.py", 73, "layer")


@functools.cache
def language_model():
    """A model whose activations the compiler splits as a rule splits the embedding."""

    def mlp(x, params):
        return jnp.tanh(x @ params["up"]) @ params["down"]

    def loss(params, tokens, keys):
        x = params["embed"][tokens]
        logits = (x + mlp(x, params)) @ params["embed"].T
        return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean(-1), {}

    optimizer, shapes = optax.sgd(0.1), {"embed": (128, 16), "up": (16, 64), "down": (64, 16)}
    return outlay.program(
        outlay.train_step(loss, optimizer),
        outlay.init_state(lambda key: {name: jnp.ones(shape) for name, shape in shapes.items()}, optimizer),
        np.zeros((64, 32), np.int32),
        mesh=outlay.mesh(data=8),
        layout=outlay.Layout([("params.embed", P(None, "data"))]) + outlay.fsdp(min_size=8) + outlay.data_parallel(),
    )


@functools.cache
def explanation():
    return outlay.explain(language_model())


@pytest.mark.any_jax
def test_the_offered_rule_works_when_it_is_pasted():
    program = language_model()
    fixes = [finding.fix for finding in explanation().findings]
    (written,) = {one for fix in fixes for one in re.findall(r'with the rule (\("@.*?", P\(.*?\)\)) first', fix)}
    pattern, spec = re.fullmatch(r'\("(@.*test_findings_to_follow.py:\d+)", P\(\'(\w+)\'\)\)', written).groups()
    pasted = program.with_layout(outlay.Layout([(pattern, P(spec))]) + program.layout)
    assert outlay.explain(pasted).bytes_per_step * 5 < explanation().bytes_per_step


@pytest.mark.any_jax
def test_no_rule_is_offered_that_the_program_refuses():
    program = language_model()
    line = explanation().findings[0].source
    too_many_dims = Finding("resharding", "x", "constrain it", 100, line, seconds=1.0, spec=P(*[None] * 9, "data"))
    assert with_rules([too_many_dims], program, 1.0) == (too_many_dims,)
    fitting = replace(too_many_dims, spec=P("data"))
    assert "with the rule" in with_rules([fitting], program, 1.0)[0].fix
    assert with_rules([fitting], program, 1000.0) == (fitting,)  # not worth a trace
    assert with_rules([fitting], None, 1.0) == (fitting,)


@pytest.mark.any_jax
def test_a_report_with_specs_in_its_findings_is_json():
    findings = json.loads(json.dumps(explanation().to_dict()))["findings"]
    assert "P('data')" in {finding["spec"] for finding in findings}


def test_a_value_that_is_gathered_and_cut_again_is_told_its_spec():
    def step(state, batch):
        whole = jax.lax.with_sharding_constraint(jnp.tanh(batch), P())
        return state, {"out": jax.lax.with_sharding_constraint(whole * 2, P(None, "data"))}

    program = outlay.program(
        step,
        lambda key: jnp.zeros(()),
        np.zeros((64, 64), np.float32),
        mesh=outlay.mesh(data=8),
        layout=outlay.Layout([("batch", P(None, "data")), ("**", outlay.replicate())]),
    )
    finding = named(outlay.explain(program))["resharding"]
    assert "outlay.constrain(x, P(None, 'data')), instead of P()" in finding.fix
    assert finding.seconds is not None


def test_operands_that_are_gathered_for_an_fft_are_named_with_line_and_bytes():
    def step(state, batch):
        return state, {"power": jnp.abs(jnp.fft.fft2(batch)).sum()}

    program = outlay.program(
        step,
        lambda key: jnp.zeros(()),
        np.zeros((64, 64), np.float32),
        mesh=outlay.mesh(data=8),
        layout=outlay.Layout([("batch", P("data")), ("**", outlay.replicate())]),
    )
    finding = named(outlay.explain(program))["gathered-operand"]
    assert re.search(
        r"operands of fft at \S+test_findings_to_follow.py:\d+ are gathered over data once a step", finding.text
    )
    assert finding.cost_bytes == 64 * 64 * 4 * 7 // 8
    assert "one dim at a time" in finding.fix


def test_no_finding_advises_the_layout_that_is_there():
    """A Gaussian process under data parallelism: all devices factorize one matrix, however the batch is split."""

    def step(state, batch):
        distances = (batch["x"][:, None] - batch["x"][None]) ** 2
        lower = jnp.linalg.cholesky(jnp.exp(-distances / state["scale"]) + 0.1 * jnp.eye(64))
        alpha = jax.scipy.linalg.solve_triangular(lower, batch["y"], lower=True)
        return state, {"fit": (alpha**2).sum()}

    batch = {"x": np.linspace(0, 1, 64, dtype=np.float32), "y": np.ones(64, np.float32)}
    layout = outlay.data_parallel() + outlay.Layout([("**", outlay.replicate())])
    program = outlay.program(step, lambda key: {"scale": jnp.ones(())}, batch, mesh=outlay.mesh(data=8), layout=layout)
    repeated = named(outlay.explain(program))["repeated-work"]
    assert "data_parallel" not in repeated.fix
    assert re.search(r"operands of cholesky at \S+test_findings_to_follow.py:\d+, the most of what", repeated.fix)


def test_findings_are_ranked_by_seconds_and_minor_ones_share_a_line():
    slow = Finding("gathered-batch", "slow and small", "do this", 1000, seconds=0.4)
    fast = Finding("gathered-batch", "fast and large", "do that", 2000, seconds=0.2)
    cheap = Finding("resharding", "cheap", "constrain it", 1_000_000, LINE, seconds=0.002)
    stored = Finding("whole-leaf", "stored", "split it", 5000)
    assert ranked([stored, cheap, fast, slow], 1.0) == (slow, fast, stored, cheap)
    explanation = explained()
    estimate = replace(explanation.estimate, parts={"memory": 1.0, "communication": 0.0}, seconds=1.0)
    text = " ".join(str(replace(explanation, findings=(slow, fast, stored, cheap), estimate=estimate)).split())
    assert "1. gathered-batch: slow and small" in text
    assert "and 1 that each cost less than 1% of the step: resharding at model.py:73" in text
    alone = " ".join(str(replace(explanation, findings=(cheap,), estimate=estimate)).split())
    assert "1 that each cost less than 1% of the step" in alone
    assert "constrain it" not in alone


def test_many_values_of_one_line_are_one_finding():
    one = Finding("resharding", "x is gathered, 100 B a step", "constrain it", 100, LINE, seconds=0.1)
    other = replace(one, text="y is gathered, 200 B a step", cost_bytes=200, seconds=0.2)
    elsewhere = replace(one, source=replace(LINE, line=74))
    (joined, alone) = ranked([one, other, other, elsewhere])
    assert joined.text == "y is gathered, 200 B a step; and 2 other values there, 500 B in all"
    assert (joined.num_alike, joined.cost_bytes, joined.seconds) == (3, 500, pytest.approx(0.5))
    assert alone == elsewhere


def test_a_convolution_outside_of_fp8_is_no_function_to_rewrite():
    def step(state, batch):
        def loss(w):
            return jnp.mean(jax.lax.conv(batch, w["conv"], (1,), "SAME") @ w["dense"])

        return jax.tree.map(jnp.subtract, state, jax.grad(loss)(state)), None

    state, batch = {"conv": jnp.ones((16, 24, 3)), "dense": jnp.ones((160, 4))}, np.ones((16, 24, 160), np.float32)
    layout = outlay.Layout([("*", outlay.layout.fp8())]) + outlay.data_parallel()
    program = outlay.program(step, lambda key: state, batch, layout=layout, mesh=outlay.mesh(data=8))
    assert re.search(rf"as it was, in a convolution: {__file__}:\d+", program.fp8)
    (finding,) = outlay.explain(program).of_kind("not-in-fp8")
    assert re.search(rf"a convolution stays in the model's dtype: {__file__}:\d+", finding.text)
    assert "custom_vjp" not in finding.fix
