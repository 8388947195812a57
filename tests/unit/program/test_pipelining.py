"""What cannot run as a pipeline is refused when the program is made, with its line; nothing here is compiled."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen as nn
from jax.sharding import PartitionSpec as P

import outlay
from outlay.errors import LayoutError, ProgramError
from outlay.program.pipelines.circular_schedule import CircularSchedule
from outlay.program.pipelines.microbatched_scan import joined, split

pytestmark = pytest.mark.newest

LAYERS, WIDTH = 4, 6
BATCH = np.ones((8, WIDTH), np.float32)
OPTIMIZER = optax.sgd(0.1)


def init(key: jax.Array) -> Any:
    return {"layers": jax.random.normal(key, (LAYERS, WIDTH, WIDTH)), "head": jnp.ones((WIDTH,))}


def scanned(layer: Any, **how: Any) -> Any:
    def loss(params: Any, batch: Any, keys: jax.Array) -> Any:
        x, _ = jax.lax.scan(lambda x, w: (layer(x, w), None), batch, params["layers"], **how)
        return x @ params["head"], {}

    return loss


def plain_layer(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w)


def made(loss: Any, *, batch: Any = BATCH, accumulate: int = 1, mode: Any = "auto", explicit: bool = False, **of: Any):
    samples = outlay.data_parallel(of.pop("samples", "data"))
    rules = [("params.layers", outlay.layout.pipeline(**{"microbatches": 2, **of}))]
    mesh = outlay.mesh(stage=2, data=4, explicit=explicit)
    return outlay.program(
        outlay.train_step(loss, OPTIMIZER, accumulate=accumulate),
        outlay.init_state(init, OPTIMIZER),
        batch,
        layout=outlay.Layout(rules) + samples,
        mesh=mesh,
        mode=mode,
    )


def line_of(function: Any, text: str) -> str:
    lines, first = inspect.getsourcelines(function)
    return f"{__file__}:{first + next(number for number, line in enumerate(lines) if text in line)}"


def test_the_plan_and_the_program_say_how_it_runs() -> None:
    loss = scanned(plain_layer)
    program = made(loss)
    assert program.passes == ("pipelining", "summed_once")
    assert program.plan["params.layers"].spec == P("stage", None, None)
    assert (
        "2 of 4 layers on each of 2 stages; 2 microbatches once through 2 stages: 3 ticks, 33.3 % of them idle"
        in str(program.plan["params.layers"].reason)
    )
    assert program.pipelines.endswith(f"the scan over 4 layers at {line_of(scanned, 'jax.lax.scan')}")


def test_the_gradient_of_a_layer_is_added_where_the_backward_loop_makes_it() -> None:
    text = made(scanned(plain_layer)).lowered.as_text()
    of_all, of_one = (f"tensor<2x{num}x{WIDTH}x{WIDTH}xf32>" for num in (LAYERS // 2, 1))  # of two stages
    assert re.search(rf"stablehlo.dynamic_update_slice .* : \({of_all}, {of_one}, ", text)
    assert not re.search(rf"stablehlo.add .* : tensor<2x(1x)?{LAYERS // 2}x{WIDTH}x{WIDTH}xf32>", text)


@pytest.mark.parametrize("data", [4, 1])
def test_what_the_model_places_outside_of_its_layers_is_split_over_the_stages_too(data: int) -> None:
    """An axis of one device among those of the samples is in nobody's way: all stages would compute the same."""

    def loss(params: Any, batch: Any, keys: jax.Array) -> Any:
        x, _ = jax.lax.scan(lambda x, w: (plain_layer(x, w), None), batch, params["layers"])
        return outlay.constrain(x, P("data")) @ params["head"], {}

    mesh = f"stage=2,data={data},model={4 // data}"
    rules = [("params.layers", outlay.layout.pipeline(microbatches=2))]
    program = outlay.program(
        outlay.train_step(loss, OPTIMIZER),
        outlay.init_state(init, OPTIMIZER),
        BATCH,
        layout=outlay.Layout(rules) + outlay.data_parallel(),
        mesh=outlay.mesh(mesh),
    )
    text = program.lowered.as_text()
    shape = f"tensor<{8 // data}x{WIDTH}xf32>"  # gradients are summed once over data, in a region of a device's samples
    own = [
        line for line in text.splitlines() if "sharding_constraint" in line and line.endswith(shape) and "?" not in line
    ]
    assert len(own) == 2, "of the value and of its gradient; what is not the model's own leaves a dim open"
    assert all('[{"stage"}, {}]' in line for line in own), own


def test_on_one_stage_the_step_stays_as_it_is() -> None:
    layout = outlay.Layout([("params.layers", outlay.layout.pipeline(microbatches=2))]) + outlay.data_parallel()
    program = outlay.program(
        outlay.train_step(scanned(plain_layer), OPTIMIZER),
        outlay.init_state(init, OPTIMIZER),
        BATCH,
        layout=layout,
        mesh=outlay.mesh(stage=1, data=8),
    )
    assert program.passes == ()


def test_ticks_and_bubble_are_the_textbook_s() -> None:
    for stages in (2, 3, 4, 8):
        for micro in (8, 12, 16, 32, 64):
            for repeats in (1, 2):
                schedule = CircularSchedule(stages, micro, repeats, stages * repeats)
                assert schedule.num_ticks == micro * repeats + stages - 1
                assert schedule.bubble == pytest.approx((stages - 1) / (micro * repeats + stages - 1))


def test_microbatches_take_as_many_samples_of_each_part_and_come_back_in_order() -> None:
    x = np.arange(24).reshape(2, 12)
    parts = split(jnp.asarray(x), 1, 3, 2)
    np.testing.assert_array_equal(parts[1], x[:, [2, 3, 8, 9]])
    np.testing.assert_array_equal(joined(parts, 1, 2), x)


@pytest.mark.some_cases(4, newest=1)
@pytest.mark.parametrize(
    ("of", "message"),
    [
        ({"microbatches": 1}, r"microbatches=1; it is a whole number from 2"),
        ({"microbatches": 2.0}, r"microbatches=2.0; it is a whole number from 2"),
        ({"microbatches": 4, "repeats": 0}, r"repeats=0; it is a whole number from 1"),
        ({"axis": 3, "microbatches": 4}, r"axis=3; it is the mesh axis whose devices are the stages"),
    ],
)
def test_odd_numbers_are_refused(of: Any, message: str) -> None:
    with pytest.raises(LayoutError, match=message):
        outlay.layout.pipeline(**of)


def test_a_pipeline_rule_goes_through_a_file(tmp_path: Path) -> None:
    layout = outlay.Layout([("params.layers.**", outlay.layout.pipeline("s", microbatches=8, repeats=2))])
    file = tmp_path / "layout.toml"
    file.write_text(outlay.layout.write_layout(layout), encoding="utf-8")
    assert outlay.layout.read_layout(file) == layout
    file.write_text('[[rule]]\nmatch = "params.**"\npipeline = { stages = 4 }\n', encoding="utf-8")
    with pytest.raises(LayoutError, match=r"pipeline takes a table such as \{ axis = \"stage\", microbatches = 8"):
        outlay.layout.read_layout(file)


def test_layers_that_do_not_divide() -> None:
    with pytest.raises(
        LayoutError, match=r"4 layers .*do not divide into stage=2 stages x 4 repeats(?s:.*)fix: 8 layers"
    ):
        made(scanned(plain_layer), microbatches=2, repeats=4)


@pytest.mark.some_cases(3, newest=1)
@pytest.mark.parametrize(
    ("batch", "accumulate", "microbatches", "message"),
    [
        (8, 1, 3, r"a batch of 8 samples does not divide into 3 microbatches over data=4(?s:.*)microbatches=2"),
        (8, 1, 4, r"a batch of 8 samples does not divide into 4 microbatches over data=4(?s:.*)a batch of 16 samples"),
        (16, 2, 4, r"a batch of 8 samples, one of 2 parts (?s:.*)a smaller accumulate, or a batch of 32 samples"),
    ],
)
def test_microbatches_that_do_not_divide(batch: int, accumulate: int, microbatches: int, message: str) -> None:
    with pytest.raises(ProgramError, match=message):
        made(scanned(plain_layer), batch=np.ones((batch, WIDTH)), accumulate=accumulate, microbatches=microbatches)


def normalized(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh((x - x.mean(0, keepdims=True)) @ w)


def by_number(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.tanh(x @ w) / x.shape[0]


def dropped(x: jax.Array, w: jax.Array) -> jax.Array:
    return jnp.where(jax.random.bernoulli(jax.random.key(0), 0.9, x.shape), x @ w, 0.0)


def counted(x: jax.Array, w: jax.Array) -> jax.Array:
    sums = jnp.zeros((3, WIDTH)).at[jnp.argmax(x, axis=-1) % 3].add(x @ w)
    return x + sums.sum(0, keepdims=True)


@pytest.mark.some_cases(8, newest=2)
@pytest.mark.parametrize(
    ("layer", "text", "message"),
    [
        (normalized, "x.mean", "takes samples of the batch together"),
        (by_number, "x.shape[0]", "takes samples of the batch together, or their number"),
        (dropped, "bernoulli", "draws random numbers for all samples at once"),
        (counted, ".add(", "scatter-add takes samples of the batch together"),
    ],
)
@pytest.mark.parametrize("remat", [False, True])
def test_what_takes_samples_together(layer: Any, text: str, message: str, remat: bool) -> None:
    with pytest.raises(ProgramError, match=message) as error:
        made(scanned(jax.checkpoint(layer) if remat else layer))
    assert line_of(layer, text) in str(error.value)


@pytest.mark.parametrize("impl", ["rbg", "unsafe_rbg"])
def test_keys_whose_numbers_change_under_vmap(impl: str) -> None:
    def noisy(x: jax.Array, w: jax.Array) -> jax.Array:
        return x @ (w + jax.random.normal(jax.random.key(0, impl=impl), w.shape))

    with pytest.raises(ProgramError, match="keys of rbg draw other numbers for several microbatches") as error:
        made(scanned(noisy))
    assert line_of(noisy, "normal") in str(error.value)
    assert "fix: jax.random.key(seed, impl='threefry2x32')" in str(error.value)


def test_statistics_that_a_layer_returns() -> None:
    def loss(params: Any, batch: Any, keys: jax.Array) -> Any:
        x, means = jax.lax.scan(lambda x, w: (plain_layer(x, w), x.mean()), batch, params["layers"])
        return x @ params["head"] + means.sum(), {}

    with pytest.raises(ProgramError, match="reduce_sum takes samples of the batch together"):
        made(loss)


def test_leaves_that_no_scan_reads() -> None:
    def loss(params: Any, batch: Any, keys: jax.Array) -> Any:
        for number in range(LAYERS):
            batch = plain_layer(batch, params["layers"][number])
        return batch @ params["head"], {}

    with pytest.raises(ProgramError, match=r"no scan: params.layers(?s:.*)fix: run the layers by jax.lax.scan"):
        made(loss)


def of_list(num: int, run: Any, **of: Any) -> Any:
    def start(key: jax.Array) -> Any:
        return {"layers": [jnp.ones((WIDTH, WIDTH))] * num, "head": jnp.ones((WIDTH,))}

    def loss(params: Any, batch: Any, keys: jax.Array) -> Any:
        return run(params["layers"], batch) @ params["head"], {}

    rules = [*of.pop("before", []), ("params.layers.*", outlay.layout.pipeline(**{"microbatches": 2, **of}))]
    layout = outlay.Layout(rules) + outlay.data_parallel()
    step, init = outlay.train_step(loss, OPTIMIZER), outlay.init_state(start, OPTIMIZER)
    return outlay.program(step, init, BATCH, layout=layout, mesh=outlay.mesh(stage=2, data=4))


def in_lines(blocks: Any, x: Any) -> Any:
    return outlay.layers(blocks, x, run=lambda w, x: plain_layer(x, w))


def in_a_loop(blocks: Any, x: Any) -> Any:
    for w in blocks:
        x = plain_layer(x, w)
    return x


def test_a_list_that_is_looped_over_by_hand() -> None:
    with pytest.raises(
        ProgramError, match=r"no scan: params.layers.0(?s:.*)fix: run layers that are a list by x = outl"
    ):
        of_list(4, in_a_loop)


@pytest.mark.any_jax
def test_layers_of_a_list_that_do_not_divide() -> None:
    with pytest.raises(ProgramError, match=r"5 layers do not divide into stage=2 stages(?s:.*)fix: 6 layers") as error:
        of_list(5, in_lines)
    assert line_of(in_lines, "outlay.layers") in str(error.value)
    with pytest.raises(ProgramError, match=r"6 layers do not divide into stage=2 stages x 2 repeats"):
        of_list(6, in_lines, repeats=2)


@pytest.mark.any_jax
def test_a_first_layer_that_is_run_by_itself_is_taken_out_by_a_rule_before() -> None:
    def run(blocks: Any, x: Any) -> Any:
        return in_lines(blocks[1:], plain_layer(x, blocks[0]))

    with pytest.raises(ProgramError, match=r"no scan: params.layers.0\n"):
        of_list(5, run)
    program = of_list(5, run, before=[("params.layers.0", outlay.replicate())])
    assert "the list of 4 layers" in program.pipelines


def test_two_lists_are_two_pipelines() -> None:
    program = of_list(8, lambda blocks, x: in_lines(blocks[4:], in_lines(blocks[:4], x)))
    assert program.pipelines.count("the list of 4 layers") == 1  # at one line


def test_a_leaf_of_a_list_of_which_no_dim_divides() -> None:
    def plan(otherwise: Any = None) -> Any:
        rule = outlay.Rule(
            "layers.**", outlay.layout.pipeline(microbatches=2), **({"otherwise": otherwise} if otherwise else {})
        )
        return (outlay.Layout([rule]) + outlay.replicate()).plan(
            {"layers": [{"w": jnp.ones((3, 5)), "up": jnp.ones((3, 8))}] * 2}, outlay.mesh(stage=4, data=2)
        )

    with pytest.raises(LayoutError, match=r"layers.0.w(?s:.*)no free dim of \(3, 5\) is divisible by stage=4") as error:
        plan()
    assert "layers.0.up" not in str(error.value)
    assert plan("replicate")["layers.1.w"].spec == P()
    assert plan("replicate")["layers.1.up"].spec == P(None, "stage")


def test_two_scans_over_one_stack() -> None:
    def loss(params: Any, batch: Any, keys: jax.Array) -> Any:
        for _ in range(2):
            batch, _ = jax.lax.scan(lambda x, w: (plain_layer(x, w), None), batch, params["layers"])
        return batch @ params["head"], {}

    with pytest.raises(ProgramError, match=r"two scans: params.layers(?s:.*)2 scans read the same layers") as error:
        made(loss)
    assert line_of(loss, "jax.lax.scan") in str(error.value)


def test_a_scan_from_the_last_layer() -> None:
    with pytest.raises(ProgramError, match="it runs the layers from the last to the first"):
        made(scanned(plain_layer, reverse=True))


def test_repeats_need_as_many_microbatches_as_stages() -> None:
    rules = [("params.layers", outlay.layout.pipeline(microbatches=2, repeats=1))]
    mesh = outlay.mesh(stage=4, data=2)
    step, start = outlay.train_step(scanned(plain_layer), OPTIMIZER), outlay.init_state(eight, OPTIMIZER)
    outlay.program(step, start, BATCH, layout=outlay.Layout(rules) + outlay.data_parallel(), mesh=mesh)
    rules = [("params.layers", outlay.layout.pipeline(microbatches=2, repeats=2))]
    with pytest.raises(ProgramError, match=r"2 microbatches go round 2 times through 4 stages(?s:.*)microbatches=4"):
        outlay.program(step, start, BATCH, layout=outlay.Layout(rules) + outlay.data_parallel(), mesh=mesh)


def eight(key: jax.Array) -> Any:
    return {"layers": jnp.ones((8, WIDTH, WIDTH)), "head": jnp.ones((WIDTH,))}


def test_only_where_xla_places_values() -> None:
    with pytest.raises(ProgramError, match=r"automatic axes; this is mode manual"):
        made(scanned(plain_layer), mode="manual")
    with pytest.raises(ProgramError, match=r"automatic axes; this is a mesh with explicit"):
        made(scanned(plain_layer), explicit=True)


def test_a_line_of_the_user_is_named_once_where_a_library_computes() -> None:
    def layer(x: jax.Array, w: jax.Array) -> jax.Array:
        x, _ = nn.BatchNorm(use_running_average=False).init_with_output(jax.random.key(0), x)
        return jnp.tanh(x @ w)

    with pytest.raises(ProgramError) as error:
        made(scanned(layer))
    assert str(error.value).startswith(
        f"1 problem with the pipeline of the layout:\n  not by microbatch: {line_of(layer, 'BatchNorm')}\n"
    )


@pytest.mark.parametrize("mode", ["auto", "placed"])
def test_a_model_that_knows_the_number_of_samples_is_told_so(mode: str) -> None:
    def loss(params: Any, batch: Any, keys: jax.Array) -> Any:
        start = batch + jnp.zeros((8, WIDTH))  # of BATCH
        return jax.lax.scan(lambda x, w: (plain_layer(x, w), None), start, params["layers"])[0] @ params["head"], {}

    with pytest.raises(
        ProgramError, match="the batch of 8 samples does not run for a microbatch of 4: TypeErr"
    ) as error:
        made(loss, mode=mode)
    assert str(error.value).startswith(line_of(loss, "jnp.zeros"))
    assert "where the model has it as a number (8)" in str(error.value)


def test_samples_are_not_split_over_stages() -> None:
    with pytest.raises(ProgramError, match=r"samples are split over 'stage'(?s:.*)outlay.data_parallel\(\"data\"\)"):
        made(scanned(plain_layer), samples="stage")


def test_a_layer_may_rank_the_features_of_each_sample() -> None:
    def ranked(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(jnp.take_along_axis(x, jnp.argsort(x, axis=-1), axis=-1) @ w)

    assert made(scanned(ranked)).passes == ("pipelining", "summed_once")

    def by_number(x: jax.Array, w: jax.Array) -> jax.Array:
        return jnp.tanh(x @ w) + jax.lax.broadcasted_iota(x.dtype, x.shape, 0)

    with pytest.raises(ProgramError, match="iota takes samples of the batch together, or their number"):
        made(scanned(by_number))
