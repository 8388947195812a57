"""The compilers that targets need: the tests that use one are skipped where its extra is not installed."""

from importlib.util import find_spec

import pytest


def _is_there(module):
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


needs_gpu_compiler = pytest.mark.skipif(not _is_there("jax_plugins.xla_cuda13"), reason="needs outlay[gpu-plan]")
needs_tpu_compiler = pytest.mark.skipif(not _is_there("libtpu"), reason="needs outlay[tpu-plan]")
