"""A pipeline of two stages that work at the same time: each reads what the other sent a step earlier.

    python examples/two_stage_pipeline.py

A step graph has a part a stage, and a part reads what others wrote in the step before, so nobody waits: while `head`
predicts from one batch, `body` works on the next. The gradient of a batch is back at `body` two steps after it was
sent, so updates come late, as in every asynchronous pipeline. In mode `placed` each stage is a program on a device of
its own.
"""

import jax
import jax.numpy as jnp
import numpy as np

import outlay
from outlay.graph import GraphLoop, Part, Source, StepGraph

BATCH, FEATURES, WIDE, RATE = 16, 4, 8, 0.1
STEPS_A_CALL = 20
DELAY = 2
"""One step to `head`, and one back."""


def activations(weights, x):
    """Compute the first stage."""
    return jnp.tanh(x @ weights)


def body(state, read):
    """Work on the next batch, and update by the gradient of the batch that was sent `DELAY` steps ago."""
    (x,), (gradient,) = read["x"], read["gradient"]
    _, backward = jax.vjp(lambda weights: activations(weights, state["sent"][0]), state["weights"])
    weights = state["weights"] - RATE * backward(gradient)[0]
    sent = jnp.concatenate([state["sent"][1:], x[None]])
    return {"weights": weights, "sent": sent}, {"hidden": activations(weights, x)}


def head(state, read):
    """Predict from what `body` has sent, update, and send the gradient back; the target waits a step for it."""
    (target,), (hidden,) = read["target"], read["hidden"]

    def loss(weights, hidden):
        return jnp.mean((hidden @ weights - state["target"]) ** 2)

    value, (own, gradient) = jax.value_and_grad(loss, (0, 1))(state["weights"], hidden)
    return {"weights": state["weights"] - RATE * own, "target": target}, {"gradient": gradient, "loss": value}


GRAPH = StepGraph(
    {
        "body": Part(body, {"x": (Source("inputs", "x"),), "gradient": (Source("head", "gradient"),)}),
        "head": Part(head, {"target": (Source("inputs", "target"),), "hidden": (Source("body", "hidden"),)}),
    },
    {"loss": ("head", "loss")},
)


def init(key):
    """Return both stages with random weights, and nothing on its way between them."""
    first, second = jax.random.split(key)
    hidden = jax.ShapeDtypeStruct((BATCH, WIDE), jnp.float32)
    return {
        "body": {
            "weights": jax.random.normal(first, (FEATURES, WIDE)) / FEATURES**0.5,
            "sent": jnp.zeros((DELAY, BATCH, FEATURES)),
        },
        "head": {"weights": jax.random.normal(second, (WIDE, 1)) / WIDE**0.5, "target": jnp.zeros((BATCH, 1))},
        "cache": GRAPH.init_cache(
            {"body": {"hidden": hidden}, "head": {"gradient": hidden, "loss": jax.ShapeDtypeStruct((), jnp.float32)}}
        ),
    }


def batch(call):
    """Return the inputs of the steps of one call, of a function that the two stages can learn."""
    x = np.random.default_rng(call).normal(size=(STEPS_A_CALL, BATCH, FEATURES)).astype(np.float32)
    return {"x": x, "target": np.tanh(x.sum(axis=-1, keepdims=True))}


def program(mode):
    """Return the program: both stages on one device, or in mode placed each on its own."""
    if mode == "placed":
        layout, mesh = outlay.by_module({"body": 0, "head": 1}), outlay.mesh(devices=jax.devices()[:2], stage=2)
    else:
        layout = outlay.Layout([("**", outlay.replicate()), ("batch.**", outlay.replicate())])
        mesh = outlay.mesh(devices=jax.devices()[:1], one=1)
    return outlay.program(GraphLoop(GRAPH), init, batch(0), layout=layout, mesh=mesh, mode=mode)


def losses(program, num_calls=10):
    """Run the pipeline, and return the loss of each step."""
    state, history = program.init(jax.random.key(0)), []
    for call in range(num_calls):
        state, results = program(state, batch(call))
        history += np.asarray(results["outputs"]["loss"]).tolist()
    return history


def main():
    """Train in both modes, and compare."""
    outlay.simulate(8)
    placed = program("placed")
    print(outlay.verify(placed, steps=2))
    together, apart = losses(program("auto")), losses(placed)
    print(f"loss {together[DELAY]:.3f} -> {together[-1]:.3f}, and with a device a stage {apart[-1]:.3f}")
    np.testing.assert_allclose(apart, together, rtol=1e-5)
    assert together[-1] < together[DELAY] / 2


if __name__ == "__main__":
    main()
