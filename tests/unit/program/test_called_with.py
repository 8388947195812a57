"""What programs are made and called with, of the many forms that JAX itself takes: keys, numbers, meshes, tracers."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay.core.error_types import ProgramError

pytestmark = [pytest.mark.newest, pytest.mark.any_jax]  # keys of each kind are in test_state_trees.py there

X = np.ones((8, 4), np.float32)


def init(key):
    return {"w": jax.random.normal(key, (16, 4))}


def step(state, x):
    return state, {"mean": x.mean()}


def program(step=step, init=init, **options):
    return outlay.program(
        step, init, options.pop("x", X), layout=outlay.data_parallel(), mesh=outlay.mesh(data=8), **options
    )


def trained():
    def loss(params, batch, keys):
        dropped = jax.vmap(lambda key, x: x * jax.random.bernoulli(key, 0.5, x.shape))(keys, batch)
        return (dropped @ params["w"].T).sum(-1), {}

    optimizer = optax.sgd(0.1)
    return program(outlay.train_step(loss, optimizer), outlay.init_state(init, optimizer))


OLD_STYLE = [jax.random.PRNGKey(3), np.asarray(jax.random.PRNGKey(3))]


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("key", OLD_STYLE, ids=["array", "numpy"])
def test_a_key_of_the_old_style_is_the_same_key(key):
    built = trained()
    states = [built(built.init(each), X)[0] for each in (key, jax.random.key(3))]
    np.testing.assert_array_equal(*(state.params["w"] for state in states))
    assert states[0].key == states[1].key


def test_a_key_of_another_kind_serves_where_the_state_keeps_none():
    built = program()
    for key in (jax.random.key(0, impl="rbg"), jax.random.PRNGKey(0, impl="rbg")):
        expected = jax.jit(init)(jax.random.key(0, impl="rbg"))["w"]
        np.testing.assert_array_equal(built.init(key)["w"], expected)


def test_a_key_of_another_kind_is_refused_where_the_plan_has_another():
    message = (
        r"(?s)this key is key<rbg>, and the program was planned for key<fry>\n  key: .*jax_default_prng_impl', 'rbg'"
    )
    with pytest.raises(ProgramError, match=message):
        trained().init(jax.random.key(0, impl="rbg"))


@pytest.mark.any_jax
def test_all_keys_may_be_of_another_kind():
    with jax.default_prng_impl("rbg"):
        built = trained()
        for key in (jax.random.key(0), jax.random.PRNGKey(0)):
            state, _ = built(built.init(key), X)
            assert str(state.key.dtype) == "key<rbg>"


def test_other_values_than_keys_are_refused():
    built = program()
    for key in (7, 0.5, "7", {"params": jax.random.key(0)}, jax.random.split(jax.random.key(0))):
        with pytest.raises(ProgramError, match=r"one PRNG key, and this is .*\n  fix: jax\.random\.key\([07]\)"):
            built.init(key)


def test_no_key_at_all():
    assert program(init=lambda key: {"w": jnp.ones(8)}).init(None)["w"].shape == (8,)
    with pytest.raises(ProgramError, match="the key is None"):
        program().init(None)


@pytest.mark.thorough  # the test above has such keys
def test_an_old_style_key_put_into_a_state():
    built = trained()
    state = built.init(jax.random.key(0))
    state = outlay.TrainState(state.params, state.opt_state, state.step, jax.random.PRNGKey(0))
    with pytest.raises(ProgramError, match=r"(?s)1 problem.*other key: key\n.*fix: jax\.random\.wrap_key_data\(x\)"):
        built(state, X)


def of_all_kinds(state, x):
    mean = jax.lax.pmean(x.mean(), "data") if x.shape[0] == 1 else x.mean()
    numbers = {"int": 3, "float": 0.5, "bool": True, "numpy": np.float32(2), "none": None, "array": np.ones(3)}
    return {**state, "step": 1}, {**numbers, "mean": mean}


@pytest.mark.parametrize("mode", ["auto", "manual"])
def test_numbers_of_python_among_state_and_outputs(mode):
    built = program(of_all_kinds, lambda key: {"w": jnp.ones((8, 2)), "step": 0}, mode=mode)
    state, outputs = built(built.init(None), X)
    assert int(state["step"]) == 1
    assert outputs.pop("none") is None
    assert {name: np.asarray(value).tolist() for name, value in outputs.items()} == {
        **{"int": 3, "float": 0.5, "bool": True, "numpy": 2, "array": [1, 1, 1], "mean": 1}
    }
    assert outlay.explain(built).memory.peak


def test_a_batch_of_float64_from_numpy():
    built = program(x=X.astype(np.float64))
    for x in (X.astype(np.float64), X):
        assert float(built(built.init(jax.random.key(0)), x)[1]["mean"]) == 1


def test_without_compiling_there_is_no_program():
    built = program()
    with jax.disable_jit():
        for attempt in (program, lambda: built.init(jax.random.key(0))):
            with pytest.raises(ProgramError, match="jax_disable_jit is set"):
                attempt()
