import jax
import jax.numpy as jnp
import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

import outlay
from outlay.core.error_types import DataError, ProgramError, RecipeError
from outlay.models.transformer.published import MODELS
from outlay.program.program import Program
from outlay.recipes.corpus import python_sources
from outlay.recipes.lm import lm
from outlay.recipes.prepare import prepare_with
from outlay.recipes.program_options import ProgramOptions

LAYOUTS = ["dp", "zero1", "fsdp", "hsdp", "tp", "fsdp+tp", "fsdp+tp+sp", "zero1+tp+sp"]


@pytest.fixture(scope="module", params=["small", "llama3.2-1b", "llama3-70b", "mpt-7b", "maxtext-16b"])
def recipe_and_shapes(request):
    """A recipe of each kind of model, and the shapes of its state."""
    recipe = lm(request.param)
    return recipe, jax.eval_shape(recipe.init, jax.eval_shape(lambda: jax.random.key(0)))


@pytest.mark.some_cases(6)
@pytest.mark.compiles
@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_plans_every_kind_of_model_without_making_it(recipe_and_shapes, layout):
    recipe, state = recipe_and_shapes
    contexts = ["cp", "fsdp+cp", "fsdp+tp+cp", "zero1+tp+sp+cp"]
    assert list(recipe.layouts) == [
        *(*LAYOUTS, *contexts),
        *("pp", "pp+tp", "pp+fsdp+tp", "pp+zero1+tp+sp", *(f"pp+{each}" for each in contexts)),
    ]
    plan = recipe.layouts[layout].plan(state, outlay.mesh(recipe.mesh_of(layout)), batch=recipe.data[0])
    kernels = [
        leaf
        for leaf in plan.state
        if leaf.path.endswith((".kernel", ".embedding")) and (layout != "tp" or ".positions." not in leaf.path)
    ]
    of = {
        "dp": lambda leaf: 1,
        "zero1": lambda leaf: 8 if leaf.path.startswith("opt_state") else 1,
        "fsdp": lambda leaf: 8,
        "hsdp": lambda leaf: 4,
        "tp": lambda leaf: 2,
        "fsdp+tp": lambda leaf: 4 if ".positions." in leaf.path else 8,
        "fsdp+tp+sp": lambda leaf: 4 if ".positions." in leaf.path else 8,
        "zero1+tp+sp": lambda leaf: (
            (4 if leaf.path.startswith("opt_state") else 1) * (1 if ".positions." in leaf.path else 2)
        ),
    }[layout]
    assert {leaf.path: 8 // leaf.num_copies for leaf in kernels} == {leaf.path: of(leaf) for leaf in kernels}
    # Every layer is the same work, so a scan over split layers would leave all devices but one waiting.
    assert not any(leaf.dims[0] for leaf in kernels if ".layers." in leaf.path)
    biases = {leaf.path: 8 // leaf.num_copies for leaf in plan.state if leaf.path.endswith(("query.bias", "up.bias"))}
    assert set(biases.values()) <= {2 if "tp" in layout else 1}


@pytest.mark.parametrize("name", ["small", "llama3-70b"])
def test_data_come_in_the_batch_and_the_sequence_of_the_published_model(name):
    tokens = lm(name).data[0]["tokens"]
    assert (tokens.shape, tokens.dtype) == ((MODELS[name].batch, MODELS[name].sequence), np.uint8)


@pytest.mark.thorough  # test_placed_stages.py has the stages
def test_its_pipeline_runs_as_stages_in_the_order_that_a_command_names():
    options = ProgramOptions(mesh="stage=2,data=2,model=2", layout="pp+fsdp+tp", mode="placed", schedule="zb-h1")
    program = prepare_with(lm("tiny"), options).program
    assert program.schedule.name == "zb-h1"
    assert program.schedule.num_stages == 2
    assert options.words()[-2:] == ["--schedule", "zb-h1"]


def test_what_cannot_be_asked_for_is_all_named():
    with pytest.raises(RecipeError, match="no model 'llama3-8B': did you mean 'llama3-8b'") as error:
        lm("llama3-8B", remat="queris,up")
    assert "remat names a value 'queris' that no layer has: did you mean 'queries'?" in str(error.value)
    with pytest.raises(RecipeError, match="lm cannot be made") as error:
        lm("llama3-8b", width=4100, heads=12, vocabulary=100, loss_chunks=3, window=-1)
    assert str(error.value).splitlines()[1:] == [
        "  width 4100 / 12 heads leaves 8 over: give head_dim (--head-dim)",
        "  vocabulary=100: it reads bytes, so make it 256 or more",
        "  loss_chunks=3 does not divide the sequence of 4096",
        "  window=-1: a token sees itself, so make it 1 or more",
        "  12 query heads cannot share 8 key and value heads evenly: make num_heads a multiple of num_kv_heads",
        "  head_dim=341 is odd, and rotary embeddings turn pairs: make it even",
    ]


def test_what_is_left_out_follows_from_what_is_asked_for():
    """A head's features from width and heads, and as many key heads as heads where the model has no groups."""
    shapes = jax.eval_shape(lm("mpt-7b", width=512, heads=4, layers=2, sequence=64).init, jax.random.key(0)).params
    assert shapes["layers"]["attention"]["key"]["kernel"].shape == (2, 512, 4, 128)
    assert shapes["positions"]["embedding"].shape == (64, 512)


def test_the_dtypes_are_those_that_are_asked_for():
    recipe = lm("tiny", param_dtype="bfloat16", optimizer_dtype="float32")
    state = jax.eval_shape(recipe.init, jax.random.key(0))
    assert {str(leaf.dtype) for leaf in jax.tree.leaves(state.params)} == {"bfloat16"}
    floats = [leaf.dtype for leaf in jax.tree.leaves(state.opt_state) if jnp.issubdtype(leaf.dtype, jnp.floating)]
    assert set(map(str, floats)) == {"float32"}
    # Two moments, and master copies of parameters that are narrower.
    assert len(floats) == 3 * len(jax.tree.leaves(state.params))


@pytest.mark.thorough
@pytest.mark.compiles
def test_the_choices_reach_the_model():
    plain, other = lm("tiny"), lm("tiny", sequence=32, batch=8, remat="full", accumulate=2, dtype="bfloat16")
    assert plain.data[0]["tokens"].shape == (16, 128)
    assert other.data[0]["tokens"].shape == (8, 32)
    assert "bf16" in traced(other)
    assert "bf16" not in traced(plain)


def traced(recipe):
    return str(jax.make_jaxpr(recipe.step)(jax.eval_shape(recipe.init, jax.random.key(0)), recipe.data[0]))


def test_the_data_is_python():
    recipe = lm("tiny", sequence=64)
    train, _ = python_sources(64)
    batch = recipe.data[3]["tokens"]
    assert all((row == train).all(axis=1).any() for row in batch[:3])


@pytest.mark.thorough  # test_sampling.py and test_same_result.py draw some
@pytest.mark.compiles
def test_a_sample_is_drawn_where_the_state_lives():
    """The numbers are those of one device, so the text is the same to the letter."""
    recipe = lm("tiny", sequence=16)
    one, eight = outlay.mesh("data=1,model=1", devices=jax.devices()[:1]), outlay.mesh("data=4,model=2")
    layout = recipe.layouts["fsdp+tp"]
    alone, split = (Program(recipe.step, recipe.init, recipe.data[0], layout, mesh) for mesh in (one, eight))
    state = alone.init(jax.random.key(0))
    elsewhere = outlay.arrays.put(jax.device_get(state), split.plan, eight)
    texts = [recipe.sample(alone, state), recipe.sample(split, elsewhere)]
    assert texts[0] == texts[1]
    assert texts[0].startswith("def ")
    assert len(texts[0].encode()) >= len("def ") + 16


def test_a_batch_of_more_than_there_is_reads_it_again():
    recipe = lm("tiny", sequence=2**16, batch=512)
    assert recipe.data[0]["tokens"].shape == (512, 2**16)


def test_text_and_tables_of_ones_own(tmp_path):
    (tmp_path / "mine.txt").write_bytes(bytes(range(100, 200)) * 20)
    recipe = lm("tiny", sequence=20, batch=8, data=str(tmp_path / "mine.txt"))
    assert set(recipe.data[0]["tokens"].ravel().tolist()) <= set(range(100, 200))
    assert recipe.sample is not None
    path = tmp_path / "rows.parquet"
    pyarrow.parquet.write_table(pyarrow.table({"input_ids": [[n, n + 300] for n in range(40)]}), path)
    recipe = lm("tiny", vocabulary=400, sequence=2, batch=8, data=str(path), column="input_ids")
    tokens = recipe.data[0]["tokens"]
    assert (tokens[:, 1] - tokens[:, 0] == 300).all()
    assert recipe.sample is None  # numbers are not bytes to show
    with pytest.raises(DataError, match=r"rows\.parquet has the token 3\d\d, but the vocabulary has 256"):
        lm("tiny", sequence=2, batch=36, data=str(path), column="input_ids").data[0]
    with pytest.raises(RecipeError, match="has sequences of 2 tokens\n  fix: --sequence 2"):
        lm("tiny", data=str(path), column="input_ids")
    with pytest.raises(RecipeError, match="--column x needs a table, but there is none"):
        lm("tiny", column="x")
    with pytest.raises(ProgramError, match=r"batch_size=91 does not fit 90 examples of .*mine\.txt"):
        lm("tiny", sequence=20, batch=91, data=str(tmp_path / "mine.txt"))
