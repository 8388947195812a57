"""What a step's time means is computed from the batch, the products and the target."""

import re
from dataclasses import replace
from importlib import metadata

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay.analysis.attribution.program_facts import RecomputedFacts
from outlay.core.error_types import TargetError
from outlay.devices.target import Target
from outlay.report.explain.throughput import throughput_of

DEVICES, TOKENS, WIDTH = 8, 64 * 16, 32


@pytest.fixture(scope="module")
def program():
    def step(state, batch):
        x = jax.nn.one_hot(batch["tokens"], WIDTH, dtype=jnp.float32)
        return {"w": state["w"] - 0.1 * jnp.einsum("btw,btv->wv", x, x @ state["w"])}, {}

    batch = {"tokens": np.zeros((64, 16), np.int32)}

    def init(key):
        return {"w": jnp.ones((WIDTH, WIDTH))}

    return outlay.program(step, init, batch, layout=outlay.data_parallel(), mesh=outlay.mesh(data=DEVICES))


def test_a_batch_of_tokens_is_counted_in_tokens(program):
    facts = outlay.explain(program, target="h100:1x8", cache=False)
    estimate, work, target = facts.estimate, facts.work, facts.target
    speed = facts.throughput
    assert speed.unit == "tokens"
    assert speed.per_second == pytest.approx(TOKENS / estimate.seconds)
    assert speed.per_device == pytest.approx(speed.per_second / DEVICES)
    assert speed.hours_per_billion == pytest.approx(1e9 / speed.per_second * DEVICES / 3600)
    assert speed.hfu == pytest.approx(work.flops_compiled / estimate.seconds / target.hardware.peak_flops["tf32"])
    again = [RecomputedFacts("", None, 1, work.flops_compiled / 4)]
    assert throughput_of(program.plan, estimate, target, work, again).mfu == pytest.approx(0.75 * speed.hfu)
    text = str(replace(facts, asked="outlay explain lm --model tiny"))
    assert "\noutlay explain lm --model tiny\n" in text
    assert re.search(r"\n[\d,.]+ tokens/s, [\d,.]+ a device; MFU", text), "digits, and no power of ten"
    assert speed.per_second > 1e5
    assert "device hours for a billion tokens" in facts.to_html()


def test_a_sentence_says_what_was_priced(program):
    """In Python too, where there is no command, and of a command that leaves its options as they are."""
    facts = outlay.explain(program, target="h100:1x8", cache=False)
    size = "64 sequences of 16 tokens a step, layout data_parallel"
    of = f"(outlay {metadata.version('outlay')}, jax {jax.__version__})"
    assert f"priced: {size}, no product computed again {of}" in " ".join(str(facts).split())
    assert f"priced: {size}, no product computed again {of}" in facts.to_html()
    again = [RecomputedFacts("", None, 1, facts.work.flops_compiled / 4)]
    assert "25% of the products computed again" in " ".join(str(replace(facts, recomputed=tuple(again))).split())


def test_the_page_says_too_that_it_may_not_fit(program):
    facts = outlay.explain(program, target="h100:1x8", cache=False)
    tight = replace(facts, memory=replace(facts.memory, needed=facts.memory.pool + 2**30))
    for one, verdict, style in ((facts, "fits", "good"), (tight, "may not fit", "warning")):
        assert f"\n{verdict}: peak" in str(one)
        assert f'<span class="chip {style}">{verdict}</span>' in one.to_html()


def test_each_axis_has_its_threshold():
    """Sums of gradients take as long for few tokens as for many; this tiny step would need many to hide them."""

    def loss(params, batch, keys):
        return (jax.nn.one_hot(batch["tokens"], WIDTH) @ params["w"]).mean((1, 2)), {}

    optimizer = optax.sgd(0.1)
    init = outlay.init_state(lambda key: {"w": jnp.ones((WIDTH, WIDTH))}, optimizer)
    step, batch = outlay.train_step(loss, optimizer), {"tokens": np.zeros((64, 16), np.int32)}
    program = outlay.program(step, init, batch, layout=outlay.data_parallel(), mesh=outlay.mesh(data=DEVICES))
    facts = outlay.explain(program, target="h100:1x8", cache=False)
    (one,) = facts.to_dict()["thresholds"]
    assert (one["axes"], one["num_now"]) == ("data", pytest.approx(TOKENS / DEVICES))
    assert one["fixed_seconds"] > one["compute_seconds"]
    words = f"longer than computing below {one['num_needed']:,} tokens a device ({TOKENS // DEVICES} now)"
    assert one["num_needed"] > TOKENS // DEVICES
    assert words in " ".join(str(facts).split())


def test_hours_cost_what_the_users_file_says_that_a_device_costs(program, tmp_path, monkeypatch):
    hours = outlay.explain(program, target="h100:1x8", cache=False).throughput
    assert hours.price_per_billion == ""
    monkeypatch.setenv("OUTLAY_TARGETS", str(tmp_path / "targets.toml"))
    (tmp_path / "targets.toml").write_text('[h100]\nprice_per_hour = "2.5 USD"\n')
    facts = outlay.explain(program, target="h100:1x8", cache=False)
    assert facts.throughput.price_per_billion == f"{2.5 * hours.hours_per_billion:,.4g} USD"
    assert f"device hours ({facts.throughput.price_per_billion}) for a billion tokens" in " ".join(str(facts).split())


@pytest.mark.parametrize("price", ["2.5", '"2.5"', '"2.5 dollars"', '"-1 USD"', '"USD 2.5"'])
def test_a_price_needs_an_amount_and_a_currency(price, tmp_path, monkeypatch):
    monkeypatch.setenv("OUTLAY_TARGETS", str(tmp_path / "targets.toml"))
    (tmp_path / "targets.toml").write_text(f"[h100]\nprice_per_hour = {price}\n")
    with pytest.raises(TargetError, match=r'price_per_hour must be an amount and a currency, such as "2.5 USD"'):
        Target.parse("h100:1x8")


def test_without_hardware_there_is_no_share_of_its_peak(program):
    assert outlay.explain(program, cache=False).throughput.mfu is None
