"""Every framework shown in examples/, under every common layout, computes what one device computes."""

from __future__ import annotations

import functools
import runpy
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import equinox as eqx
import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from tests.contract.placed_as_planned import assert_placed_as_planned

import outlay

EXAMPLES = Path(__file__).parents[2] / "examples"
NOT_TRAINED = {"planted_fault", "pencil_fft", "cart_pole", "lora"}  # lora has a test of its own
EXAMPLE_NAMES = {path.stem for path in EXAMPLES.glob("*.py")} - NOT_TRAINED

TOLERANCE = 1e-5
"""Sums over devices are taken in another order: float32 keeps about 7 digits, and these values are of order one."""

NUM_STEPS = 3


@dataclass(frozen=True)
class Framework:
    """A framework's example.

    Attributes:
        name: what the test is called.
        init, step, make_batch: the example's functions.
        tensor_parallel: how its layers are split over `model`, in its own paths.
        kernel: the path of the hidden layer's kernel, and of the moment that must follow it.
    """

    name: str
    init: Callable[[Any], Any]
    step: Callable[[Any, Any], Any]
    make_batch: Callable[[], Any]
    tensor_parallel: outlay.Layout
    kernel: tuple[str, str]


def _example(name: str, columns: str, rows: str, kernel: tuple[str, str], *, outputs: int = -1) -> Framework:
    names = runpy.run_path(str(EXAMPLES / f"{name}.py"))
    split = outlay.tensor_parallel("model", columns=[columns], rows=[rows], outputs=outputs)
    return Framework(name, names["init"], names["step"], names["make_batch"], split, kernel)


PLAIN = _example(
    "plain_pytree",
    "params.hidden.*",
    "params.out.kernel",
    ("params.hidden.kernel", "opt_state.0.mu.hidden.kernel"),
)


class BoxedLinen(nn.Module):
    """A Linen model whose parameters come in `nn.Partitioned` boxes, as in many published models."""

    @nn.compact
    def __call__(self, x: Any) -> Any:
        boxed = nn.with_partitioning(nn.initializers.lecun_normal(), (None, None))
        return nn.Dense(4, name="out")(nn.tanh(nn.Dense(64, name="hidden", kernel_init=boxed)(x)))


def _boxed_linen() -> Framework:
    optimizer, model = optax.adam(1e-2), BoxedLinen()

    def init(key: Any) -> Any:
        params = model.init(key, jnp.zeros((1, 16)))["params"]
        assert isinstance(params["hidden"]["kernel"], nn.Partitioned)
        return {"params": params, "opt_state": optimizer.init(params)}

    def step(state: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> Any:
            logits = model.apply({"params": params}, batch["x"])
            return optax.softmax_cross_entropy_with_integer_labels(logits, batch["y"]).mean()

        loss, grads = jax.value_and_grad(loss_of)(state["params"])
        updates, opt_state = optimizer.update(grads, state["opt_state"])
        return {"params": optax.apply_updates(state["params"], updates), "opt_state": opt_state}, {"loss": loss}

    return Framework("linen_boxes", init, step, PLAIN.make_batch, PLAIN.tensor_parallel, PLAIN.kernel)


class DropoutMLP(nnx.Module):
    """An NNX model with a stream of random keys in its state."""

    def __init__(self, rngs: nnx.Rngs) -> None:
        self.hidden = nnx.Linear(16, 64, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(64, 4, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return self.out(self.dropout(nnx.tanh(self.hidden(x))))


def _split_nnx() -> Framework:
    """The other way to use NNX: split the model, keep the arrays as the state and the graph in the step."""
    optimizer = optax.adam(1e-2)
    graph = nnx.split(nnx.eval_shape(lambda: DropoutMLP(nnx.Rngs(0))))[0]

    def init(key: Any) -> Any:
        _, params, streams = nnx.split(DropoutMLP(nnx.Rngs(key)), nnx.Param, ...)
        return {"params": params, "streams": streams, "opt_state": optimizer.init(params)}

    def step(state: Any, batch: Any) -> Any:
        def loss_of(params: Any) -> Any:
            model = nnx.merge(graph, params, state["streams"], copy=True)  # its own, to count in
            loss = optax.softmax_cross_entropy_with_integer_labels(model(batch["x"]), batch["y"]).mean()
            return loss, nnx.state(model, nnx.Not(nnx.Param))

        (loss, streams), grads = jax.value_and_grad(loss_of, has_aux=True)(state["params"])
        updates, opt_state = optimizer.update(grads, state["opt_state"])
        params = optax.apply_updates(state["params"], updates)
        return {"params": params, "streams": streams, "opt_state": opt_state}, {"loss": loss}

    return Framework("nnx_split", init, step, PLAIN.make_batch, PLAIN.tensor_parallel, PLAIN.kernel)


FRAMEWORKS = [
    PLAIN,
    _example(
        "flax_nnx_mlp",
        "params.hidden.*",
        "params.out.kernel",
        ("params.hidden.kernel", "optimizer.opt_state.0.mu.hidden.kernel"),
    ),
    _example(
        "flax_linen_mlp",
        "params.hidden.*",
        "params.out.kernel",
        ("params.hidden.kernel", "opt_state.0.mu.hidden.kernel"),
    ),
    _example(
        "equinox_mlp",
        "params.layers.0.*",
        "params.layers.1.weight",
        ("params.layers.0.weight", "opt_state.0.mu.layers.0.weight"),
        outputs=0,
    ),
    _example(
        "haiku_mlp",
        "params.*linear_0.*",
        "params.*linear_1.w",
        ("params.mlp/~/linear_0.w", "opt_state.0.mu.mlp/~/linear_0.w"),
    ),
    _boxed_linen(),
    _split_nnx(),
]

LAYOUTS: dict[str, Callable[[Framework], outlay.Layout]] = {
    "dp": lambda framework: outlay.data_parallel(),
    "fsdp": lambda framework: outlay.fsdp(min_size=64) + outlay.data_parallel(),
    "fsdp+tp": lambda framework: framework.tensor_parallel + outlay.fsdp(min_size=64) + outlay.data_parallel(),
}


@pytest.fixture(autouse=True)
def as_users_write_it() -> Any:
    """Examples add biases as everybody does, by rank promotion, which the tests of this library refuse elsewhere."""
    with jax.numpy_rank_promotion("allow"):
        yield


@functools.lru_cache
def _one_device(name: str) -> Any:
    """Final state and outputs by plain JAX on one device, as plain numpy leaves."""
    framework = next(f for f in FRAMEWORKS if f.name == name)
    jit = eqx.filter_jit if name == "equinox_mlp" else jax.jit
    state, outputs = jit(framework.init)(jax.random.key(3)), None
    step, batch = jit(framework.step), framework.make_batch()
    for _ in range(NUM_STEPS):
        state, outputs = step(state, batch)
    return _leaves(state), jax.device_get(outputs)


def _leaves(tree: Any) -> list[np.ndarray]:
    return [
        np.asarray(jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for leaf in jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    ]


# Frameworks differ in how a state is nested and named, which matters to layouts that split it: each meets the one that
# splits by name and by size. The others split by size or not at all, and meet the plain tree.
@pytest.mark.parametrize(
    ("framework", "layout"),
    [
        *(pytest.param(PLAIN, layout, marks=pytest.mark.any_jax) for layout in ("dp", "fsdp")),
        *((framework, "fsdp+tp") for framework in FRAMEWORKS[:-2]),
        *(pytest.param(framework, "fsdp+tp", marks=pytest.mark.any_jax) for framework in FRAMEWORKS[-2:]),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_a_frameworks_model_computes_what_one_device_computes(framework: Framework, layout: str) -> None:
    batch, mesh = framework.make_batch(), outlay.mesh(data=4, model=2)
    program = outlay.program(framework.step, framework.init, batch, layout=LAYOUTS[layout](framework), mesh=mesh)
    kernel, moment = (program.plan[path] for path in framework.kernel)
    assert kernel.is_split is (layout != "dp")
    assert moment.dims == kernel.dims

    state, outputs = program.init(jax.random.key(3)), None
    assert_placed_as_planned(state, program.plan)
    for _ in range(NUM_STEPS):
        state, outputs = program(state, batch)
    assert_placed_as_planned(state, program.plan)

    expected_state, expected_outputs = _one_device(framework.name)
    np.testing.assert_allclose(outputs["loss"], expected_outputs["loss"], rtol=TOLERANCE)
    for got, want in zip(_leaves(state), expected_state, strict=True):
        np.testing.assert_allclose(got, want, rtol=TOLERANCE, atol=TOLERANCE)


@pytest.mark.any_jax  # the test above trains with what each of them holds
@pytest.mark.parametrize("name", sorted(EXAMPLE_NAMES))
def test_an_example_runs_as_printed(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
    printed = capsys.readouterr().out
    losses = [float(line.rpartition(" ")[2]) for line in printed.splitlines() if line.startswith("step ")]
    assert "mesh data=4, model=2" in printed
    assert len(losses) == 5
    assert losses[-1] < 0.7 * losses[0]


@pytest.mark.any_jax
def test_every_example_stands_in_the_table_of_frameworks() -> None:
    assert {framework.name for framework in FRAMEWORKS} >= EXAMPLE_NAMES


@pytest.mark.any_jax
def test_the_equinox_recipe_trains_under_its_layouts() -> None:
    recipe = runpy.run_path(str(EXAMPLES / "equinox_mlp.py"))["recipe"]()
    program = outlay.program(
        recipe.step, recipe.init, recipe.data[0], layout=recipe.layouts["fsdp"], mesh=outlay.mesh("data=-1")
    )
    state = program.init(jax.random.key(recipe.seed))
    for number in range(40):
        state, _ = program(state, recipe.data[number])
    assert recipe.evaluate(program, state)["accuracy"] > 0.8
