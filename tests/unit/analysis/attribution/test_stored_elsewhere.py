"""What a step pays for memory that it does not take, by line and leaf."""

import functools

import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.program.test_storing import BATCH, NUM_LAYERS, WIDTH, program_of

import outlay
from outlay.analysis.hlo.hlo_memory import HostCopy, host_copy
from outlay.analysis.hlo.parse import parse_hlo
from outlay.core.quantities import format_bytes

pytestmark = pytest.mark.newest

COPIES = """HloModule m, is_scheduled=true, num_partitions=1

%p (a: f32[4,64], b: f32[1,64], i: s32[]) -> f32[4,64] {
  %a = f32[4,64]{1,0:S(5)} parameter(0)
  %b = f32[1,64]{1,0} parameter(1)
  %i = s32[] parameter(2)
  ROOT %new = f32[4,64]{1,0:S(5)} dynamic-update-slice(%a, %b, %i, %i)
}

ENTRY %main (p: f32[4,64], q: f32[1,64], n: s32[]) -> f32[4,64] {
  %p = f32[4,64]{1,0:S(5)} parameter(0)
  %q = f32[1,64]{1,0} parameter(1)
  %n = s32[] parameter(2)
  %fetch = (f32[4,64]{1,0}, f32[4,64]{1,0:S(5)}, u32[]) copy-start(%p)
  %fetched = f32[4,64]{1,0} copy-done(%fetch)
  %put = ((f32[4,64]{1,0:S(5)}, f32[1,64]{1,0}, s32[]), f32[4,64]{1,0:S(5)}, u32[]) fusion-start(%p, %q, %n), calls=%p
  %put-done = f32[4,64]{1,0:S(5)} fusion-done(%put)
  %part = ((f32[4,64]{1,0:S(5)}, s32[]), f32[1,64]{1,0}, u32[]) dynamic-slice-start(%put-done, %n)
  %scalar = (s32[]{:S(5)}, s32[], u32[]) copy-start(%n)
  ROOT %back = f32[4,64]{1,0:S(5)} copy(%fetched)
}
"""


def test_copies_are_known_by_the_memory_of_what_they_take_and_give():
    block = parse_hlo(COPIES).computations["main"]
    copies = {one.name: copy for one in block.instructions.values() if (copy := host_copy(one, block))}
    assert copies == {
        "fetch": HostCopy(to_host=False, num_bytes=1024),
        "put": HostCopy(to_host=True, num_bytes=256),
        "part": HostCopy(to_host=False, num_bytes=256),
        "back": HostCopy(to_host=True, num_bytes=1024),
    }


@functools.cache
def explained(*rules) -> outlay.report.Explanation:
    return outlay.explain(program_of(*rules))


@pytest.mark.any_jax
def test_products_that_are_computed_again_are_told_by_line():
    explanation = explained(("layer_input", outlay.layout.keep()))
    (again,) = explanation.recomputed
    assert (again.count, again.flops_per_step) == (NUM_LAYERS, NUM_LAYERS * 2 * 64 * WIDTH * WIDTH)
    assert again.source is not None
    assert again.source.function == "layer"
    assert "recomputed in the backward pass: 2.1 MFLOP" in str(explanation)
    section = (
        explanation.to_html().partition('aria-label="Recomputed in the backward pass"')[2].partition("</section>")[0]
    )
    assert "2.1 MFLOP a step" in section
    assert f"test_storing.py:{again.source.line}</code>" in section
    plain = explained()
    assert plain.recomputed == ()
    assert "Computed again" not in plain.to_html()


def test_state_on_the_host_is_no_memory_of_a_device():
    explanation = explained(("opt_state.**", outlay.layout.on_host()))
    moved, plain = explanation.memory, explained().memory
    assert moved is not None
    assert plain is not None
    assert (moved.optimizer, moved.on_host) == (0, plain.optimizer)
    assert moved.arguments + moved.on_host == plain.arguments
    assert moved.peak == plain.peak - moved.on_host
    assert "on its host 32.0 KiB: state 32.0 KiB" in str(explanation)


def test_state_on_the_host_comes_back_where_it_was_however_its_spec_is_written():
    """The compiler gives leaves that split the same dims one spec, without unsplit dims at its end: that is no move."""

    def step(state, batch):
        return {name: leaf + batch.mean() for name, leaf in state.items()}, {}

    def init(key):
        return {"flat": jnp.ones((4, 16)), "stacked": jnp.ones((4, 16, 2))}

    split = [("flat", P(None, "data")), ("stacked", P(None, "data", None)), ("batch", P("data"))]
    layout = outlay.Layout([("**", outlay.layout.on_host()), *split])
    mesh = outlay.mesh(data=8, target="h100:1x8")
    explanation = outlay.explain(outlay.program(step, init, np.ones(8, np.float32), layout=layout, mesh=mesh))
    assert "stacked" in {one.leaf for one in explanation.host_copies}
    assert not explanation.of_kind("state-moves")


@pytest.mark.compiles
def test_what_goes_to_the_host_of_a_gpu_is_told_by_leaf_and_line():
    mesh = outlay.mesh(data=8, target="h100:1x8")
    program = program_of(("layer_input", outlay.layout.on_host()), ("opt_state.**", outlay.layout.on_host()), mesh=mesh)
    explanation = outlay.explain(program)
    a_value = NUM_LAYERS * BATCH[:64].nbytes
    assert explanation.memory is not None
    assert explanation.memory.on_host - a_value == program.plan.host_bytes_per_device[0]
    assert explanation.memory.values_on_host == a_value
    moments = {f"opt_state.0.{moment}.{name}" for moment in ("mu", "nu") for name in ("up", "down")}
    for to_host in (True, False):
        copies = [one for one in explanation.host_copies if one.to_host is to_host]
        assert {one.leaf for one in copies} == {*moments, ""}
        (value,) = [one for one in copies if not one.leaf]
        assert (value.bytes_per_step, value.count) == (a_value, NUM_LAYERS)
        assert value.source is not None
        assert value.source.file.endswith("test_storing.py")
    assert not explanation.of_kind("state-moves")
    assert explanation.estimate is not None
    # The newest compiler has all of them run behind the step.
    assert explanation.estimate.parts["host"] + explanation.estimate.hidden > 0
    assert "copies to and from the host: 96.0 KiB a step to the host, 96.0 KiB back" in str(explanation)
    page = explanation.to_html()
    assert "96.0 KiB a step to the host, 96.0 KiB back" in page
    section = page.partition('aria-label="Copies to and from the host"')[2].partition("</section>")[0]
    assert section.count(">to the host</td>") == len([one for one in explanation.host_copies if one.to_host])
    assert f"on its host {format_bytes(explanation.memory.on_host)}: " in page
    assert explanation.to_dict()["host_copies"][0]["bytes_per_step"] == a_value
