import os
import subprocess
import sys

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
