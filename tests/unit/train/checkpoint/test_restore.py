import jax
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P
from tests.unit.devices.compilers import needs_gpu_compiler
from tests.unit.train.checkpoint.arranged import BATCH, assert_same, program, saved

import outlay
from outlay.core.error_types import CheckpointError, ProgramError
from outlay.train.checkpoint.checkpoints import Checkpoints

pytestmark = [pytest.mark.newest, pytest.mark.compiles]

REPLICATED = [("batch", P()), ("**", outlay.replicate())]


def submesh(num, **axes):
    devices = jax.devices()[:num]
    sizes = tuple(axes.values())
    return jax.make_mesh(sizes, tuple(axes), devices=devices, axis_types=(AxisType.Auto,) * len(sizes))


@pytest.mark.some_cases(2, newest=1)
@pytest.mark.parametrize(
    "other",
    [
        lambda: program(outlay.data_parallel() + REPLICATED[1:]),
        pytest.param(lambda: program(mesh=submesh(4, data=4)), marks=pytest.mark.any_jax),
        pytest.param(lambda: program(REPLICATED, mesh=submesh(1, data=1)), marks=pytest.mark.any_jax),
        lambda: program([("params.**.w", P("b", "a")), ("keys", P("a")), *REPLICATED], a=4, b=2),
    ],
    ids=["8 fsdp to 8 dp", "8 to 4", "8 to 1", "8 fsdp to 4x2 blocks"],
)
def test_restored_onto_another_arrangement_and_trained_on(other, tmp_path):
    checkpoints, state = saved(tmp_path, 2)
    target = other()
    restored_step, restored = checkpoints.restore(target)
    assert restored_step == 2
    assert_same(restored, state)
    for path, leaf in zip([leaf.path for leaf in target.plan.state], jax.tree.leaves(restored), strict=True):
        assert leaf.sharding.shard_shape(leaf.shape) == target.plan[path].local_shape
    after, _ = target(restored, BATCH)  # the compiled step takes it as it is
    assert int(after["opt_state"][0].count) == 3


@pytest.mark.any_jax
def test_and_back_from_one_device_to_eight(tmp_path):
    one = program(REPLICATED, mesh=submesh(1, data=1))
    state = one.init(jax.random.key(0))
    checkpoints = Checkpoints(tmp_path)
    checkpoints.save(5, state)
    _, restored = checkpoints.restore(program())  # it waits for what is being written
    assert_same(restored, state)


def test_explicit_axes_stay_explicit(tmp_path):
    checkpoints, state = saved(tmp_path, 2)
    mesh = jax.make_mesh((8,), ("data",), axis_types=(AxisType.Explicit,))
    target = program([("batch", P("data")), ("params.**.w", P("data")), ("**", outlay.replicate())], mesh=mesh)
    _, restored = checkpoints.restore(target)
    assert_same(restored, state)
    w = restored["params"]["mlp/~/linear.0"]["w"]
    assert jax.typeof(w).sharding.spec == P("data", None)
    assert set(jax.typeof(w).sharding.mesh.axis_types) == {AxisType.Explicit}
    target(restored, BATCH)


def test_what_is_saved_is_the_state_at_that_step_though_training_goes_on(tmp_path):
    target, checkpoints = program(), Checkpoints(tmp_path, keep=20)
    state, expected = target.init(jax.random.key(0)), {}
    for number in range(1, 5):
        state, _ = target(state, BATCH)
        expected[number] = jax.tree.map(lambda x: x.copy(), state)
        checkpoints.save(number, state)
        for _ in range(3):  # the state is donated at once, while it is being written
            state, _ = target(state, BATCH)
    checkpoints.wait()
    for number in expected:
        assert_same(checkpoints.restore(target, number)[1], expected[number])


@pytest.mark.any_jax
def test_another_model_is_refused_with_every_difference_before_anything_is_read(tmp_path):
    checkpoints, _ = saved(tmp_path, 2)

    def other(key):
        return {"params": {"w": jax.random.normal(key, (16, 8))}, "half": jax.random.normal(key, (8, 4))}

    def keep(state, batch):
        return state, {"loss": batch.mean()}

    target = outlay.program(keep, other, BATCH, layout=REPLICATED, mesh=outlay.mesh(data=8))
    with pytest.raises(CheckpointError, match=r"another state than this program's: 12 differences") as error:
        checkpoints.restore(target)
    kinds = [(problem.kind, problem.where) for problem in error.value.problems]
    assert ("not in the checkpoint", "params.w") in kinds
    assert ("not in the program", "params.'mlp/~/linear.0'.w") in kinds
    assert ("other shape", "half") in kinds
    assert ("other dtype", "half") in kinds
    assert "shape (8, 3) in the checkpoint, (8, 4) in the program" in str(error.value)


@pytest.mark.any_jax
def test_there_is_nothing_to_restore(tmp_path):
    with pytest.raises(CheckpointError, match=r"there is no checkpoint in .*empty\n  fix: another folder"):
        Checkpoints(tmp_path / "empty").restore(program())
    checkpoints, _ = saved(tmp_path, 2, 4)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 3; it has those of steps 2, 4"):
        checkpoints.restore(program(), 3)


@needs_gpu_compiler
def test_devices_that_are_not_there_cannot_hold_a_state(tmp_path):
    checkpoints, _ = saved(tmp_path, 2)
    with pytest.raises(ProgramError, match="a state cannot be restored on this mesh"):
        checkpoints.restore(program(mesh=outlay.mesh(data=8, target="h100:1x8")))
