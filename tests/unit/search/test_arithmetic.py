"""What is ruled out and what is expected, for a model small enough to count by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay.analysis.cost.constants import constants_of, product_speed
from outlay.analysis.cost.links import collective_seconds
from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target
from outlay.layout.layout import Layout
from outlay.layout.pipelines import pipeline
from outlay.layout.strategies import data_parallel, fsdp, tensor_parallel, zero2
from outlay.search.analytic_cost import expect
from outlay.search.candidate import Candidate
from outlay.search.placed_work import Stages, certain_bytes
from outlay.search.screening import Rejected, plan_of, screen
from outlay.search.workload import Workload, workload

NUM_LAYERS, WIDTH, BATCH = 3, 16, 64
WHOLE = NUM_LAYERS * WIDTH * WIDTH * 4  # bytes of the parameters
TARGET = Target.parse("h100:4x2")
EIGHT = MeshSpec.parse("data=8")


def loss(params, batch, keys):
    hidden, _ = jax.lax.scan(lambda h, w: (jnp.tanh(h @ w), None), batch["x"], params["w"])
    return hidden.sum(-1), {}


def worked(microbatches: int = 1, samples: int = BATCH) -> Workload:
    optimizer = optax.sgd(0.1)
    return workload(
        outlay.train_step(loss, optimizer, accumulate=microbatches),
        outlay.init_state(lambda key: {"w": jax.random.normal(key, (NUM_LAYERS, WIDTH, WIDTH))}, optimizer),
        {"x": np.zeros((samples, WIDTH), np.float32)},
        EIGHT,
        microbatches=microbatches,
    )


@pytest.fixture(scope="module")
def work() -> Workload:
    return worked()


def expected(work: Workload, layout: Layout, mesh: MeshSpec = EIGHT):
    return expect(work, plan_of(work, layout, mesh, TARGET), TARGET, layout)


def held(work: Workload) -> int:
    """Bytes of activations on all devices together: each layer's input and what `tanh` keeps, and what is at work."""
    layers = work.layers
    assert layers.residuals.between == 3 * NUM_LAYERS * BATCH * WIDTH * 4
    return sum(part.between + part.within for part in (layers.residuals, layers.inside, layers.outside))


def test_the_trace_counts_products_layers_and_samples(work):
    products = 2 * 3 * NUM_LAYERS * BATCH * WIDTH * WIDTH  # forward, and backward twice
    assert products < work.flops < 1.3 * products
    assert (work.num_samples, work.stacked, work.dtype) == (BATCH, {NUM_LAYERS}, "float32")


def test_microbatches_hold_less_and_compute_the_same(work):
    halved = worked(2)
    assert halved.flops == pytest.approx(work.flops, rel=0.05)
    assert halved.layers.residuals.between < 0.7 * work.layers.residuals.between


def test_data_parallelism_is_expected_to_sum_each_gradient_once(work):
    layer = WHOLE / NUM_LAYERS
    sums = NUM_LAYERS * collective_seconds("all-reduce", layer, [range(8)], TARGET)
    assert expected(work, data_parallel()).sent == pytest.approx(sums)


def test_gradients_of_microbatches_are_expected_to_be_summed_once():
    halved = worked(2)
    sums = collective_seconds("all-reduce", WHOLE, [range(8)], TARGET)
    assert expected(halved, data_parallel()).sent == pytest.approx(sums)


def test_gradients_of_tokens_are_expected_to_be_summed_in_each_microbatch():
    """Devices that have other entries of a sample than its first dim are no region of their own."""
    mesh = MeshSpec.parse("data=4,context=2")
    split = Layout([("batch.x", jax.sharding.PartitionSpec("data", "context"))]) + outlay.replicate()
    layer, apart = WHOLE / NUM_LAYERS, [0, 2, 4, 6]  # the devices of different hosts
    each = 2 * NUM_LAYERS * collective_seconds("all-reduce", layer, [[0, 1]], TARGET)
    once = collective_seconds("all-reduce", WHOLE, [apart], TARGET)
    assert expected(worked(2), split, mesh).sent == pytest.approx(each + once)


def test_fsdp_is_expected_to_gather_twice_and_to_scatter_once(work):
    layer = WHOLE / NUM_LAYERS
    gathers = 2 * NUM_LAYERS * collective_seconds("all-gather", layer, [range(8)], TARGET)
    scatters = NUM_LAYERS * collective_seconds("reduce-scatter", layer, [range(8)], TARGET)
    assert expected(work, fsdp(min_size=1) + data_parallel()).sent == pytest.approx(gathers + scatters)


def test_tensor_parallelism_is_expected_to_sum_activations_inside_a_host(work):
    mesh = MeshSpec.parse("data=4,model=2")
    layout = Layout([("params.w", jax.sharding.PartitionSpec(None, None, "model"))]) + data_parallel()
    layer = WHOLE / NUM_LAYERS
    activation = BATCH / 4 * WIDTH * 4
    apart = [0, 2, 4, 6]  # the devices of different hosts
    sums = NUM_LAYERS * collective_seconds("all-reduce", activation, [[0, 1]], TARGET)
    gradients = NUM_LAYERS * collective_seconds("all-reduce", layer / 2, [apart], TARGET)
    assert expected(work, layout, mesh).sent == pytest.approx(sums + gradients)


def test_parameters_travel_while_devices_compute(work):
    one = expected(work, fsdp(min_size=1) + data_parallel())
    assert one.seconds == pytest.approx(max(one.computing, one.sent))


def test_devices_compute_at_the_speeds_that_hardware_reaches(work):
    """The products of the layers, short as they are, what lies around them, and the update."""
    known, hardware = constants_of(TARGET.hardware), TARGET.hardware
    speed = product_speed(hardware, "float32")[0] * hardware.clock_share * known.products
    products = 2 * 3 * NUM_LAYERS * BATCH / 8 * WIDTH * WIDTH / speed
    products *= 1 + (known.small_product * 3 * NUM_LAYERS / products) ** known.small_power
    step = work.step
    moved = sum(one.moved.between + one.moved.within for one in (step.layers, step.outside)) / 8
    state = sum(leaf.bytes_per_device for leaf in plan_of(work, data_parallel(), EIGHT, TARGET).state)
    moved += 2 * (state + WHOLE)
    launches = (step.layers.num_launches + step.outside.num_launches) * known.operation
    in_all = products + moved / hardware.memory_bandwidth / known.memory + launches
    assert expected(work, data_parallel()).computing == pytest.approx(in_all)


def test_an_axis_that_splits_nothing_shares_no_work(work):
    alone, idle = (
        expect(
            work, plan_of(work, data_parallel(), MeshSpec.parse(mesh), Target.parse(target)), TARGET, data_parallel()
        )
        for mesh, target in (("data=4", "h100:4x1"), ("data=4,model=2", "h100:4x2"))
    )
    assert idle.num_bytes == alone.num_bytes


def test_memory_is_state_batch_gradients_and_what_the_trace_holds(work):
    plan = plan_of(work, data_parallel(), EIGHT, TARGET)
    batch = BATCH * WIDTH * 4 // 8
    assert WHOLE + batch <= certain_bytes(plan) < WHOLE + batch + 100  # the step and the key besides
    assert expect(work, plan, TARGET, data_parallel()).num_bytes == certain_bytes(plan) + WHOLE + held(work) // 8


def test_gradients_are_counted_where_the_layout_places_them(work):
    gradients = Layout(zero2("data", min_size=1).rules[1:])  # this optimizer has no state for the other rule
    plan = plan_of(work, gradients + data_parallel(), EIGHT, TARGET)
    assert expect(work, plan, TARGET, data_parallel()).num_bytes == certain_bytes(plan) + WHOLE // 8 + held(work) // 8


def test_a_dim_that_does_not_divide_is_ruled_out_in_words():
    with pytest.raises(Rejected, match=r"batch\.x.*60"):
        plan_of(worked(samples=60), data_parallel(), EIGHT, TARGET)


def test_microbatches_that_some_devices_have_no_part_in_are_ruled_out():
    work = worked(16, samples=BATCH)
    with pytest.raises(Rejected, match=r"^microbatches of 4 samples are not divisible over data=8$"):
        plan_of(work, data_parallel(), EIGHT, TARGET)


def test_a_mesh_that_leaves_its_host_is_ruled_out(work):
    with pytest.raises(Rejected, match="axis 'model' must stay inside a host"):
        plan_of(work, tensor_parallel() + data_parallel(), MeshSpec.parse("data=2,model=4"), TARGET)


def test_state_that_is_more_than_the_memory_is_ruled_out(monkeypatch, tmp_path, work):
    (tmp_path / "targets.toml").write_text('[small]\nlike = "h100"\nmemory_bytes = 2000\n')
    monkeypatch.setenv("OUTLAY_TARGETS", str(tmp_path / "targets.toml"))
    target = Target.parse("small:4x2")
    with pytest.raises(Rejected, match=r"^state and batch alone need 3\.5 KiB of 2\.0 KiB a device$"):
        plan_of(work, data_parallel(), EIGHT, target)
    assert plan_of(work, fsdp(min_size=1, otherwise="replicate") + data_parallel(), EIGHT, target)


def test_the_screen_sorts_by_time_and_drops_what_is_the_same_by_another_name(work):
    meshes = {"dp": "data=8", "fsdp": "data=8", "dp again": "data=8,model=1", "tp": "data=2,model=4"}
    layouts = {name: data_parallel() for name in ("dp", "dp again")}
    layouts |= {"fsdp": fsdp(min_size=1) + data_parallel(), "tp": tensor_parallel() + data_parallel()}
    passed, ruled_out = screen([Candidate(*item) for item in meshes.items()], layouts, lambda _: work, TARGET)
    assert [each.candidate.layout for each in passed] == ["dp", "fsdp"]
    assert passed[0].expected.seconds < passed[1].expected.seconds
    assert {each.candidate.layout: each.why for each in ruled_out}["dp again"] == (
        "places everything as dp does on data=8"
    )
    assert len(ruled_out) == 2


def test_a_step_on_pieces_is_planned_without_counting():
    def step(state, batch):
        return state - jax.lax.pmean(batch.mean(), "data"), {"mean": jax.lax.pmean(batch.mean(), "data")}

    work = workload(step, lambda key: jnp.zeros(()), np.zeros((8, 2), np.float32), EIGHT, mode="manual")
    assert (work.flops, work.layers.num_layers, work.step.layers.products) == (0.0, 1, 0.0)
    assert expected(work, data_parallel()).num_bytes > 0


def test_state_on_the_host_takes_time_rather_than_memory():
    optimizer = optax.adam(0.1)
    adam = workload(
        outlay.train_step(loss, optimizer),
        outlay.init_state(lambda key: {"w": jax.random.normal(key, (NUM_LAYERS, WIDTH, WIDTH))}, optimizer),
        {"x": np.zeros((BATCH, WIDTH), np.float32)},
        EIGHT,
    )
    away = Layout([("opt_state.**", outlay.layout.on_host())]) + data_parallel()
    near, far = (plan_of(adam, layout, EIGHT, TARGET) for layout in (data_parallel(), away))
    moments = 2 * WHOLE
    assert certain_bytes(near) - certain_bytes(far) == moments + 4  # and the count
    longer = expect(adam, far, TARGET, away).seconds - expect(adam, near, TARGET, away).seconds
    assert longer == pytest.approx(2 * (moments + 4) / TARGET.hardware.host_link_bandwidth)


def test_what_the_host_keeps_is_another_placement():
    optimizer = optax.adam(0.1)
    adam = workload(
        outlay.train_step(loss, optimizer),
        outlay.init_state(lambda key: {"w": jnp.ones((NUM_LAYERS, WIDTH, WIDTH))}, optimizer),
        {"x": np.zeros((BATCH, WIDTH), np.float32)},
        EIGHT,
    )
    layouts = {"dp": data_parallel(), "dp+host": Layout([("opt_state.**", outlay.layout.on_host())]) + data_parallel()}
    passed, _ = screen([Candidate(name, "data=8") for name in layouts], layouts, lambda _: adam, TARGET)
    assert [each.candidate.layout for each in passed] == ["dp", "dp+host"]


def test_a_pipeline_idles_and_sends_activations_on_in_each_tick(work):
    """3 stages of one layer each: 4 microbatches take 6 ticks, 8 take 10."""
    target, mesh = Target.parse("h100:1x3"), MeshSpec.parse("stage=3,data=1")
    times = {}
    for micro in (4, 8):
        layout = Layout([("params.w", pipeline("stage", microbatches=micro))]) + data_parallel()
        plan = plan_of(work, layout, mesh, target)
        stages = Stages.of(layout, plan.mesh)
        assert stages is not None
        assert stages.ticks == micro + 2
        sent = BATCH / micro * WIDTH * 4
        each = collective_seconds("collective-permute", sent, [[0, 1, 2]], target)
        times[micro] = expect(work, plan, target, layout)
        assert times[micro].sent == pytest.approx(2 * stages.ticks * each)
    # Nearly all is launches here: each of a stage's layer in 6 ticks or in 10.
    launches = constants_of(target.hardware).operation * work.step.layers.num_launches / 3
    assert times[8].computing - times[4].computing == pytest.approx((10 - 6) * launches, rel=0.2)


def test_a_layout_without_stages_has_none():
    plan = data_parallel().plan({"w": np.zeros((4, 4))}, outlay.mesh(data=8))
    assert Stages.of(data_parallel(), plan.mesh) is None
