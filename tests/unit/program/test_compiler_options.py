"""Options of the compiler: presets by hardware, options of the user's own, and those that a compiler does not know."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_gpu_compiler, needs_tpu_compiler

from outlay.core.error_types import ExplainError, ProgramError
from outlay.core.runtime_flags import typed_flags
from outlay.devices.build import mesh
from outlay.layout.layout import Layout
from outlay.program.compile_progress import in_words
from outlay.program.compiler_options import CompilerOptions, compile_with, compiler_options
from outlay.program.make import program
from outlay.report.explain.explain import explain
from outlay.train.step import sum_over_microbatches

pytestmark = pytest.mark.newest


def step(state, batch):
    return {"w": state["w"] - 0.1 * (batch.T @ batch)}, {}


def make(on, **options):
    return program(
        step,
        lambda key: {"w": jnp.zeros((16, 16))},
        np.ones((8, 16), np.float32),
        layout=Layout([("w", P("data")), ("batch", P("data"))]),
        mesh=on,
        **options,
    )


@pytest.mark.any_jax
def test_a_preset_is_that_of_the_devices():
    on_gpus = compiler_options("preset", mesh(data=8, target="h100:1x8"))
    assert on_gpus.source == "preset for gpu"
    assert on_gpus.values["xla_gpu_enable_latency_hiding_scheduler"] is True
    assert compiler_options("preset", mesh(data=8)).values == {}
    assert compiler_options("none", mesh(data=8, target="h100:1x8")).values == {}


def test_what_the_environment_sets_is_left_to_it(monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_gpu_enable_triton_gemm=true")
    options = compiler_options("preset", mesh(data=8, target="h100:1x8"))
    assert "xla_gpu_enable_triton_gemm" not in options.values
    assert options.notes == ("set by the environment: xla_gpu_enable_triton_gemm",)


@pytest.mark.any_jax
@pytest.mark.parametrize(
    ("fraction", "slop"),
    [({}, 118), ({"XLA_PYTHON_CLIENT_MEM_FRACTION": ".75"}, 93), ({"XLA_CLIENT_MEM_FRACTION": "0.9"}, 112)],
)
def test_the_scheduler_of_a_preset_plans_with_the_pool_of_the_run(fraction, slop, monkeypatch):
    for name, value in fraction.items():
        monkeypatch.setenv(name, value)
    options = compiler_options("preset", mesh(data=8, target="h100:1x8"))
    assert options.values["xla_gpu_memory_limit_slop_factor"] == slop


@pytest.mark.any_jax
def test_on_gpus_that_are_here_the_scheduler_plans_with_the_pool_that_jax_takes(monkeypatch):
    attached = SimpleNamespace(devices=np.array([SimpleNamespace(platform="gpu", client=None)]))
    assert "xla_gpu_memory_limit_slop_factor" not in compiler_options("preset", attached).values
    monkeypatch.setenv("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.95")
    assert compiler_options("preset", attached).values["xla_gpu_memory_limit_slop_factor"] == 118


@pytest.mark.any_jax
def test_what_is_compiled_is_named_where_it_takes_long():
    on = mesh(data=8)
    words = in_words(make(on).lowered, on.devices.flat[0])
    assert words == "compiling step for 8 devices of cpu"


def test_a_program_is_compiled_with_its_options_and_says_so():
    made = make(mesh(data=8), compiler_options={"--xla_cpu_enable_fast_math": True})
    explanation = explain(made)
    assert explanation.to_dict()["compiler_options"] == {
        "source": "given",
        "values": {"xla_cpu_enable_fast_math": True},
        "notes": [],
    }
    assert "compiler options: given (1 of them)" in str(explanation)


def test_a_function_is_compiled_with_the_options_of_the_call():
    on = mesh(data=8)
    given = jax.ShapeDtypeStruct((8,), jnp.float32, sharding=jax.NamedSharding(on, P("data")))
    with pytest.raises(ProgramError, match=r"has no option xla_cpu_enable_fast_mth, did you mean 'xla_cpu_enable"):
        explain(jax.jit(jnp.sum), given, compiler_options={"xla_cpu_enable_fast_mth": True})
    with pytest.raises(ExplainError, match="a program has its own"):
        explain(make(on), compiler_options="none")


def test_a_value_that_the_compiler_refuses():
    with pytest.raises(ProgramError, match=r"refuses an option.*'perhaps' is not a valid bool"):
        _ = make(mesh(data=8), compiler_options={"xla_cpu_enable_fast_math": "perhaps"}).compiled


@pytest.mark.any_jax
def test_a_file_of_options(tmp_path):
    file = tmp_path / "flags.txt"
    file.write_text("--xla_gpu_autotune_level=0 # quick\n--xla_disable_hlo_passes=a,b\n")
    assert compiler_options(file, None).values == {"xla_gpu_autotune_level": 0, "xla_disable_hlo_passes": "a,b"}
    file.write_text("xla_gpu_autotune_level=0\n\n--xla_dump_to\n")
    with pytest.raises(ProgramError, match=r"2 word(.|\n)*line 1: 'xla_gpu(.|\n)*line 3: '--xla_du"):
        compiler_options(file, None)
    with pytest.raises(ProgramError, match=r"there are no compiler options .*none.txt', and no such file"):
        compiler_options(tmp_path / "none.txt", None)


@pytest.mark.any_jax
def test_a_preset_that_is_not_there():
    with pytest.raises(ProgramError, match="no compiler options 'presets', and no such file: did you mean 'preset'"):
        make(mesh(data=8), compiler_options="presets")
    with pytest.raises(ProgramError, match="mode placed there are many programs"):
        make(mesh(data=8), mode="placed", compiler_options={"xla_cpu_enable_fast_math": True})


class FindsNoTiles:
    """A lowered program for which the Triton emitter finds no tiles: which shapes those are changes with XLA."""

    def compile(self, compiler_options):
        if compiler_options.get("xla_gpu_enable_triton_gemm") is not False:
            raise jax.errors.JaxRuntimeError("INTERNAL: Couldn't find output tile sizes that satisfy hlo")
        return compiler_options


def test_products_that_the_gpu_compiler_finds_no_tiles_for_go_to_cublas():
    given = compiler_options({"xla_gpu_autotune_level": 0}, None)
    compiled, options = compile_with(FindsNoTiles(), given, None)
    assert compiled == options.values == {"xla_gpu_autotune_level": 0, "xla_gpu_enable_triton_gemm": False}
    assert options.notes == ("no tiles for a product, so products go to cuBLAS: xla_gpu_enable_triton_gemm=false",)


class HasNoSignals:
    """A lowered program with more asynchronous collectives than a TPU v3 has signals, which it counts in bytes."""

    def compile(self, compiler_options):
        if any("async" in name for name in compiler_options):
            raise jax.errors.JaxRuntimeError(
                "RESOURCE_EXHAUSTED: Ran out of memory in memory space sflag. Used 1.1K of"
            )
        return compiler_options


@pytest.mark.any_jax
def test_a_tpu_without_memory_for_signals_gets_no_asynchronous_collectives_where_a_preset_asked_for_them():
    values = {"xla_enable_async_all_gather": True, "xla_tpu_overlap_compute_collective_tc": True}
    compiled, options = compile_with(HasNoSignals(), CompilerOptions("preset for tpu", values), None)
    assert compiled == options.values == {"xla_tpu_overlap_compute_collective_tc": True}
    assert options.notes == ("no asynchronous collectives: the device has no memory left for their signals",)
    with pytest.raises(jax.errors.JaxRuntimeError, match="sflag"):  # whoever asked for them hears of it
        compile_with(HasNoSignals(), CompilerOptions("given", values), None)


def test_flags_have_the_types_that_jax_wants():
    assert typed_flags("--a=True --b=12 --c=x,y --d") == {"a": True, "b": 12, "c": "x,y", "d": True}


@needs_gpu_compiler
def test_callbacks_are_compiled_for_gpus_that_are_not_here():
    def loud(x):
        jax.debug.print("{}", x.sum())
        return x * jax.pure_callback(lambda v: v, jax.ShapeDtypeStruct(x.shape, x.dtype), x)

    on = mesh(data=8, target="h100:1x8")
    given = jax.ShapeDtypeStruct((16, 8), jnp.float32, sharding=jax.NamedSharding(on, P("data")))
    explanation = explain(jax.jit(loud), given)
    called = {
        one.attributes.get("custom_call_target")
        for c in explanation.hlo.computations.values()
        for one in c.instructions.values()
    }
    assert '"xla_ffi_python_gpu_callback"' in called or "xla_ffi_python_gpu_callback" in called


class Compiles:
    """A lowered program whose compiler gives back the options that it was asked for."""

    def __init__(self, lowered):
        self.compiler_ir = lowered.compiler_ir

    def compile(self, compiler_options):
        return compiler_options


@pytest.mark.any_jax
@pytest.mark.parametrize(("accumulate", "wrap"), [(1, lambda f: f), (2, lambda f: f), (2, jax.checkpoint)])
def test_a_preset_pipelines_no_collectives_of_a_loop_over_microbatches(accumulate, wrap):
    preset = compiler_options("preset", mesh(data=8, target="h100:1x8"))
    total = wrap(lambda x: sum_over_microbatches(lambda x, _: (jnp.sum(jnp.sin(x)), None), x, accumulate)[0])
    lowered = Compiles(
        jax.jit(jax.grad(lambda x: jax.lax.fori_loop(0, 3, lambda _, y: y + total(x), 0.0))).lower(jnp.ones(8))
    )
    values, options = compile_with(lowered, preset, None)
    pipelined = [name for name in values if "pipelined" in name]
    assert len(pipelined) == (3 if accumulate == 1 else 0)
    assert any("no pipelined collectives" in note for note in options.notes) == (accumulate > 1)
    given = compiler_options(dict(preset.values), None)
    assert compile_with(lowered, given, None)[1] == given, "what is asked for by name stays"


class KnowsNoPipelines:
    """A compiler of another version than the preset was written for."""

    compiler_ir = staticmethod(jax.jit(jnp.sin).lower(1.0).compiler_ir)

    def compile(self, compiler_options):
        if "xla_gpu_enable_pipelined_all_gather" in compiler_options:
            text = "INVALID_ARGUMENT: No such compile option: 'xla_gpu_enable_pipelined_all_gather'"
            raise jax.errors.JaxRuntimeError(text)
        return compiler_options


def test_what_of_a_preset_the_compiler_does_not_know_is_left_out():
    preset = compiler_options("preset", mesh(data=8, target="h100:1x8"))
    compiled, options = compile_with(KnowsNoPipelines(), preset, None)
    assert len(compiled) == len(preset.values) - 1
    assert options.notes == ("this compiler has no xla_gpu_enable_pipelined_all_gather",)


@pytest.mark.some_cases(1, newest=0)
@needs_tpu_compiler
@pytest.mark.parametrize("target", ["tpu-v4:1x1x1", "tpu-v5p:1x1x1", "tpu-v6e:1x1"])
def test_the_preset_compiles_for_each_generation_of_tpus(target):
    made = make(mesh(data=1, target=target), compiler_options="preset")
    assert made.compiled.memory_analysis().argument_size_in_bytes
    refused = "refuses xla_tpu_enable_async_collective_fusion for this" in str(made.compiler_options.notes)
    assert refused == (made.compiler_options.values["xla_tpu_enable_async_collective_fusion"] is False)
