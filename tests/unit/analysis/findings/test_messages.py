"""What the compiler says while it compiles, provoked for real where it can be."""

import os
import warnings

import jax
import jax.numpy as jnp
import pytest
from jax.experimental.compilation_cache.compilation_cache import reset_cache
from jax.sharding import PartitionSpec as P
from tests.unit.report.explain.programs import explain_on, line_of, named, shape

from outlay.analysis.findings.compiler_messages import is_message, message_findings, size_bytes, watching
from outlay.analysis.findings.memory import buffers_in, gave_up
from outlay.core.error_types import TargetError
from outlay.devices.build import mesh
from outlay.devices.compile_only import target_devices
from outlay.report.explain.explain import explain

pytestmark = pytest.mark.newest


def cannot_go_directly(x):
    on = mesh(data=4, model=2)
    x = jnp.tanh(x)
    x = jax.lax.with_sharding_constraint(x, jax.NamedSharding(on, P("model", None, "data")))  # from here
    x = jax.lax.with_sharding_constraint(x, jax.NamedSharding(on, P(None, ("data", "model"), None)))  # to here
    return jnp.sin(x)  # or here


def test_an_involuntary_rematerialization_becomes_a_finding(capfd):
    explanation = explain_on(mesh(data=4, model=2), cannot_go_directly, ((16, 16, 16), P()))
    (finding,) = explanation.findings
    assert finding.kind == "full-rematerialization"
    assert finding.source.line == line_of("# from here", __file__)
    assert finding.cost_bytes == 16**3 * 4
    assert finding.text.startswith("the result of sharding_constraint as P('model', None, 'data'), which ")
    # Where the value is taken is the constraint's line, or that of what uses it: the compilers name one or the other.
    taken = [line_of("# to here", __file__), line_of("# or here", __file__)]
    assert any(f"test_messages.py:{line} takes as P(None, ('data', 'model'), None)," in finding.text for line in taken)
    assert "outlay.constrain(x, P(None, ('data', 'model'), None))" in finding.fix
    (message,) = explanation.messages
    assert "Involuntary full rematerialization" in message
    assert "Involuntary" not in capfd.readouterr().err  # it is said once


@pytest.fixture
def persistent_cache(tmp_path):
    """As users set it up: programs of equal operations share an entry, whatever lines they come from."""
    before = {name: getattr(jax.config, name) for name in CACHE}
    for name, value in (CACHE | {"jax_compilation_cache_dir": str(tmp_path)}).items():
        jax.config.update(name, value)
    reset_cache()
    yield tmp_path
    for name, value in before.items():
        jax.config.update(name, value)
    reset_cache()


CACHE = {
    "jax_compilation_cache_dir": "",
    "jax_compilation_cache_include_metadata_in_key": False,
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
}


def test_source_lines_do_not_come_from_the_persistent_cache(persistent_cache):
    def of_another(x):
        return jnp.sin(x @ x)

    def of_its_own(x):
        return jnp.sin(x @ x)  # of its own

    of_another.__name__ = of_its_own.__name__
    on = mesh(data=1, devices=jax.devices()[:1])  # programs of several CPU devices are not in the cache
    jax.jit(of_another).lower(shape(64, 64, on=on)).compile()
    assert list(persistent_cache.iterdir())
    explained = explain_on(on, of_its_own, ((64, 64), P()))
    lines = {array.source.line for array in explained.memory.largest if array.source}
    assert lines == {line_of("# of its own", __file__)}


def test_a_program_without_it_prints_nothing(capfd):
    def goes_directly(x):
        return jax.lax.with_sharding_constraint(jnp.tanh(x), jax.NamedSharding(mesh(data=8), P(None, "data")))

    explanation = explain_on(mesh(data=8), goes_directly, ((64, 64), P("data")))
    assert (explanation.messages, explanation.of_kind("full-rematerialization")) == ((), ())
    assert capfd.readouterr().err == ""


def test_printing_a_split_array():
    def prints(x):
        jax.debug.print("{}", x)
        return x + 1

    explanation = explain_on(mesh(data=4, model=2), prints, ((64, 64), P("data", "model")))
    (finding,) = explanation.of_kind("full-rematerialization")
    assert finding.text.startswith("x as P('data', 'model'), which is needed on device 0 alone, as for jax.debug.print")
    assert "print a reduced value instead" in finding.fix


def test_what_is_not_recognised_is_passed_on(capfd):
    with watching(lambda line: line.startswith("known")) as printed:
        os.write(2, b"known: one\nother: two\nknown: three\nother without an end")
        assert capfd.readouterr().err == ""
    assert printed.messages == ("known: one", "known: three")
    assert capfd.readouterr().err == "other: two\nother without an end"


def test_nothing_is_lost_when_the_compiler_raises(capfd):
    def compiler():
        os.write(2, b"W1 known\nE2 why\n")
        raise ValueError("no")

    seen = []

    def watched():
        with watching(lambda line: "known" in line) as printed:
            seen.append(printed)
            compiler()

    with pytest.raises(ValueError, match="no"):
        watched()
    assert seen[0].messages == ("W1 known",)
    assert capfd.readouterr().err == "E2 why\n"


def test_other_warnings_of_python_stay_warnings():
    def compiler():
        with watching(lambda line: False):
            warnings.warn("mind the gap", UserWarning, stacklevel=1)
            warnings.warn("Some donated buffers were not usable: f32[3]", UserWarning, stacklevel=1)

    with pytest.warns(UserWarning, match="mind") as caught:
        compiler()
    assert len(caught) == 1


def test_memory_that_the_compiler_cannot_save():
    lines = [
        f"W1121 13:59:01.957280    6208 hlo_rematerialization.cc:3402] Can't reduce memory use below {least} (1 bytes) "
        f"by rematerialization; only reduced to {reached} (2 bytes), down from 122.07GiB (3 bytes) originally"
        for least, reached in (("3.81GiB", "3.81GiB"), ("26.34GiB", "133.83GiB"))
    ]
    assert all(map(is_message, lines))
    (finding,) = message_findings(lines)
    assert finding.kind == "memory-limit"
    assert "still needs 133.83GiB for temporaries instead of 26.34GiB" in finding.text
    assert finding.cost_bytes == size_bytes("133.83GiB")


def too_much(w, x):
    def loss(w):
        return (jax.lax.scan(lambda h, layer: (jnp.tanh(h @ layer), None), x, w)[0] ** 2).sum()

    return w - jax.grad(loss)(w)


def on_target(target, spec=P(None, "data")):
    try:
        num_devices = len(target_devices(target))
    except TargetError:
        pytest.skip(f"the compiler of {target} is not installed")
    on = mesh(data=num_devices, target=target)
    w, x = shape(16, 4096, 4096, on=on, spec=spec), shape(2_000_000, 4096, on=on, spec=P("data"))
    return explain(jax.jit(too_much, donate_argnums=0), w, x)


@pytest.mark.compiles
def test_a_step_that_does_not_fit_a_gpu_names_its_largest_arrays(capfd):
    explanation = on_target("a100-40gb:1x8")
    assert explanation.fits is False
    assert explanation.findings[0].kind == "out-of-memory"
    assert explanation.memory.peak > explanation.memory.capacity
    assert "61.0 GiB" in explanation.findings[0].text
    assert "f32[16, 250000, 4096]" in explanation.findings[0].text
    assert "Can't reduce memory use" in " ".join(explanation.messages)
    assert len(explanation.of_kind("memory-limit")) == 1
    assert "hlo_rematerialization" not in capfd.readouterr().err
    assert str(explanation).splitlines()[1].startswith("does not fit: peak ")


@pytest.mark.compiles
def test_a_compiler_that_gives_up_is_a_finding_too():
    explanation = on_target("tpu-v5e:2x2")
    assert (explanation.fits, explanation.hlo, explanation.memory, explanation.collectives) == (False, None, None, ())
    (finding,) = explanation.findings
    assert finding.kind == "out-of-memory"
    assert "on a device of 15.75G" in finding.text
    assert "488.3 GiB scan (float32[16, 2000000, 4096])" in finding.text
    assert explanation.incomplete == (
        "the compiler ran out of memory and produced no program: collectives and times are unknown",
    )
    assert named(explanation).keys() == {"out-of-memory"}
    assert "does not fit" in str(explanation)
    assert "does not fit" in explanation.to_html()


LISTING = """RESOURCE_EXHAUSTED: XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 23.28G \
of 15.75G hbm. Exceeded hbm capacity by 7.53G.

  Largest program allocations in hbm:

  1. Size: 4.00G
     Operator: op_name="jit(step)/transpose(jvp())/dot_general" source_file="/home/me/model.py" source_line=41
     Shape: f32[32768,32768]{1,0:T(8,128)}
     Unpadded size: 4.00G
     Allocation type: HLO temp
     ==========================

  2. Size: 5.00G
     Shape: bf16[65536,32768]{1,0:T(8,128)(2,1)}
     Unpadded size: 4.00G
     Allocation type: HLO temp
"""


def test_a_compiler_that_lists_buffers_is_quoted():
    five, four = buffers_in(LISTING)
    assert (five.num_bytes, five.shape, five.dtype, five.source) == (5 * 2**30, (65536, 32768), "bf16", None)
    assert (four.what, str(four.source)) == ("dot_general, backward", "/home/me/model.py:41")
    finding = gave_up(LISTING)
    assert "the step needs 23.28G on a device of 15.75G; largest: 5.0 GiB" in finding.text
    assert finding.cost_bytes == size_bytes("23.28G")
    assert str(finding.source) == "/home/me/model.py:41"
