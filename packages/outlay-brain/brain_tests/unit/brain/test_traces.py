import jax.numpy as jnp
import numpy as np
import pytest
from brain_tests.unit.brain import plain_equations as plain
from hypothesis import given, settings
from hypothesis import strategies as st

from outlay.brain.traces import RDTracer, RFSTracer, Tracer

taus = st.floats(0.5, 100.0)
scales = st.floats(0.1, 3.0)
dts = st.sampled_from([0.1, 0.5, 1.0])
INPUTS = np.random.default_rng(0).integers(0, 2, 30).astype(np.float32)


def run(tracer, dt):
    trace, values = tracer.init((1,), jnp.float32), []
    for x in INPUTS:
        trace = tracer.step(trace, x, dt=dt)
        values.append(float((trace if isinstance(tracer, Tracer) else tracer.value(trace))[0]))
    return values


@pytest.mark.compiles
@settings(deadline=None, max_examples=15)
@given(tau=taus, scale=scales, base=st.floats(-2.0, 2.0), dt=dts)
def test_an_exponential_trace(tau, scale, base, dt):
    expected = plain.Tracer(tau, scale, base, dt=dt)
    assert expected.value == base
    np.testing.assert_allclose(run(Tracer(tau, scale, base), dt), [expected(x) for x in INPUTS], atol=2e-5, rtol=1e-5)


@pytest.mark.compiles
@settings(deadline=None, max_examples=10)
@given(rise=taus, decay=taus, scale=scales, base=st.floats(-1.0, 1.0), dt=dts)
def test_a_trace_that_rises_and_decays(rise, decay, scale, base, dt):
    tracer = RDTracer(rise, decay, scale, 1.5, base, 0.5)
    expected = plain.RDTracer(rise, decay, scale, 1.5, base, 0.5, dt=dt)
    np.testing.assert_allclose(run(tracer, dt), [expected(x) for x in INPUTS], atol=5e-5, rtol=1e-5)


def test_a_trace_with_a_fast_and_a_slow_decay():
    tracer = RFSTracer(0.7, RDTracer(1.0, 5.0), RDTracer(1.0, 50.0))
    expected = plain.RFSTracer(0.7, plain.RDTracer(1.0, 5.0, dt=0.5), plain.RDTracer(1.0, 50.0, dt=0.5))
    np.testing.assert_allclose(run(tracer, 0.5), [expected(x) for x in INPUTS], atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_a_trace_keeps_its_dtype(dtype):
    tracer = Tracer(20.0, 1.0, 3.0)
    assert tracer.step(tracer.init((2,), dtype), jnp.ones(2, bool), dt=1.0).dtype == dtype
