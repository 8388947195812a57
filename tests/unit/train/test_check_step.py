import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import outlay
from outlay.core.error_types import ProgramError
from outlay.train.check_step import num_samples
from outlay.train.step import init_state, train_step

OPTIMIZER = optax.sgd(0.1)


def build(loss, params=None, batch=None, accumulate=1):
    """Everything must be found when the program is built, before anything runs."""
    outlay.program(
        train_step(loss, OPTIMIZER, accumulate=accumulate),
        init_state(lambda key: {"w": jnp.zeros(3)} if params is None else params, OPTIMIZER),
        np.ones((16, 3), np.float32) if batch is None else batch,
        layout=outlay.data_parallel(),
        mesh=outlay.mesh(data=8),
    )


def losses(params, batch):
    return (batch @ params["w"]) ** 2


def test_a_loss_that_is_a_mean_already():
    with pytest.raises(
        ProgramError, match=r"(?s)shape \(16,\); 1 .*the losses: shape \(\).*return one number per sample"
    ):
        build(lambda params, batch, keys: (losses(params, batch).mean(), {}))


def test_all_wrong_metrics_are_named():
    def loss(params, batch, keys):
        return losses(params, batch), {"mean": batch.mean(), "good": batch[:, 0], "wide": batch[:, None]}

    with pytest.raises(ProgramError, match=r"(?s)2 differ.*'mean': shape \(\).*'wide': shape \(16, 1, 3\)"):
        build(loss)


def test_metrics_that_are_no_dictionary():
    with pytest.raises(ProgramError, match=r"metrics a dict, not a ArrayImpl|metrics a dict, not a .*Tracer"):
        build(lambda params, batch, keys: (losses(params, batch), losses(params, batch)))


def test_a_metric_with_the_name_of_the_loss():
    with pytest.raises(ProgramError, match=r"\['loss'\] have reserved names"):
        build(lambda params, batch, keys: (losses(params, batch), {"loss": losses(params, batch)}))


def test_parameters_that_are_no_floats_are_named():
    params = {"w": jnp.zeros(3), "table": {"ids": jnp.arange(4)}, "on": jnp.array(True)}
    message = r"(?s)2 parameters.*params\.on: bool.*params\.table\.ids: int32.*eqx\.partition"
    with pytest.raises(ProgramError, match=message):
        build(lambda params, batch, keys: (losses(params, batch), {}), params=params)


def test_a_batch_that_does_not_divide_is_found_when_the_program_is_built():
    with pytest.raises(ProgramError, match="16 samples cannot be split into 3 equal microbatches"):
        build(lambda params, batch, keys: (losses(params, batch), {}), accumulate=3)


def test_arrays_of_a_batch_that_do_not_go_together_are_named():
    batch = {"x": np.ones((8, 2)), "y": np.ones(8), "label": np.ones(7), "temperature": np.float32(1.0)}
    message = r"(?s)per sample, here 8; 2 arrays do not.*batch\.label: shape \(7,\).*batch\.temperature: shape \(\)"
    with pytest.raises(ProgramError, match=message):
        num_samples(batch)


def test_a_batch_without_samples():
    with pytest.raises(ProgramError, match="holds no samples"):
        num_samples({"x": np.float32(1.0)})


def test_a_loss_without_metrics():
    with pytest.raises(
        ProgramError, match=r"(?s)a pair \(losses, metrics\); it returned shape \(16,\).*return losses, {}"
    ):
        build(lambda params, batch, keys: losses(params, batch))


def test_a_loss_that_takes_no_keys():
    with pytest.raises(ProgramError, match=r"(?s)takes \(params, batch\), but is called as .*ignores keys"):
        build(lambda params, batch: (losses(params, batch), {}))


def test_a_loss_for_every_token():
    def loss(params, batch, keys):
        return batch * params["w"][None], {"nothing": None, "norm": (params["w"] ** 2).sum()}

    message = r"(?s)3 differ.*the losses: shape \(16, 3\).*a NoneType.*leave out.*other dims: \.mean\(1\); compute"
    with pytest.raises(ProgramError, match=message):
        build(loss)


@pytest.mark.compiles
def test_numbers_of_python_are_metrics_like_others():
    def loss(params, batch, keys):
        metrics = {"rate": 0.25, "num": 3, "on": True, "scale": np.float64(0.5), "mean": np.full(16, 2.0)}
        return losses(params, batch), metrics

    build(loss)
    state = init_state(lambda key: {"w": jnp.ones(3)}, OPTIMIZER)(jax.random.key(0))
    metrics = train_step(loss, OPTIMIZER)(state, np.ones((16, 3), np.float32))[1]
    assert {name: float(value) for name, value in metrics.items()} == {
        **{"loss": 9.0, "rate": 0.25, "num": 3.0, "on": 1.0, "scale": 0.5, "mean": 2.0}
    }


def test_an_optimizer_that_asks_for_more_than_there_is():
    def update(grads, state, params=None, *, curvature, **more):
        return grads, state

    optimizer = optax.GradientTransformationExtraArgs(lambda params: (), update)
    step = train_step(lambda params, batch, keys: (losses(params, batch), {}), optimizer)
    state = init_state(lambda key: {"w": jnp.zeros(3)}, optimizer)(jax.random.key(0))
    with pytest.raises(ProgramError, match=r"(?s)needs 'curvature'; outlay\.train_step passes .*value_fn"):
        step(state, np.ones((16, 3), np.float32))


def test_a_good_loss_is_accepted():
    build(lambda params, batch, keys: (losses(params, batch), {"draw": jax.vmap(jax.random.uniform)(keys)}))


def made(optimizer, names=("w", "frozen")):
    init = init_state(lambda key: {name: jnp.zeros(3) for name in names}, optimizer)
    return jax.eval_shape(init, jax.random.key(0))


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.masked(optax.adam(0.1), {"w": False, "frozen": False}),
        optax.chain(optax.clip(1.0), optax.masked(optax.sgd(0.1, momentum=0.9), {"w": False, "frozen": False})),
        optax.multi_transform({"slow": optax.adam(0.1), "fast": optax.adam(1.0)}, {"w": "slow", "frozen": "slow"}),
    ],
)
def test_a_mask_that_matches_nothing(optimizer):
    match = r"matches nothing: none of 2 parameters is in opt_state[^ ]*, and.*\n  the parameters are frozen, w\n"
    with pytest.raises(ProgramError, match=match):
        made(optimizer)


@pytest.mark.parametrize(
    "optimizer",
    [
        optax.masked(optax.adam(0.1), {"v": True}),
        optax.multi_transform({"slow": optax.adam(0.1)}, {"w": "slow", "frozen": "fixed"}),
    ],
)
def test_masks_and_labels_for_other_parameters(optimizer):
    with pytest.raises(ProgramError, match=r"does not fit these parameters: .*\n  the parameters are frozen, w\n"):
        made(optimizer)


def test_masks_that_match_something_are_well():
    frozen = optax.multi_transform(
        {"own": optax.adam(0.1), "none": optax.set_to_zero()}, {"w": "own", "frozen": "none"}
    )
    assert made(optax.chain(frozen, optax.masked(optax.adam(0.1), {"w": True, "frozen": False}))).step.shape == ()
