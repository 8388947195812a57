"""Each finding, provoked for real, and absent where the program is good."""

from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.report.explain.programs import (
    WIDTH,
    explain_on,
    explained,
    line_of,
    named,
    programs_file,
    shape,
    squared_error,
    training,
)

from outlay.analysis.attribution.program_facts import CollectiveFacts
from outlay.analysis.findings.communication import _exchanged_twice
from outlay.analysis.findings.finding import Evidence, Finding
from outlay.analysis.findings.findings import _with_what_they_cause, ranked
from outlay.analysis.hlo.hlo_module import HloModule, SourceLine
from outlay.core.constrain import constrain
from outlay.devices.build import mesh
from outlay.layout.contexts import context
from outlay.layout.layout import Layout
from outlay.layout.placement import replicate
from outlay.layout.strategies import data_parallel, fsdp
from outlay.models.attention.dot_product import attention
from outlay.program.make import program
from outlay.report.explain.explain import explain

pytestmark = pytest.mark.newest

NOTHING = {}


@pytest.mark.parametrize("layout", [None, data_parallel()])
def test_a_good_program_has_none(layout):
    assert named(explained(layout)) == NOTHING


def placed(x, *spec):
    return jax.lax.with_sharding_constraint(x, jax.NamedSharding(mesh(data=4, model=2), P(*spec)))


def test_exchanged_and_back():
    def there_and_back(x):
        x = placed(jnp.tanh(x), ("data", "model"), None)
        x = placed(jnp.sin(x), None, ("data", "model"))  # there
        x = placed(jnp.cos(x), ("data", "model"), None)  # and back
        return x.sum()

    findings = named(explain_on(mesh(data=4, model=2), there_and_back, ((64, 64), P(("data", "model")))))
    assert list(findings) == ["resharding"]
    assert "by all-to-all over data+model" in findings["resharding"].text
    assert "3.5 KiB a step" in findings["resharding"].text
    assert findings["resharding"].cost_bytes == 2 * 64 * 8 * 4 * 7 // 8


@pytest.mark.any_jax
def test_an_exchange_with_a_product_between_is_none():
    def used_in_between(x, w):
        x = placed(jnp.tanh(x), ("data", "model"), None)
        x = placed(x, None, ("data", "model"))
        x = placed(jnp.einsum("ij,ik->ikj", x, w).sum(1), None, ("data", "model"))
        return placed(x, ("data", "model"), None).sum()

    on = mesh(data=4, model=2)
    explanation = explain_on(on, used_in_between, ((64, 64), P(("data", "model"))), ((64, 64), P()))
    assert "all-to-all" in explanation.by_kind()
    assert "resharding" not in named(explanation)


def test_gathered_and_cut_up_again():
    def gathers(x, w):
        x = placed(x @ w, ("data", "model"), None)
        x = placed(jnp.sin(x), None, None)
        return (placed(jnp.cos(x), ("data", "model"), None) @ w).sum()

    on = mesh(data=4, model=2)
    findings = named(explain_on(on, gathers, ((64, 64), P(("data", "model"))), ((64, 64), P())))
    assert list(findings) == ["resharding"]
    assert "every use cuts a device's own piece out of it again: 14.0 KiB a step" in findings["resharding"].text


@pytest.mark.any_jax
def test_a_whole_parameter_outside_fsdp():
    def gathering(params, batch, keys):
        params = {**params, "w0": constrain(params["w0"], P())}
        return squared_error(params, batch, keys)

    layout = Layout([("params.w0", P(None, "model"))]) + fsdp(min_size=8) + data_parallel()
    explanation = explain(training(layout, loss=gathering, on=mesh(data=4, model=2)))
    finding = named(explanation)["whole-parameter-gather"]
    assert "params.w0 is split as P('data', 'model') by rule 1. params.w0; 2. **, but gathered over" in finding.text
    assert "model" in finding.text.partition("gathered over")[2]
    assert "params.w1" not in str(explanation.of_kind("whole-parameter-gather"))  # that is FSDP's


def test_all_to_all_under_plain_fsdp():
    # With few samples the compiler rather exchanges activations than gathers weights.
    explanation = explained(batch_size=16)
    finding = named(explanation)["all-to-all-in-fsdp"]
    assert finding.source.line == line_of("# the line of every product", programs_file)
    assert finding.cost_bytes == sum(one.bytes_per_step for one in explanation.collectives if one.kind == "all-to-all")
    assert "outlay.constrain(x, P('data'))" in finding.fix


@pytest.mark.any_jax
def test_heads_that_attention_exchanges_for_tokens_are_no_finding():
    def step(state, x):
        heads = (x @ state["w"]).reshape(*x.shape[:2], 4, -1)
        return state, attention(heads, heads, heads, causal=True).mean()

    rules = [("@attention", context("context", "all_to_all")), ("batch", P("data", "context"))]
    layout, on = Layout(rules) + fsdp(("data", "context"), min_size=8), mesh(data=4, context=2)
    explanation = explain(program(step, lambda key: {"w": jnp.eye(64)}, shape(8, 32, 64), layout=layout, mesh=on))
    assert "all-to-all" in explanation.by_kind()
    assert "all-to-all-in-fsdp" not in named(explanation)


@pytest.mark.any_jax
@pytest.mark.compiles
def test_the_fix_of_all_to_all_works():
    def constrained(params, batch, keys):
        x = batch["x"]
        for number in range(2):
            x = constrain(jnp.tanh(x @ params[f"w{number}"]), P("data"))
        return ((x - batch["y"]) ** 2).mean(-1), {}

    assert "all-to-all-in-fsdp" in named(explained(batch_size=16))
    assert "all-to-all-in-fsdp" not in named(explain(training(batch_size=16, loss=constrained)))


def test_a_gathered_batch():
    def everybody_takes_all(params, batch, keys):
        return squared_error(params, {**batch, "x": constrain(batch["x"], P())}, keys)

    findings = named(explain(training(data_parallel(), loss=everybody_takes_all)))
    assert "batch.x is gathered" in findings["gathered-batch"].text
    assert findings["gathered-batch"].cost_bytes == 512 * WIDTH * 4 * 7 // 8


def test_devices_that_repeat_one_another():
    layout = Layout([("**", P()), ("batch.**", P())])
    findings = named(explained(layout))
    assert "times its share" in findings["repeated-work"].text
    assert "8 of 8 devices" in findings["repeated-work"].text


@pytest.mark.any_jax
def test_a_leaf_that_stays_whole():
    layout = Layout([("params.w0", replicate())]) + fsdp(min_size=8) + data_parallel()
    explanation = explained(layout)
    texts = [finding.text for finding in explanation.of_kind("replicated")]
    assert len(texts) == 2
    assert any(
        text.startswith("params.w0 is replicated on all 8 devices: 16.0 KiB each, 44% of the state") for text in texts
    )


def test_a_constant_in_the_program():
    table = np.arange(600 * 600, dtype=np.float32).reshape(600, 600) % 7

    def looks_up(x):
        return (x @ table).sum(0)

    (finding,) = explain_on(mesh(data=8), looks_up, ((600, 600), P("data"))).of_kind("replicated")
    assert finding.cost_bytes == table.nbytes
    assert "a constant f32[600, 600] of 1.4 MiB" in finding.text


def update(state, x):
    return {"w": state["w"] + x.mean()}, x.mean()


def test_state_that_is_not_donated():
    on = mesh(data=8)
    state, x = {"w": shape(64, 64, on=on, spec=P("data"))}, shape(64, on=on, spec=P("data"))
    placements = jax.NamedSharding(on, P("data")), jax.NamedSharding(on, P())
    lazy = explain(jax.jit(update, out_shardings=placements), state, x)
    assert named(lazy)["donation"].text.endswith("not donated: 2.0 KiB held twice")
    good = explain(jax.jit(update, donate_argnums=0, out_shardings=placements), state, x)
    assert named(good) == NOTHING


def test_donation_in_vain():
    def narrows(state, x):
        return {"w": (state["w"] + x.mean()).astype(jnp.bfloat16)}, x.mean()

    on = mesh(data=8)
    state, x = {"w": shape(64, 64, on=on, spec=P("data"))}, shape(64, on=on, spec=P("data"))
    finding = named(explain(jax.jit(narrows, donate_argnums=0), state, x))["donation"]
    assert finding.text == "the memory of 1 donated leaf is not reused, 2.0 KiB: state.w"


def test_state_that_moves():
    on = mesh(data=8)
    state, x = {"w": shape(64, 64, on=on, spec=P("data"))}, shape(64, on=on, spec=P("data"))
    moved = {"w": jax.NamedSharding(on, P(None, "data"))}, jax.NamedSharding(on, P())
    findings = named(explain(jax.jit(update, donate_argnums=0, out_shardings=moved), state, x))
    assert "w P('data',) -> P(None, 'data')" in findings["state-moves"].text
    assert findings["state-moves"].cost_bytes == 64 * 64 * 4 // 8


@pytest.mark.any_jax
def test_a_function_that_is_no_step_has_no_state():
    explanation = explain_on(mesh(data=8), jnp.tanh, ((64, 64), P("data")))
    assert named(explanation) == NOTHING


@pytest.mark.any_jax
def test_findings_are_ranked():
    explanation = explained(Layout([("**", P()), ("batch.**", P())]))
    costs = [finding.cost_bytes for finding in explanation.findings]
    assert costs == sorted(costs, reverse=True)


@pytest.mark.any_jax
def test_findings_in_the_same_words_are_merged():
    finding, other = (
        Finding("resharding", "x is gathered", "constrain it", 448),
        Finding("donation", "y", "donate", 500),
    )
    both = replace(finding, num_alike=2, cost_bytes=896)
    assert ranked([finding, other, finding]) == (both, other)
    explanation = replace(explained(), findings=(both, other))
    assert "1. resharding, twice: x is gathered" in str(explanation)
    assert "2. donation: y" in str(explanation)
    assert "resharding, twice" in explanation.to_html()


@pytest.mark.any_jax
def test_cheap_findings_share_a_line():
    dear, cheap = Finding("donation", "y", "donate", 90_000), Finding("resharding", "x", "constrain it", 896)
    text = str(replace(explained(), findings=(dear, cheap)))
    assert "findings: 2" in text
    assert "1. donation: y" in text
    assert "and 1 that each cost less than 1% of the first: resharding (896 B)" in text
    assert "constrain it" not in text
    assert "2. resharding: x" in str(replace(explained(), findings=(dear, replace(cheap, cost_bytes=900))))


def of_samples(inside):
    """A layer under vmap, as every Equinox model is, that constrains its hidden values in terms of one sample."""

    def step(state, x):
        def one(x):
            return jnp.tanh(constrain(x @ state["w"], inside)) @ state["v"]

        return state, {"mean": jax.vmap(one)(x).mean()}

    def init(key):
        return {"w": jax.random.normal(key, (64, 64)), "v": jax.random.normal(key, (64, 64))}

    layout = fsdp(min_size=8) + data_parallel()
    return explain(program(step, init, shape(32, 64), layout=layout, mesh=mesh(data=8)))


@pytest.mark.any_jax
def test_inside_vmap_a_fix_speaks_of_one_sample_and_fixes():
    findings = [one for one in of_samples(P("data")).findings if one.kind in ("gathered-batch", "all-to-all-in-fsdp")]
    assert findings
    for one in findings:
        assert "inside jax.vmap, where a spec is for one sample: constrain what vmap returns" in one.fix
        assert "inside it outlay.constrain(x, P())" in one.fix
    assert not of_samples(P()).findings


@pytest.mark.any_jax
def test_a_constraint_is_taken_away_only_where_there_is_one():
    """Two values that are exchanged and exchanged back: by a constraint in between, or by the compiler's own choice."""
    there, back = (
        CollectiveFacts(
            *("all-to-all", "a", ("data",), 8, None, "f32", 64, 56, 1, True, False, "forward", ""),
            *(SourceLine(__file__, line, "f"), (), "a value"),
        )
        for line in (1, 2)
    )
    evidence = Evidence(HloModule("m", 8, True, {}, "main"), (), (), None, None, None, None, None)
    assert "remove the constraint" not in _exchanged_twice(evidence, there, back).fix
    lines = Path(__file__).read_text().splitlines()
    where = 1 + next(number for number, line in enumerate(lines) if "jnp.tanh(constrain(" in line)
    there = replace(there, source=SourceLine(__file__, where, "f"))
    assert f"remove the constraint at {there.source}" in _exchanged_twice(evidence, there, back).fix


@pytest.mark.any_jax
def test_a_finding_costs_what_it_causes():
    small = Finding("gathered-batch", "the batch is gathered", "constrain it", 1000)
    large = Finding("repeated-work", "devices repeat work", "split the batch", 10**9)
    other = Finding("resharding", "a detour", "one spec", 2000)
    ranking = ranked(_with_what_they_cause([other, small, large]))
    assert [(one.kind, one.cost_bytes) for one in ranking[:2]] == [("gathered-batch", 10**9), ("repeated-work", 10**9)]
    assert ranked(_with_what_they_cause([other, small]))[0].kind == "resharding"


@pytest.mark.any_jax
@pytest.mark.compiles
def test_attention_without_its_fused_kernel():
    """One finding for all of its operations, forward and backward, at the line that asked for it."""
    query = jax.ShapeDtypeStruct((8, 64, 2, 16), jnp.float32)

    def step(scale, batch):
        def loss(scale):
            return attention(scale * batch, batch, batch, causal=True).sum()

        value, grad = jax.value_and_grad(loss)(scale)
        return scale - grad, value

    def explained(dtype):
        batch = query.update(dtype=dtype)
        on = mesh(data=8, target="h100:1x8")
        return explain(program(step, lambda key: jnp.ones((), dtype), batch, layout=data_parallel(), mesh=on))

    with pytest.warns(UserWarning, match="block by block"):
        without = explained(jnp.float32)
    (finding,) = without.of_kind("unfused-attention")
    assert "the cuDNN kernel needs bfloat16 or float16, not float32" in finding.text
    assert "cast queries, keys and values to jnp.bfloat16" in finding.fix
    assert finding.source.function.endswith("loss")
    assert "no_kernel" not in str(without)
    assert not explained(jnp.bfloat16).of_kind("unfused-attention")
