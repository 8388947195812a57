import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay.core.error_types import ProgramError

pytestmark = [pytest.mark.newest, pytest.mark.any_jax]  # tests/contract/test_any_loss.py runs there

OPTIMIZER = optax.sgd(0.1)
BATCH = np.ones((16, 3), np.float32)
STATE = {"mean": jnp.zeros(3), "count": jnp.zeros((), jnp.int32)}


def losses(params, batch):
    return (batch @ params["w"]) ** 2


def build(loss, *, state=None, batch=BATCH, mode="auto", optimizer=OPTIMIZER, params=None, **how):
    """What is wrong must be found when the program is built or traced, before anything runs."""
    params = {"w": jnp.zeros(3)} if params is None else params
    init = outlay.init_state(lambda key: (params, state) if state else params, optimizer, model_state=bool(state))
    step = outlay.train_step(loss, optimizer, **how)
    program = outlay.program(step, init, batch, layout=outlay.data_parallel(), mesh=outlay.mesh(data=8), mode=mode)
    assert program.lowered
    return program


@pytest.mark.any_jax
def test_state_that_a_step_forgets_to_return():
    def loss(params, state, batch, keys):
        return losses(params, batch), {}, {"mean": batch.mean(), "new": batch}

    message = (
        r"(?s)3 leaves differ:.*model_state\.count: took int32\[\], returned nothing.*"
        r"model_state\.mean: took float32\[3\], returned float32\[\].*model_state\.new: took nothing"
    )
    with pytest.raises(ProgramError, match=message):
        build(loss, state=STATE, model_state=True)


@pytest.mark.any_jax
def test_state_in_another_container():
    with pytest.raises(ProgramError, match=r"the leaves of the model state in another container"):
        build(
            lambda p, state, batch, keys: (losses(p, batch), {}, (state[0], state[1])),
            state=[jnp.zeros(3), jnp.zeros(())],
            model_state=True,
        )


@pytest.mark.any_jax
def test_a_loss_that_returns_no_state():
    with pytest.raises(ProgramError, match=r"must return a triple \(losses, metrics, model_state\)"):
        build(lambda p, state, batch, keys: (losses(p, batch), {}), state=STATE, model_state=True)


@pytest.mark.any_jax
def test_a_loss_with_a_state_that_was_not_asked_for():
    with pytest.raises(ProgramError, match=r"called as loss\(params, batch, keys\).*\n.*model_state=True"):
        build(lambda p, state, batch, keys: (losses(p, batch), {}, state))


@pytest.mark.any_jax
def test_a_state_without_a_loss_that_takes_it_and_the_other_way_round():
    with pytest.raises(ProgramError, match=r"a model state of 2 leaves, but the loss takes none"):
        build(lambda p, batch, keys: (losses(p, batch), {}), state=STATE)
    with pytest.raises(ProgramError, match=r"the step's state has none\n  fix: outlay\.init_state\("):
        build(lambda p, state, batch, keys: (losses(p, batch), {}, state), model_state=True)


@pytest.mark.any_jax
def test_init_params_without_the_state():
    init = outlay.init_state(lambda key: {"w": jnp.zeros(3)}, OPTIMIZER, model_state=True)
    with pytest.raises(ProgramError, match=r"must return a pair \(params, model_state\), but returned a dict"):
        init(jax.random.key(0))


def test_statistics_that_differ_between_groups_and_have_no_mean():
    def loss(params, state, batch, keys):
        return losses(params, batch), {}, {**state, "count": jnp.sum(batch > 0, dtype=jnp.int32)}

    with pytest.raises(ProgramError, match=r"not floats differ between groups, so they have no mean"):
        build(loss, state=STATE, model_state=True, groups=8)


@pytest.mark.any_jax
def test_groups_that_devices_cannot_share():
    def loss(params, state, batch, keys):
        return losses(params, batch), {}, state

    with pytest.raises(
        ProgramError, match=r"16 samples on 8 devices cannot be split into 4 equal groups.*\n.*groups=8"
    ):
        build(loss, state=STATE, model_state=True, groups=4, mode="manual")
    with pytest.raises(ProgramError, match=r"groups=0: a batch is taken in 1 group or more"):
        build(loss, state=STATE, model_state=True, groups=0)


@pytest.mark.any_jax
def test_metrics_that_do_not_exist_are_all_named():
    def loss(p, batch, keys):
        return (losses(p, batch), {})

    with pytest.raises(ProgramError, match=r"(?s)2 unknown metrics.*'gradnorm': did you mean 'grad_norm'.*'lr'"):
        build(loss, metrics=["gradnorm", "param_norm", "lr"])
    with pytest.raises(ProgramError, match=r"fix: metrics=\['grad_norm'\]"):
        build(loss, metrics="grad_norm")
    with pytest.raises(ProgramError, match=r"state holds 0 of that name\n  fix: optax\.inject_hyperparams"):
        build(loss, metrics=["learning_rate"])
    with pytest.raises(ProgramError, match=r"both return the metrics \['grad_norm'\]"):
        build(lambda p, batch, keys: (losses(p, batch), {"grad_norm": 1.0}), metrics=["grad_norm"])


@pytest.mark.any_jax
def test_a_reduction_that_does_not_exist_and_losses_that_are_not_reduced():
    with pytest.raises(ProgramError, match=r"reduction='max': a loss returns the 'mean' or the 'sum'"):
        build(lambda p, batch, keys: (losses(p, batch).max(), {}), reduction="max")
    with pytest.raises(
        ProgramError, match=r"one number for the batch.*\n  the losses: shape \(16,\)\n  fix: reduce it"
    ):
        build(lambda p, batch, keys: (losses(p, batch), {}), reduction="mean")


def test_comparing_all_samples_by_hand_says_what_to_gather():
    def loss(params, batch, keys):
        x = batch * params["w"][None]
        return (x @ x.T).mean(), {}

    with pytest.raises(ProgramError, match=r"shape \(16, 16\).*own samples only, \(2, 2\)\n  fix: gather one"):
        build(loss, reduction="mean", mode="manual")


def test_a_loss_that_python_makes_another_for_another_size():
    def loss(params, batch, keys):
        mean = losses(params, batch).mean()
        return (jnp.sin(mean) if len(batch) > 4 else mean), {}

    with pytest.raises(ProgramError, match=r"test_any_loss\.py:\d+.*different operations for a device's samples"):
        build(loss, reduction="mean", mode="manual")


def test_the_learning_rate_and_norms_are_the_steps():
    optimizer = optax.inject_hyperparams(optax.sgd)(learning_rate=lambda count: 0.5 / (count + 1.0))
    program = build(
        lambda p, batch, keys: (losses(p, batch), {}),
        optimizer=optimizer,
        params={"w": jnp.ones(3)},
        metrics=["grad_norm", "param_norm", "update_norm", "learning_rate"],
    )
    _, metrics = program(program.init(jax.random.key(0)), BATCH)
    rounded = {name: round(float(value), 3) for name, value in metrics.items()}
    grad = 6 * 3**0.5
    expected = {"grad_norm": grad, "update_norm": grad / 2, "param_norm": 2 * 3**0.5, "learning_rate": 0.5, "loss": 9.0}
    assert rounded == {name: round(value, 3) for name, value in expected.items()}


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("mode", ["auto", "manual"])
def test_complex_parameters_go_downhill(mode):
    def loss(params, batch, keys):
        return jnp.abs(batch @ params["w"] - (2 + 1j)) ** 2, {}

    optimizer = optax.sgd(0.1)
    program = build(loss, mode=mode, optimizer=optimizer, params={"w": jnp.zeros(3, jnp.complex64)})
    state = program.init(jax.random.key(0))
    for _ in range(20):
        state, metrics = program(state, BATCH)
    assert float(metrics["loss"]) < 1e-5
    np.testing.assert_allclose(np.sum(state.params["w"]), 2 + 1j, atol=1e-3)
