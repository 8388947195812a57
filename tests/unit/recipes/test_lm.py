import typing

import jax
import numpy as np
import pytest

import outlay
from outlay.core.errors import RecipeError
from outlay.execute.program import Program
from outlay.models.transformer.config import SIZES
from outlay.recipes.lm import TRAINING, Size, lm
from outlay.recipes.python_sources import python_sources


def program_of(recipe, layout, mesh=None):
    return Program(
        recipe.step, recipe.init, recipe.data[0], recipe.layouts[layout], outlay.mesh(mesh or recipe.mesh_of(layout))
    )


def test_every_size_has_dims_and_a_way_to_train_it():
    assert list(typing.get_args(Size)) == list(SIZES) == list(TRAINING)


@pytest.mark.compiles
@pytest.mark.parametrize("size", [size for size in SIZES if size != "tiny"])
@pytest.mark.parametrize("layout", lm("tiny").layouts)
def test_every_layout_plans_every_size_without_making_it(size, layout):
    recipe = lm(size)
    tokens = recipe.data[0]["tokens"]
    assert (tokens.shape, tokens.dtype) == ((TRAINING[size].batch, TRAINING[size].sequence), np.uint8)
    state = jax.eval_shape(recipe.init, jax.eval_shape(lambda: jax.random.key(0)))
    plan = recipe.layouts[layout].plan(state, outlay.mesh(recipe.mesh_of(layout)), batch=recipe.data[0])
    kernels = [leaf for leaf in plan.state if leaf.path.endswith((".kernel", ".embedding"))]
    of = {
        "dp": lambda leaf: 1,
        "zero1": lambda leaf: 8 if leaf.path.startswith("opt_state") else 1,
        "fsdp": lambda leaf: 8,
        "tp": lambda leaf: 2,
        "fsdp+tp": lambda leaf: 8,
        "fsdp+tp+sp": lambda leaf: 8,
    }[layout]
    assert {leaf.path: 8 // leaf.num_copies for leaf in kernels} == {leaf.path: of(leaf) for leaf in kernels}
    # Every layer is the same work, so a scan over split layers would leave all devices but one waiting.
    assert not any(leaf.dims[0] for leaf in kernels if ".layers." in leaf.path)


def test_an_unknown_size():
    with pytest.raises(RecipeError, match="no size '70B' of lm: did you mean '70b'"):
        lm("70B")


@pytest.mark.compiles
def test_the_choices_reach_the_model():
    plain, other = lm("tiny"), lm("tiny", sequence=32, batch=8, remat=True, accumulate=2, dtype="bfloat16")
    assert plain.data[0]["tokens"].shape == (16, 128)
    assert other.data[0]["tokens"].shape == (8, 32)
    jaxpr = str(program_of(other, "dp").lowered.as_text())
    assert "bf16" in jaxpr
    assert "bf16" not in program_of(plain, "dp").lowered.as_text()


def test_the_data_is_python():
    recipe = lm("tiny", sequence=64)
    train, _ = python_sources(64)
    batch = recipe.data[3]["tokens"]
    assert all((row == train).all(axis=1).any() for row in batch[:3])


@pytest.mark.compiles
def test_a_sample_is_drawn_where_the_state_lives(monkeypatch):
    """The numbers are those of one device, so the text is the same to the letter."""
    monkeypatch.setattr("outlay.recipes.lm.NUM_SAMPLED", 40)
    recipe = lm("tiny", sequence=16)
    texts = []
    for mesh in (outlay.mesh("data=1,model=1", devices=jax.devices()[:1]), outlay.mesh("data=4,model=2")):
        program = Program(recipe.step, recipe.init, recipe.data[0], recipe.layouts["fsdp+tp"], mesh)
        texts.append(recipe.sample(program, program.init(jax.random.key(0))))
    assert texts[0] == texts[1]
    assert texts[0].startswith("def ")
    assert len(texts[0].encode()) >= 44
