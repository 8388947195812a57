"""The example of adapters over weights from a file: it trains, and the base stays what the file says."""

import runpy
from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file

import outlay

pytestmark = pytest.mark.compiles

EXAMPLE = runpy.run_path(str(Path(__file__).parents[2] / "examples" / "lora.py"))


@pytest.mark.thorough  # test_examples_and_commands.py has examples
def test_adapters_learn_over_a_frozen_base_from_a_file(tmp_path, capsys):
    path = tmp_path / "model.safetensors"
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):  # as users have it
        EXAMPLE["write_pretrained"](path)
        program, done = EXAMPLE["main"](path)
        examples = EXAMPLE["make_examples"](500, 8)
        assert outlay.evaluate(program, done.state, examples, loss=EXAMPLE["loss"])["accuracy"] > 0.95
    kernel = done.state.params["base"]["hidden"]["kernel"]
    np.testing.assert_array_equal(kernel, load_file(path)["model.hidden.weight"].T)
    assert kernel.sharding.shard_shape(kernel.shape) == (4, 32)
    moments = [leaf.path for leaf in program.plan if ".mu." in leaf.path]
    assert moments
    assert all(".adapters." in path for path in moments)
    assert "what it is to learn" in capsys.readouterr().out
