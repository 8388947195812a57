import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import outlay
from outlay.program import manual_gradients as reduce
from outlay.program.manual_gradients import sum_in_buckets

RNG = np.random.default_rng(0)
BOTH, ONE, NONE = ("i", "j"), ("i",), ()


def lowered(tree, axes):
    """Each device adds up its own row of every leaf; the function, ready to be read or run."""
    mesh, rows = outlay.mesh(i=4, j=2), P(("i", "j"))

    def summed(tree):
        return jax.tree.map(lambda x: x[None], sum_in_buckets(jax.tree.map(lambda x: x[0], tree), axes, mesh))

    return jax.jit(jax.shard_map(summed, mesh=mesh, in_specs=rows, out_specs=rows)).lower(tree)


def num_all_reduces(tree, axes):
    return lowered(tree, axes).as_text().count("stablehlo.all_reduce")


def floats(*shape):
    return RNG.normal(size=(8, *shape)).astype(np.float32)


def test_each_leaf_is_summed_over_its_axes():
    tree = {"both": floats(3, 2), "scalar": floats(), "one": floats(4), "none": [floats(2)]}
    got = lowered(tree, {"both": BOTH, "scalar": BOTH, "one": ONE, "none": [NONE]}).compile()(tree)
    for name in ("both", "scalar"):
        np.testing.assert_allclose(got[name], np.broadcast_to(tree[name].sum(0), tree[name].shape), rtol=1e-5)
    over_i = tree["one"].reshape(4, 2, 4).sum(0)
    np.testing.assert_allclose(got["one"], np.tile(over_i, (4, 1)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(got["none"][0], tree["none"][0])


def test_leaves_of_one_dtype_and_the_same_axes_share_a_collective():
    many = [floats(n + 1, 2) for n in range(6)]
    assert num_all_reduces(many, [BOTH] * 6) == 1
    assert num_all_reduces(many, [BOTH] * 3 + [ONE] * 3) == 2
    assert num_all_reduces([*many, floats().astype(jnp.bfloat16)], [BOTH] * 7) == 2
    assert num_all_reduces(many, [NONE] * 6) == 0


def test_buckets_are_of_limited_size_and_hold_every_leaf(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(reduce, "BUCKET_BYTES", 40)
    many = [floats(n) for n in (5, 5, 1, 30, 2)]  # 20 + 20 | 4 | 120 | 8 bytes on each device
    assert num_all_reduces(many, [BOTH] * 5) == 4
    for got, x in zip(lowered(many, [BOTH] * 5).compile()(many), many, strict=True):
        np.testing.assert_allclose(got[3], x.sum(0), rtol=1e-5, atol=1e-6)


def test_a_tree_without_leaves_is_left_alone():
    assert sum_in_buckets({"a": []}, {"a": []}, outlay.mesh(i=8)) == {"a": []}


def test_a_big_leaf_is_summed_without_a_copy_and_xla_makes_it_one_collective_with_the_others(
    monkeypatch: pytest.MonkeyPatch,
):
    monkeypatch.setattr(reduce, "OWN_BYTES", 100)
    many = [floats(5), floats(30), floats(1)]  # 20, 120 and 4 bytes on each device
    assert num_all_reduces(many, [BOTH] * 3) == 2
    assert lowered(many, [BOTH] * 3).compile().as_text().count(" all-reduce(") == 1
    assert "concatenate" not in lowered([floats(30)], [BOTH]).as_text()
    for got, x in zip(lowered(many, [BOTH] * 3).compile()(many), many, strict=True):
        np.testing.assert_allclose(got[3], x.sum(0), rtol=1e-5, atol=1e-6)
