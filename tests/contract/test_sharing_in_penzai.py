"""A penzai model whose parameters stand at several places is trained as by penzai's own trainer, with SGD and Adam."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.contract.shared_models import OPTIMIZERS, WIDTH

import outlay

# treescope, which penzai imports, asks NumPy 2.5 for each of its public names
pytestmark = [pytest.mark.newest, pytest.mark.filterwarnings("ignore:The chararray class is deprecated")]
NUM_STEPS = 4
TOKENS = np.arange(16, dtype=np.int32) % WIDTH


def model_of(key: Any) -> Any:
    """A tied embedding, a block that is used twice, and a running mean, which is a variable of its own kind."""
    from penzai import pz

    @pz.pytree_dataclass
    class Averaged(pz.nn.Layer):
        mean: pz.StateVariable

        def __call__(self, x: Any, **side_inputs: Any) -> Any:
            now = pz.nx.nmap(jnp.mean)(x.untag("batch"))
            self.mean.value = self.mean.value * 0.9 + now * 0.1
            return x + self.mean.value

    table = pz.nn.EmbeddingTable.from_config("table", key, WIDTH, {"embed": WIDTH})
    block = pz.nn.Affine.from_config("block", key, {"embed": WIDTH}, {"embed": WIDTH})
    average = Averaged(pz.StateVariable(pz.nx.zeros({"embed": WIDTH}), label="mean"))
    tanh = pz.nn.Elementwise(jnp.tanh)
    return pz.nn.Sequential([pz.nn.EmbeddingLookup(table), block, tanh, average, block, pz.nn.EmbeddingDecode(table)])


def loss_of(model: Any, state: Any, rng: Any, tokens: Any) -> Any:
    from penzai import pz

    logits = model(pz.nx.wrap(tokens, "batch")).unwrap("batch", "vocabulary")
    return jnp.mean((logits - 1) ** 2), state, {}


@pytest.mark.some_cases(1, newest=0)
@pytest.mark.parametrize("optimizer", [pytest.param("sgd", marks=pytest.mark.any_jax), "adam"])
def test_a_shared_table_trains_as_by_penzais_own_trainer(optimizer: str) -> None:
    from penzai import pz
    from penzai.toolshed.basic_training import StatefulTrainer

    def observed(model: Any, state: Any, rng: Any, tokens: Any) -> Any:
        loss, state, _ = loss_of(model, state, rng, tokens)
        return loss, state, {"loss": loss}

    key, rule = jax.random.key(0), OPTIMIZERS[optimizer]
    static, _ = pz.unbind_variables(model_of(key), freeze=True)

    def init(key: Any) -> Any:
        model, params = pz.unbind_params(model_of(key), freeze=True)
        return {"params": params, "opt_state": rule.init(params), "means": pz.unbind_state_vars(model, freeze=True)[1]}

    def step(state: Any, tokens: Any) -> Any:
        def with_means(params: Any) -> Any:
            means = tuple(mean.unfreeze_as_copy() for mean in state["means"])
            loss, _, _ = loss_of(pz.bind_variables(static, means + params), None, None, tokens)
            return loss, pz.freeze_variables(means)

        (loss, means), grads = jax.value_and_grad(with_means, has_aux=True)(state["params"])
        updates, opt_state = rule.update(grads, state["opt_state"], state["params"])
        return {"params": jax.tree.map(jnp.add, state["params"], updates), "opt_state": opt_state, "means": means}, loss

    layout = outlay.fsdp(min_size=8) + outlay.data_parallel()
    program = outlay.program(step, init, TOKENS, layout=layout, mesh=outlay.mesh(data=8))
    params = [leaf.path for leaf in program.plan.state if leaf.path.startswith("params.")]
    assert sorted(params) == ["params.block.AddBias.bias", "params.block.Linear.weights", "params.table.embeddings"]
    trainer = StatefulTrainer.build(key, model_of(key), rule, observed)
    state = program.init(key)
    for _ in range(NUM_STEPS):
        state, loss = program(state, TOKENS)
        np.testing.assert_allclose(loss, trainer.step(tokens=TOKENS)["loss"], rtol=2e-5)
    for mean, right in zip(state["means"], pz.unbind_state_vars(trainer.model)[1], strict=True):
        np.testing.assert_allclose(mean.value.data_array, right.value.data_array, rtol=1e-3, atol=1e-5)
