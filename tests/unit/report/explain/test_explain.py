"""Programs whose collectives are known exactly, and what cannot be explained."""

import itertools
import json
import runpy
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AbstractMesh, AxisType
from jax.sharding import PartitionSpec as P
from tests.unit.report.explain.programs import (
    WIDTH,
    explain_on,
    explained,
    kinds,
    line_of,
    programs_file,
    shape,
    squared_error,
    training,
    two_layers,
)

from outlay.core.error_types import ExplainError, TargetError
from outlay.devices.build import mesh
from outlay.layout.layout import Layout
from outlay.layout.strategies import data_parallel
from outlay.report.explain.explain import explain

pytestmark = pytest.mark.newest

LAYER = 4 * WIDTH * WIDTH  # bytes of a weight


def test_one_collective_of_each_axis():
    on = mesh(data=4, model=2)
    over_data = explain_on(on, lambda x: x.sum(0), ((8, 64), P("data")))
    assert kinds(over_data) == [("all-reduce", ("data",), 2 * 64 * 4 * 3 // 4, 1)]
    over_both = explain_on(on, lambda x: x.sum(0), ((8, 64), P(("data", "model"))))
    assert [(one.kind, one.axes, one.group_size) for one in over_both.collectives] == [
        ("all-reduce", ("data", "model"), 8)
    ]


def test_a_loop_multiplies():
    def scanned(w, x):
        return jax.lax.scan(lambda h, layer: (jnp.tanh(h @ layer), None), x, w)[0]

    explanation = explain_on(mesh(data=8), scanned, ((5, 64, 64), P(None, "data")), ((1024, 64), P("data")))
    assert kinds(explanation) == [("all-gather", ("data",), 64 * 64 * 4 * 7 // 8, 5)]
    (gather,) = explanation.collectives
    assert gather.leaves == ("w",)
    assert explanation.bytes_per_step == 5 * gather.bytes_moved


def test_what_a_step_warned_of_when_it_was_made_is_not_repeated():
    def loss(params, batch, keys):
        warnings.warn("no kernel for this", stacklevel=1)
        return squared_error(params, batch, keys)

    with pytest.warns(UserWarning, match="no kernel for this"):
        program = training(loss=loss)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        explain(program)
    assert [str(one.message) for one in heard] == []


@pytest.mark.any_jax
def test_lines_are_the_programs_own_though_another_was_explained_before(tmp_path):
    source = "import jax\n{}def step(x, w):\n    return jax.lax.scan(lambda h, w: (h + h @ w, None), x, w)[0]\n"
    on = mesh(data=8)
    for name, lines_above in [("first", ""), ("second", "\n" * 7)]:
        file = tmp_path / f"{name}.py"
        file.write_text(source.format(lines_above))
        step = runpy.run_path(str(file))["step"]
        explanation = explain_on(
            on,
            jax.grad(lambda x, w, step=step: step(x, w).sum(), 1),
            ((64, 64), P("data")),
            ((4, 64, 64), P(None, "data")),
        )
        named = {(Path(one.source.file).name, one.source.line) for one in explanation.collectives if one.source}
        assert named == {(file.name, 3 + len(lines_above))}


def test_an_exchange():
    on = mesh(data=8)
    columns = jax.NamedSharding(on, P(None, "data"))
    explanation = explain(jax.jit(lambda x: x * 2, out_shardings=columns), shape(64, 64, on=on, spec=P("data")))
    assert kinds(explanation) == [("all-to-all", ("data",), 64 * 8 * 4 * 7 // 8, 1)]


def test_a_ring():
    on = mesh(data=8)

    def ring(x):
        return jax.lax.ppermute(x, "data", [(i, (i + 1) % 8) for i in range(8)])

    mapped = jax.shard_map(ring, mesh=on, in_specs=P("data"), out_specs=P("data"))
    (permute,) = explain_on(on, mapped, ((64, 4), P("data"))).collectives
    assert (permute.kind, permute.axes, permute.group_size, permute.bytes_moved) == (
        "collective-permute",
        ("data",),
        8,
        128,
    )


@pytest.mark.compiles
def test_fsdp_gathers_each_weight_at_its_line_and_sums_gradients():
    explanation = explained()
    gathers = [one for one in explanation.collectives if one.kind == "all-gather"]
    assert [(one.leaf, one.phase, one.module) for one in gathers] == [
        ("params.w0", "forward", "layer0"),
        ("params.w1", "forward", "layer1"),
    ]
    for one in gathers:
        assert one.bytes_moved == LAYER * 7 // 8
        assert one.source is not None
        assert one.source.line == line_of("# the line of every product", programs_file)
        assert Path(one.source.file).resolve() == programs_file
    sums = [one for one in explanation.collectives if one.kind == "all-reduce"]
    assert {one.phase for one in sums} == {"backward"}
    assert "gradients of 2 leaves: params.**" in [one.value for one in sums]
    assert explanation.by_phase()["forward"].bytes_per_step == 2 * LAYER * 7 // 8


def test_mode_manual_shows_what_was_written_by_hand():
    explanation = explained(mode="manual")
    moved = sorted((one.kind, one.phase, one.leaf or one.value) for one in explanation.collectives)
    assert moved[:2] == [("all-gather", "forward", "params.w0"), ("all-gather", "forward", "params.w1")]
    assert moved[3:] == [
        ("reduce-scatter", "backward", "gradient of params.w0"),
        ("reduce-scatter", "backward", "gradient of params.w1"),
    ]
    assert moved[2][:2] == ("all-reduce", "backward")  # the loss and the number of samples, with the gradients


def test_megatron_sums_once_forward():
    layout = Layout([("params.w0", P(None, "model")), ("params.w1", P("model", None))]) + data_parallel()
    explanation = explained(layout, on=mesh(data=4, model=2))
    (over_model,) = [one for one in explanation.collectives if one.axes == ("model",)]
    assert (over_model.kind, over_model.phase, over_model.module) == ("all-reduce", "forward", "layer1")
    assert over_model.bytes_moved == 2 * (512 // 4) * WIDTH * 4 // 2


def test_a_leaf_that_nothing_reads_shifts_no_name():
    explanation = explained(extra=True)
    assert [one.leaf for one in explanation.collectives if one.kind == "all-gather"] == ["params.w0", "params.w1"]
    assert {value.what for value in explanation.memory.largest} >= {"batch.x", "batch.y"}


def test_the_optimizer_is_a_phase():
    explanation = explained(data_parallel())
    module = explanation.hlo
    assert any("/optimizer/" in one.op_name for one in module.computations[module.entry].instructions.values())
    # Moments split, parameters whole: what the optimizer computes in pieces is gathered again.
    zero1 = Layout([("opt_state.**.w*", P("data"))]) + data_parallel()
    phases = {(one.kind, one.phase) for one in explained(zero1).collectives}
    assert ("all-gather", "optimizer") in phases


def test_flops_and_devices():
    explanation = explained(data_parallel())
    products = 2 * 512 * WIDTH * WIDTH * 2 * 3 - 2 * 512 * WIDTH * WIDTH  # nobody needs the gradient of the inputs
    assert explanation.work.flops_compiled == products / 8
    assert explanation.work.flops == pytest.approx(products / 8, rel=0.1)  # and what goes element by element
    assert explanation.work.bytes_accessed > 0


def test_the_explained_program_is_the_one_that_runs():
    program = training()
    explanation = explain(program)
    assert explanation.compile_seconds > 0
    assert program.is_compiled
    again = explain(program)
    assert again.compile_seconds is None
    assert "compiled earlier" in again.notes[0]
    assert [one.bytes_moved for one in again.collectives] == [one.bytes_moved for one in explanation.collectives]


@pytest.mark.some_cases(5, newest=2)
@pytest.mark.parametrize("stage", ["traced", "lowered", "compiled", "text", "file"])
def test_every_stage_of_a_function_says_the_same(stage, tmp_path):
    on = mesh(data=8)
    jitted, x = jax.jit(lambda x: x.sum(0)), shape(8, 64, on=on, spec=P("data"))
    compiled = jitted.lower(x).compile()
    saved = tmp_path / "step.hlo"
    saved.write_text(compiled.as_text())
    stages = {
        "traced": lambda: explain(jitted.trace(x)),
        "lowered": lambda: explain(jitted.lower(x)),
        "compiled": lambda: explain(compiled),
        "text": lambda: explain(compiled.as_text(), mesh=on),
        "file": lambda: explain(saved, mesh=AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,))),
    }
    assert kinds(stages[stage]()) == [("all-reduce", ("data",), 2 * 64 * 4 * 7 // 8, 1)]


@pytest.mark.any_jax
def test_text_alone_has_neither_axes_nor_memory_and_says_so():
    x = shape(8, 64, on=mesh(data=8), spec=P("data"))
    explanation = explain(jax.jit(lambda x: x.sum(0)).lower(x).compile().as_text())
    assert (explanation.collectives[0].axes, explanation.collectives[0].group_size) == ((), 8)
    assert (explanation.memory, explanation.target, explanation.estimate, explanation.fits) == (None, None, None, None)
    assert any("no memory figures" in note for note in explanation.notes)
    assert any("mesh=" in note for note in explanation.notes)
    assert "8 devices" in str(explanation)


@pytest.mark.any_jax
def test_lines_that_cannot_be_read_are_counted():
    x = shape(8, 64, on=mesh(data=8), spec=P("data"))
    lines = jax.jit(lambda x: x.sum(0)).lower(x).compile().as_text().splitlines()
    entry = next(number for number, line in enumerate(lines) if line.startswith("ENTRY"))
    lines.insert(entry + 1, "  ??? what is this")
    explanation = explain("\n".join(lines))
    (incomplete,) = explanation.incomplete
    assert incomplete.startswith("1 line could not be parsed, so totals may be too low")
    assert f"line {entry + 2}: '??? what is this'" in incomplete
    assert "incomplete: " in str(explanation)


@pytest.mark.any_jax
def test_a_given_mesh_is_set_while_tracing():
    def constrained(x):
        return jax.lax.with_sharding_constraint(x, P("data")).sum(0)

    explanation = explain(jax.jit(constrained), shape(8, 64), mesh=mesh(data=8))
    assert explanation.mesh.axis_sizes == {"data": 8}


@pytest.mark.any_jax
def test_by_name():
    explanation = explained()
    assert list(explanation.by_kind()) == ["all-reduce", "all-gather"]
    assert explanation.by_axis()["data"].bytes_per_step == explanation.bytes_per_step
    assert sum(total.num_runs for total in explanation.by_module().values()) == len(explanation.collectives)
    json.dumps(explanation.to_dict())
    assert explanation.to_dict()["by_kind"]["all-gather"]["num_runs"] == 2


@pytest.mark.any_jax
def test_a_target_prices_what_the_cpu_compiled_and_says_so():
    explanation = explain(training(), target="h100:1x8")
    assert str(explanation.target) == "h100:1x8"
    assert explanation.memory.capacity == 84_942_979_072
    assert explanation.estimate.target == "h100:1x8"
    assert all(one.seconds > 0 for one in explanation.collectives)
    assert any("whose own compiler" in note for note in explanation.notes)
    assert explained().notes[0].startswith("compiled for simulated CPU devices")


@pytest.mark.any_jax
def test_the_timeline_is_in_order_and_complete():
    explanation = explained()
    communicating = [segment for segment in explanation.timeline if segment.kind != "compute"]
    assert {segment.name for segment in communicating} == {one.name for one in explanation.collectives}
    assert [segment.name for segment in communicating][:2] == [one.name for one in explanation.collectives[:2]]
    assert sum(segment.seconds for segment in communicating) == pytest.approx(
        sum(one.seconds * one.count for one in explanation.collectives)
    )
    kinds_in_order = [segment.kind for segment in explanation.timeline]
    assert ("compute", "compute") not in itertools.pairwise(kinds_in_order)


def needs_value(x, limit):
    return x if limit > 3 else -x


@pytest.mark.any_jax
@pytest.mark.parametrize(
    ("subject", "arguments", "message"),
    [
        (two_layers, (), r"object of type function cannot be explained(.|\n)*jax.jit\(two_layers\)"),
        (3, (), "object of type int cannot be explained"),
        ("step.hlo", (), r"is text, not a path\n  fix: outlay.explain\(Path\('step.hlo'\)\)"),
        ("module @jit_f", (), "StableHLO"),
        ("HloModule m\n\nENTRY %main (x: f32[]) -> f32[] {\n", (), "cut short: after 3 lines it ends inside of .*main"),
        (Path("nowhere.hlo"), (), "nowhere.hlo cannot be read: No such file"),
        (jax.jit(needs_value), (np.ones(4), np.ones(())), r"needs the value of limit(.|\n)*static_argnames='limit'"),
        (
            jax.jit(needs_value),
            (np.ones(4), "a"),
            r"1 argument of needs_value with leaves that are not arrays:\n  limit: a str",
        ),
        (
            jax.jit(two_layers).lower(*[{"w0": np.ones((4, 4)), "w1": np.ones((4, 4))}, np.ones((2, 4))]),
            (1,),
            "its own",
        ),
    ],
)
def test_unexplainable_arguments_are_refused(subject, arguments, message):
    with pytest.raises(ExplainError, match=message):
        explain(subject, *arguments)


@pytest.mark.any_jax
def test_another_number_of_devices():
    with pytest.raises(ExplainError, match=r"for 8 devices, but h100:2x8 has 16"):
        explain(training(), target="h100:2x8")
    x = shape(8, 64, on=mesh(data=8), spec=P("data"))
    text = jax.jit(lambda x: x.sum(0)).lower(x).compile().as_text()
    with pytest.raises(ExplainError, match=r"for 8 devices, but mesh data=4"):
        explain(text, mesh=AbstractMesh((4,), ("data",), axis_types=(AxisType.Auto,)))
    with pytest.raises(TargetError, match="did you mean 'h100'"):
        explain(training(), target="h1000:1x8")
    with pytest.raises(ExplainError, match="abstract mesh, which has no devices"):
        explain(jax.jit(jnp.sum), x, mesh=AbstractMesh((8,), ("data",), axis_types=(AxisType.Auto,)))


@pytest.mark.any_jax
def test_what_the_compiler_refuses_is_named_with_its_target():
    def foreign(x):
        return jax.ffi.ffi_call("made_up", jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    message = r"^the compiler for cpu:8 refuses foreign: .*made_up.*\n  fix: remove or rewrite the operation"
    with pytest.raises(ExplainError, match=message):
        explain_on(mesh(data=8), foreign, ((8,), P("data")))
