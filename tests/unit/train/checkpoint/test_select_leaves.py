"""A part of a state, from a checkpoint: parameters alone, and a trained model inside of a larger one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.unit.train.checkpoint.arranged import BATCH, OPTIMIZER, assert_same, program, saved

import outlay
from outlay.core.error_types import CheckpointError, CheckpointWarning

LAYER = "params.'mlp/~/linear.0'"


def larger(key):
    """The model of `arranged` below `params.base`, and an adapter beside it."""
    base = {"mlp/~/linear.0": {"w": jnp.zeros((16, 8)), "b": jnp.zeros(8)}}
    params = {"base": base, "adapter": jax.random.normal(key, (16, 2))}
    return {"params": params, "opt_state": OPTIMIZER.init(params["adapter"])}


def larger_program():
    layout = outlay.fsdp(min_size=8) + outlay.data_parallel()

    def keep(state, batch):
        return state, {"loss": batch.mean()}

    return outlay.program(keep, larger, BATCH, layout=layout, mesh=outlay.mesh(data=4, model=2))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    return saved(tmp_path_factory.mktemp("saved"), 2)


def test_only_what_matches_is_read_and_the_rest_stays_as_initialised(checkpoint):
    checkpoints, state = checkpoint
    target = program(data=8)
    fresh = target.init(jax.random.key(1))
    untouched = jax.tree.map(jnp.copy, {name: leaf for name, leaf in fresh.items() if name != "params"})
    step, restored = checkpoints.restore(target, only="params.**", into=fresh)
    assert step == 2
    assert_same(restored["params"], state["params"])
    assert_same({name: leaf for name, leaf in restored.items() if name != "params"}, untouched)
    assert fresh["params"]["mlp/~/linear.0"]["w"].is_deleted()  # its memory went to what was read
    target(restored, BATCH)


def test_a_trained_model_inside_of_a_larger_one_by_names(checkpoint):
    checkpoints, state = checkpoint
    target = larger_program()
    fresh = target.init(jax.random.key(1))
    adapter = np.asarray(fresh["params"]["adapter"])
    names = [("params.**", "params.base.**")]
    _, restored = checkpoints.restore(target, into=fresh, only="params.base.**", names=names)
    assert_same(restored["params"]["base"], state["params"])
    np.testing.assert_array_equal(restored["params"]["adapter"], adapter)
    layer = restored["params"]["base"]["mlp/~/linear.0"]["w"]
    assert layer.sharding.shard_shape(layer.shape) == (4, 8)


def test_what_the_checkpoint_lacks_is_listed(checkpoint):
    checkpoints, _ = checkpoint
    target = larger_program()
    names = [("params.**", "params.base.**")]
    with pytest.warns(CheckpointWarning, match=r"1 leaf is not in .*, left unchanged:\n  params.adapter"):
        checkpoints.restore(target, into=target.init(jax.random.key(1)), only="params.**", names=names)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        (
            {"only": "parms.**"},
            r"matches nothing: only='parms.\*\*'\n .*10 leaves of the state\n    fix: did you mean 'params.\*\*'",
        ),
        ({"only": "params..w"}, "no pattern: only='params..w'"),
        ({"names": [("weights.**", "params.**")]}, r'unused rule: \("weights.\*\*", "params.\*\*"\)'),
        ({"names": [("half", "whole")]}, "half of the checkpoint would be whole, which the program lacks"),
        ({"names": [("half", "none_yet")]}, "half and none_yet of the checkpoint would both be it"),
        ({"names": [("half", "half", (1, 0))]}, "it stacks or turns arrays.*\n.*outlay.train.read_weights"),
        ({"names": [("half", 3)]}, "3 is not a path of a leaf"),
        ({"names": [(f"{LAYER}.w", "half")], "only": "half"}, r"two for one leaf: half|shape \(16, 8\)"),
    ],
)
def test_refused_before_anything_is_read(options, match, checkpoint):
    checkpoints, _ = checkpoint
    target = program()
    fresh = target.init(jax.random.key(1))
    with pytest.raises(CheckpointError, match=match):
        checkpoints.restore(target, into=fresh, **options)
    assert not any(leaf.is_deleted() for leaf in jax.tree.leaves(fresh))


def test_a_part_needs_a_state_to_be_read_into(checkpoint):
    checkpoints, _ = checkpoint
    with pytest.raises(CheckpointError, match=r"the rest is not there\n  fix: into=program.init\(key\)"):
        checkpoints.restore(program(), only="params.**")
    with pytest.raises(CheckpointError, match=r"into= is not a state of this program: 11 problem"):
        checkpoints.restore(program(), only="params.**", into={"w": jnp.ones(3)})


def test_other_shapes_are_listed(checkpoint):
    checkpoints, _ = checkpoint
    target = larger_program()
    names = [("half", "params.adapter"), ("params.**", "params.base.**")]
    with pytest.raises(CheckpointError, match=r"other dtype: half\n.*bfloat16 in the checkpoint"):
        checkpoints.restore(target, into=target.init(jax.random.key(1)), only="params.**", names=names)
