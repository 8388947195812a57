"""Smaller sizes are divided, ordered and padded as the full ones are."""

import dataclasses

import pytest

from outlay.models.transformer.published import MODELS
from outlay.recipes.lm import lm
from outlay.recipes.smaller_lm import LmSizes, smaller_lm
from outlay.recipes.smaller_mesh import SmallerMesh

HOSTS_32 = SmallerMesh({"data": 128, "model": 2}, {"data": 8, "model": 2}, ("data",))
HOSTS_64 = SmallerMesh({"data": 64, "model": 8}, {"data": 4, "model": 4}, ("data",))
ONE_HOST = SmallerMesh({"data": 8}, {"data": 8}, ("data",))


def divided(less: SmallerMesh, full: int, small: int) -> list[tuple[bool, bool]]:
    return [(full % many == 0, small % few == 0) for many, few in less._products]


@pytest.mark.parametrize("less", [HOSTS_32, HOSTS_64, ONE_HOST], ids=["32 hosts", "64 hosts", "one host"])
@pytest.mark.parametrize("full", [50_257, 50_368, 128_256, 28_672, 2304, 25_600])
def test_axes_divide_a_smaller_size_as_they_divide_the_full_one(less, full):
    small = less.size(full, at_least=256)
    assert 256 <= small < 2048
    assert all(before == after for before, after in divided(less, full, small)), small


@pytest.mark.parametrize(("full", "small"), [(50_257, 257), (50_368, 320), (4096, 256), (255, 255), (1, 1)])
def test_powers_of_two_stay_so_that_kernels_do(full, small):
    assert ONE_HOST.size(full, at_least=256) == small


def test_what_no_layout_splits_may_be_divided_by_more_axes():
    # 72 is not divided by 128 devices; on the smaller mesh these are 8.
    assert HOSTS_32.size(72, at_least=8, tile=1) == 10
    assert HOSTS_32.size(72, at_least=8, tile=1, may_split=True) == 8


def test_where_one_axis_divides_a_size_and_another_as_small_one_does_not_both_do():
    assert HOSTS_64.size(72, at_least=4, tile=1) == 4


def test_each_device_keeps_several_samples_one_or_none():
    assert [HOSTS_32.batch(num) for num in (1024, 256, 128, 64)] == [16, 16, 8, 10]


@pytest.mark.some_cases(20)
@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("less", [HOSTS_32, HOSTS_64, ONE_HOST], ids=["32 hosts", "64 hosts", "one host"])
def test_every_published_model_becomes_small_and_keeps_the_order_of_its_dims(name, less):
    model = MODELS[name]
    full = LmSizes(dataclasses.replace(model.config, num_positions=model.sequence), model.batch, 1)
    small = smaller_lm(full, less)
    assert small.config.num_params < 100e6
    assert small.config.num_layers % 2 == full.config.num_layers % 2
    assert small.config.vocabulary >= 256
    dims = ["hidden", "vocabulary", "num_layers", "num_kv_heads", "head_dim"]
    if full.config.positions == "learned":
        dims.append("num_positions")
    for dim in dims if name != "small" else ():  # its vocabulary is as small as can be, and below its width
        before, after = (getattr(of.config, dim) - of.config.width for of in (full, small))
        assert (before > 0, before < 0) == (after > 0, after < 0), dim
    groups = [of.config.num_heads == of.config.num_kv_heads for of in (full, small)]
    assert groups[0] == groups[1]


def test_what_a_step_does_in_pieces_it_still_does():
    config = MODELS["llama3-8b"].config
    config = dataclasses.replace(config, num_positions=8192, loss_chunks=8, window=1024, dtype="float32")
    small = smaller_lm(LmSizes(config, 256, 32), ONE_HOST)
    assert (small.config.num_positions, small.config.window) == (1536, 192)  # three blocks of attention
    assert (small.accumulate, small.batch) == (8, 64)  # one sample a device and microbatch


def test_a_language_model_says_how_it_is_made_smaller():
    recipe = lm("llama3-8b", accumulate=2)
    assert recipe.small is not None
    small = recipe.small(HOSTS_32)
    batch = small.data[0]["tokens"]
    assert batch.shape == (16, 128)
    assert batch.dtype == recipe.data[0]["tokens"].dtype
    assert list(small.layouts) == list(recipe.layouts)


@pytest.mark.parametrize(
    ("platform", "full", "small"),
    [("gpu", 128, 8), ("gpu", 20, 12), ("gpu", 256, 256), ("tpu", 128, 128), ("tpu", 64, 64)],
)
def test_features_of_a_head_stay_what_the_same_kernel_takes(platform, full, small):
    less = dataclasses.replace(ONE_HOST, platform=platform)
    config = dataclasses.replace(MODELS["llama3-8b"].config, head_dim=full)
    assert smaller_lm(LmSizes(config, 256, 1), less).config.head_dim == small
