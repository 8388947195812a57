"""The recipes of images: state of the model, two networks, and images of one's own."""

import jax
import numpy as np
import PIL.Image
import pytest

import outlay
from outlay.errors import DataError, ProgramError, RecipeError
from outlay.examples.gan import adversarial_loss, gan
from outlay.examples.resnet import resnet

pytestmark = [pytest.mark.compiles, pytest.mark.usefixtures("blank_pictures")]


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Two classes of twenty small images: dark ones and bright ones."""
    folder = tmp_path_factory.mktemp("photos")
    values = np.random.default_rng(0).integers(0, 100, (40, 8, 8, 3)).astype(np.uint8)
    for number, pixels in enumerate(values):
        name = ("dark", "light")[number % 2]
        (folder / name).mkdir(exist_ok=True)
        PIL.Image.fromarray(pixels + np.uint8(150 * (number % 2))).save(folder / name / f"{number}.png")
    return folder


@pytest.mark.thorough  # the guide your_data trains it on photos
def test_resnet_learns_photos_in_folders_and_keeps_averages(photos, tmp_path):
    recipe = resnet(str(photos), width=4, batch=16)
    result = outlay.run(recipe, steps=8, run_folder=tmp_path / "run", checkpoint_every=8)
    assert result.held_out["accuracy"] == 1.0  # with the averages: a dark image is dark beside other images too
    averages = [leaf.path for leaf in recipe_plan(recipe) if leaf.path.startswith("model_state.")]
    assert len(averages) == 2 * (1 + 3 * 2)


def recipe_plan(recipe):
    state = jax.eval_shape(recipe.init, jax.eval_shape(lambda: jax.random.key(0)))
    return recipe.layouts["dp"].plan(state, outlay.mesh(data=8), batch=recipe.data[0])


def test_images_that_do_not_serve_are_refused(photos, tmp_path):
    np.savez(tmp_path / "grey.npz", image=np.zeros((40, 8, 8), np.uint8), label=np.zeros(40, np.int32))
    with pytest.raises(RecipeError, match=r"shape \(8, 8\) each, but a residual network takes"):
        resnet(str(tmp_path / "grey.npz"))
    with pytest.raises(ProgramError, match=r"batch_size=128 does not fit 36 examples of .*photos"):
        resnet(str(photos))
    np.savez(tmp_path / "colours.npz", image=np.zeros((40, 8, 8, 3), np.uint8))
    with pytest.raises(RecipeError, match=r"shape \(8, 8, 3\) each, but this recipe draws grey ones"):
        gan(str(tmp_path / "colours.npz"))
    with pytest.raises(DataError, match="'label': known: 'image'"):
        resnet(str(tmp_path / "colours.npz"))


@pytest.mark.thorough  # test_any_model.py has two networks
def test_each_network_of_the_gan_changes_by_its_own_loss_alone():
    recipe = gan(width=8, batch=16)
    params, batch = recipe.init(jax.random.key(0)).params, recipe.data[0]

    def means(params):
        losses, metrics = adversarial_loss(params, batch, jax.random.split(jax.random.key(1), 16))
        return {"both": losses.mean(), **{name: metrics[name].mean() for name in ("generator", "discriminator")}}

    gradients = jax.jit(jax.jacrev(means))(params)
    for name in ("generator", "discriminator"):
        both, own = gradients["both"][name], gradients[name][name]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-7), both, own)
        assert all(np.abs(leaf).max() > 0 for leaf in jax.tree.leaves(own))


@pytest.mark.thorough  # test_examples_and_commands.py runs it
def test_the_gan_shows_what_it_draws():
    recipe = gan(width=8, batch=16)
    program = outlay.program(
        recipe.step, recipe.init, recipe.data[0], layout=recipe.layouts["dp"], mesh=outlay.mesh(data=8)
    )
    drawing = recipe.sample(program, program.init(jax.random.key(0))).splitlines()
    assert (len(drawing), {len(line) for line in drawing}) == (8, {6 * 8 + 5 * 3})
