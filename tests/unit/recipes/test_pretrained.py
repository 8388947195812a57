"""Weights by the names of Hugging Face's models, read into `lm` and below the adapters of `lora`."""

import dataclasses
import json

import jax
import numpy as np
import pytest
from safetensors.numpy import save_file

import outlay
from outlay.core.paths import flatten_paths
from outlay.errors import RecipeError
from outlay.examples import lora as lora_module
from outlay.examples.lora import lora
from outlay.models.transformer.language_model import language_model
from outlay.models.transformer.published import MODELS
from outlay.recipes import lm as lm_module
from outlay.recipes.lm import lm
from outlay.recipes.pretrained import llama_names

pytestmark = pytest.mark.compiles

TINY = dataclasses.replace(MODELS["tiny"].config, width=32, num_layers=2, num_heads=4, num_kv_heads=2, hidden=64)
HOW = {"sequence": 16, "batch": 8}


@pytest.fixture(scope="module", autouse=True)
def smaller():
    models = {"tiny": dataclasses.replace(MODELS["tiny"], config=TINY), "gpt": MODELS["mpt-125m"]}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lm_module, "MODELS", models)
        patch.setattr(lora_module, "MODELS", models)
        yield


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """The folder of a model that somebody else trained, and its parameters as we have them."""
    params = jax.jit(language_model(TINY)[0])(jax.random.key(7))
    leaves = {path: np.asarray(leaf) for path, leaf in flatten_paths(params)[0]}
    other = {}
    for name, path, *dims in llama_names(TINY, "x"):
        value = leaves.pop(path.removeprefix("x."))
        for layer in range(TINY.num_layers) if "*" in name else [None]:
            other[name.replace("*", str(layer))] = as_theirs(value if layer is None else value[layer], *dims)
    assert not leaves
    folder = tmp_path_factory.mktemp("model")
    save_file(other, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"hidden_size": 32, "num_key_value_heads": 2, "rope_scaling": None}))
    return folder, params


def as_theirs(value, dims=None):
    """(outputs, inputs), each one dim, as PyTorch has it."""
    if dims is None:
        return value
    num_inputs = sum(dim == 1 for dim in dims)
    return np.ascontiguousarray(value.reshape(np.prod(value.shape[:num_inputs]), -1).T)


def program_of(recipe, layout):
    mesh = outlay.mesh(recipe.mesh_of(layout))
    return outlay.program(recipe.step, recipe.init, recipe.data[0], layout=recipe.layouts[layout], mesh=mesh)


def losses_of(recipe, layout, steps):
    """The losses of the first steps, and the state after them."""
    program = program_of(recipe, layout)
    state, losses = recipe.begin(program, program.init(jax.random.key(0))), []
    for step in range(steps):
        state, metrics = program(state, recipe.data[step])
        losses.append(float(metrics["loss"]))
    return losses, state


@pytest.fixture(scope="module")
def expected(weights):
    """The loss of the model as it was trained, on one device."""
    losses, _ = jax.jit(language_model(TINY)[1])(weights[1], lm(**HOW).data[0], None)
    return float(losses.mean())


def test_lm_begins_with_the_weights_of_the_file(weights):
    recipe = lm(**HOW, from_=str(weights[0]))
    program = program_of(recipe, "fsdp")
    state = recipe.begin(program, program.init(jax.random.key(0)))
    jax.tree.map(np.testing.assert_array_equal, state.params, weights[1])


@pytest.mark.thorough  # test_lora.py
@pytest.mark.parametrize(("layout", "int8", "within"), [("tp", False, 1e-5), ("fsdp", True, 1e-2)])
def test_adapters_change_nothing_at_first_and_then_learn_alone(weights, expected, layout, int8, within):
    recipe = lora(**HOW, from_=str(weights[0]), rank=2, int8=int8)
    losses, state = losses_of(recipe, layout, steps=8)
    assert losses[0] == pytest.approx(expected, rel=within)
    assert losses[0] == pytest.approx(expected, rel=1e-5) or int8
    kernel = state.model_state["layers"]["attention"]["query"]["kernel"][...]
    own = np.asarray(weights[1]["layers"]["attention"]["query"]["kernel"][...])
    if int8:
        scale = np.asarray(state.model_state["layers"]["attention"]["query"]["scale"][...])
        assert kernel.dtype == np.int8
        assert (np.abs(np.asarray(kernel) * scale[:, None] - own) <= 0.51 * scale[:, None]).all()
    else:
        np.testing.assert_array_equal(kernel, own)  # after eight steps
    assert np.abs(state.params["layers"]["feed_forward"]["down"]["up"][...]).max() > 0
    assert len(jax.tree.leaves(state.opt_state)) == 2 + 2 * len(jax.tree.leaves(state.params))


def test_weights_of_another_model_are_refused_with_every_difference(weights, tmp_path):
    other = {"hidden_size": 4096, "rope_theta": 500000.0, "rope_scaling": {"factor": 8.0}, "vocab_size": 256}
    other["rope_parameters"] = {"rope_type": "yarn"}
    (tmp_path / "config.json").write_text(json.dumps(other))
    with pytest.raises(RecipeError, match="belongs to another model than was asked for") as error:
        lora(**HOW, from_=str(tmp_path))
    assert [line.split(": ", 1)[1] for line in str(error.value).splitlines()[1:]] == [
        "hidden_size is 4096 there, width is 32 here",
        "rope_theta is 500000.0 there, rotary_base is 10000.0 here",
        "rope_scaling is {'factor': 8.0} there, scaling of rotary positions is None here",
        "rope_type is yarn there, kind of rotary positions is default here",
    ]
    with pytest.raises(RecipeError, match=r"it is not like Llama: rotary positions.*outlay\.train\.read_weights"):
        lora("gpt", **HOW, from_=str(weights[0]))
    with pytest.raises(RecipeError, match="there is no nowhere"):
        lora(**HOW, from_="nowhere")
    with pytest.raises(RecipeError, match="is_int8 is for projections with adapters and without biases"):
        lora("gpt", **HOW, int8=True)
    with pytest.raises(RecipeError, match="no model 'tinny': did you mean 'tiny'"):
        lora("tinny")
    with pytest.raises(RecipeError, match="rank=0: adapters need 1 feature or more"):
        lora(rank=0)
