import os
import subprocess
import sys
import threading

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive

from outlay.core.jax_compat import in_backward_pass, intercepting, user_frames

PROGRAM = """
import jax
from outlay.core.jax_compat import backend_is_started
assert not backend_is_started()
jax.jit(lambda x: x)
assert not backend_is_started()
jax.devices()
assert backend_is_started()
"""


def test_the_backend_counts_as_started_from_the_first_use_of_devices():
    subprocess.run([sys.executable, "-c", PROGRAM], env={**os.environ, "JAX_PLATFORMS": "cpu"}, check=True, timeout=60)


def test_an_interceptor_sees_every_operation_of_its_thread_and_the_line_that_made_it():
    seen = []

    def intercept(primitive, bind, operands, params):
        seen.append((primitive.name, [frame.function.split(".")[-1] for frame in user_frames()]))
        return bind(*operands, **params)

    def wave(x):
        return jnp.sin(x)

    bind = Primitive.bind
    with intercepting(intercept):
        jax.eval_shape(wave, 1.0)
        other = threading.Thread(target=lambda: jax.eval_shape(jnp.cos, 1.0))
        other.start()
        other.join()
    assert Primitive.bind is bind
    assert [name for name, _ in seen if name in ("sin", "cos")] == ["sin"]
    assert all("wave" in functions for name, functions in seen if name == "sin"), "jnp.sin is an inner jitted function"


def test_an_operation_of_a_backward_pass_has_the_line_of_its_forward_operation():
    found = []

    def intercept(primitive, bind, operands, params):
        if in_backward_pass():
            found.extend(frame.function.split(".")[-1] for frame in user_frames())
        return bind(*operands, **params)

    def double(x):
        return jax.lax.mul(x, jnp.float32(2))

    with intercepting(intercept):
        jax.eval_shape(jax.grad(double), jnp.float32(1))
    assert "double" in found
