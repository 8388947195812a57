"""What every test and doctest runs on: eight simulated CPU devices, and numerics stricter than a user's.

It stands at the root, not in tests/, because the doctests of src/ need it too.
"""

import importlib.metadata
import os
import signal

import hypothesis
import pytest

import outlay
from outlay.core.xla_flags import merge_flags

# Most of what XLA does to compile a small program is to make fast machine code of it, which tests do not need. What it
# makes it of, the optimized HLO that tests read, is the same. Processes that tests start inherit the flags; what must
# hold in the code that users run is also tested without them (test_brain_as_compiled.py).
QUICK_COMPILES = {"xla_backend_optimization_level": "0"}
if importlib.metadata.version("jax").startswith("0.10."):  # later ones know no other way, and stop at the flag
    QUICK_COMPILES["xla_cpu_use_fusion_emitters"] = "false"
os.environ["XLA_FLAGS"] = merge_flags(os.environ.get("XLA_FLAGS", ""), QUICK_COMPILES)
outlay.simulate(8)
# A shell starts what runs in the background with Ctrl-C ignored, and children inherit that: the tests that send it to
# commands would wait for ever.
signal.signal(signal.SIGINT, signal.default_int_handler)

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

# Not dtype promotion too: optax itself raises floats to integer powers, in the bias correction of Adam.
jax.config.update("jax_numpy_rank_promotion", "raise")

# Compiling takes longer than hypothesis's deadline, and a gate must try the same examples every time.
hypothesis.settings.register_profile("outlay", deadline=None, derandomize=True)
hypothesis.settings.load_profile("outlay")


@pytest.fixture(scope="session", autouse=True)
def eight_devices() -> None:
    """Fail, never skip: on one device most sharding tests would pass without testing anything."""
    assert len(jax.devices()) == 8, f"the tests need 8 simulated devices and found {jax.devices()}"


@pytest.fixture(scope="session", autouse=True)
def names_in_doctests(doctest_namespace: dict[str, object]) -> None:
    """What the docstring examples take as imported."""
    doctest_namespace.update(jax=jax, jnp=jnp, np=np, outlay=outlay, P=PartitionSpec)
