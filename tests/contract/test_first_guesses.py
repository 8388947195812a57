"""What people type first. Each line works, or its error holds the line to write: read it as a table.

A row is what was typed, and what comes back: `WORKS`, or a part of the message that can be copied.
"""

import functools
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from jax.sharding import PartitionSpec as P

import outlay

WORKS = "works"

MESHES = {
    "outlay.mesh(4)": "fix: outlay.mesh(data=4)",
    "outlay.mesh((4, 2))": "fix: outlay.mesh(data=4, model=2)",
    "outlay.mesh([8])": "fix: outlay.mesh(data=8)",
    "outlay.mesh('8')": "fix: outlay.mesh(data=8)",
    "outlay.mesh(4, 2)": "fix: outlay.mesh(data=4, model=2)",
    "outlay.mesh((4, 2), ('data', 'model'))": "fix: outlay.mesh(data=4, model=2)",
    "outlay.mesh(mesh)": "fix: pass it as it is",
    "outlay.mesh({'data': 8})": WORKS,
    "outlay.mesh('data=4,model=2')": WORKS,
    "outlay.mesh()": "outlay.mesh(data=-1) for all devices",
    "outlay.mesh(data=3)": "fix: outlay.mesh(data=8)",
    "outlay.mesh('h100:1x8')": "fix: outlay.mesh(data=-1, target='h100:1x8')",
    "outlay.mesh(data=8, target='h100')": "fix: write h100:1x8",
    "outlay.mesh(data=8, target='H100:1x8')": "did you mean 'h100'?",
    "outlay.simulate()": "fix: outlay.simulate(8)",
    "outlay.simulate('8')": "fix: outlay.simulate(8)",
    "outlay.mesh(data=4, target='cpu:4')": "the devices of target cpu:4 are simulated",
    "outlay.mesh('4x2')": "fix: outlay.mesh(data=4, model=2)",
    "outlay.mesh('data=4 model=2')": "write data=4,model=2",
    "outlay.mesh(data='8')": "write data=8",
    "outlay.mesh(data=8.0)": "write data=8",
    "outlay.mesh(shape=(4, 2), axis_names=('data', 'model'))": "fix: outlay.mesh(data=4, model=2)",
    "outlay.join(4)": "fix: outlay.join()",
}

LAYOUTS = {
    "program(layout='fsdp')": "write outlay.fsdp() + outlay.data_parallel()",
    "program(layout='fsdp+tp')": "write outlay.tensor_parallel() + outlay.fsdp() + outlay.data_parallel()",
    "program(layout='mine.toml')": "outlay.layout.read_layout('mine.toml')",
    "program(layout=outlay.fsdp)": "fix: call it: outlay.fsdp()",
    "program(layout=None)": "fix: outlay.fsdp() + outlay.data_parallel()",
    "program(layout=outlay.Layout({'w': P('data')}) + outlay.data_parallel())": WORKS,
    "program(layout={'w': P('data'), 'batch': P('data')})": "no rule covers",
    "outlay.Layout(('w', P('data')))": WORKS,
    "outlay.Layout('w', P('data'))": 'fix: outlay.Layout([("params.**.kernel", P(None, "model"))])',
    "outlay.Layout(['w'])": 'a pattern needs a placement: ("w", P(None, "model"))',
    "outlay.Layout([('w', 'data')])": "fix: P('data'); from jax.sharding import PartitionSpec as P",
    "outlay.Layout([('w', (None, 'data'))])": "fix: P(None, 'data')",
    "outlay.Layout([('w', [None, 'data'])])": "fix: P(None, 'data')",
    "outlay.Layout([('w', None)])": "fix: P() or outlay.replicate()",
    "outlay.Layout([('w', jax.NamedSharding(mesh, P('data')))])": "the spec alone, for any mesh: P('data')",
    "program(layout=outlay.Layout([('.*w$', P('data'))]))": 'write "**.*w"',
    "program(layout=outlay.Layout([('(w|b)', P('data'))]))": 'write "b", "w"',
    "program(layout=outlay.Layout([('ww', P('data'))]) + dp)": "did you mean 'w'?",
    "program(layout=outlay.Layout([('w', P('modle'))]) + dp)": "outlay.mesh(modle=...)",
    "program(layout=outlay.fsdp('dta') + dp)": "did you mean 'data'?",
    "outlay.fsdp(min_size='1MB')": "fix: min_size=2**20",
    "outlay.fsdp(mesh)": "fix: outlay.fsdp('data')",
    "outlay.data_parallel(8)": "fix: outlay.data_parallel('data')",
    "outlay.fsdp(shard_size=4)": "known: 'axis'",
    "outlay.tensor_parallel(size=2)": "known: 'axis'",
    "outlay.Layout([('w', P('data'))]) | dp": "fix: layout + layout",
    "outlay.replicate('w')": '("params.bias", outlay.replicate())',
    "outlay.layout.pipeline('stage', num_microbatches=4)": "fix: microbatches=",
    "outlay.layout.pipeline('stage', microbatches=4, schedule='1f1b')": 'mode="placed", schedule="1f1b"',
    "outlay.layout.pipeline()": "pipeline() lacks microbatches",
    "outlay.layout.fp8(dtype='e4m3')": 'forward="e4m3"',
    "outlay.layout.expert_parallel(size=4)": "known: 'axis'",
    "outlay.experts(len, {}, batch, batch, k=2)": "fix: top_k=",
}

PROGRAMS = {
    "outlay.program(step, init, batch, mesh=mesh)": "program() lacks layout",
    "outlay.program(step, init, batch, layout=dp)": "mesh=outlay.mesh(data=-1)",
    "outlay.program(step, init, batch, dp, mesh)": "layout=outlay.data_parallel(), mesh=outlay.mesh(data=-1)",
    "outlay.program(step, init, batch, layout=dp, devices=8)": 'mesh="data=-1"',
    "program(mesh=8)": "fix: mesh=outlay.mesh(data=-1)",
    "program(mesh=jax.devices())": "fix: mesh=outlay.mesh(data=-1)",
    "program(mesh=jax.make_mesh((8,), ('data',)))": WORKS,
    "program(mode='pmap')": "known: 'auto', 'manual', 'placed'",
    "program(step=jax.jit(step))": WORKS,
    "program(init=lambda: init(jax.random.key(0)))": WORKS,
    "program(init=state)": "fix: init=lambda key: state",
    "program(step=nn.Dense(4))": "outlay.train_step(loss, optimizer) makes one",
    "program(step=nnx.Linear(8, 4, rngs=nnx.Rngs(0)))": "outlay.train_step(loss, optimizer) makes one",
    "program(init=nn.Dense(4))": "fix: init=lambda key: model.init(key, x)",
    "outlay.program(init, step, batch, layout=dp, mesh=mesh)": "they are swapped",
    "outlay.train_step(loss, 'adam')": "fix: optax.adam(1e-3)",
    "trained(lambda params, batch: jnp.mean(batch))": "fix: def loss(params, batch, keys): ...",
    "trained(lambda params, batch, keys: jnp.mean(batch @ params['w']))": 'with train_step(..., reduction="mean")',
    "made.init()": "fix: state = program.init(jax.random.key(0))",
    "made.init(0)": "fix: jax.random.key(0)",
    "made.compile()": "the first call does it by itself",
    "made.run(state, batch)": "fix: state, outputs = program(state, batch)",
    "made.train()": "fix: outlay.fit(program, batches, steps=100",
    "made.memory": "fix: outlay.explain(program).memory",
    "made.state": "fix: state = program.init(jax.random.key(0))",
    "made.explain()": "fix: outlay.explain(program)",
    "made.memory_analysis()": "fix: outlay.explain(program).memory",
    "made.cost_analysis()": "fix: outlay.estimate(program)",
    "made.as_text()": "fix: program.compiled.as_text()",
    "made.sharding": "program.plan says where every leaf lives",
    "made.plan.diff(dp)": "fix: outlay.program(..., layout=layout).plan",
    "made.plan.to_file('plan.json')": "fix: Path('plan.json').write_text(value.to_json())",
    "outlay.train_step(loss)": "fix: outlay.train_step(loss, optax.adam(1e-3))",
    "outlay.train_step(optax.adam(1e-3), loss)": "they are swapped",
    "outlay.train_step(loss, optimizer=optax.adam, lr=0.1)": "fix: optax.adam(0.1)",
    "outlay.init_state(init)": "fix: outlay.init_state(init_params, optax.adam(1e-3))",
    "outlay.init_state(optax.adam(1e-3), init)": "they are swapped",
    "outlay.init_state({'w': batch}, optax.adam(1e-3))": "fix: init_params=lambda key: params",
    "made.plann": "did you mean 'plan'?",
    "made.plan.show()": "outlay.show(value)",
    "made.plan['ww']": "did you mean 'w'?",
    "made(made.init(jax.random.key(0)), batch[:7])": "it is a last batch of 7 samples",
}

VERBS = {
    "outlay.profile(made, steps=1).num_steps": WORKS,
    "outlay.fit(made, batches, num_steps=3)": "fix: steps=",
    "outlay.fit(made, batches, epochs=3)": "fix: steps=",
    "outlay.fit(made, batches, steps=3)": "key=jax.random.key(0)",
    "outlay.fit(made)": "fit() lacks data, steps, key",
    "outlay.fit(made, batches, steps=3, key=0)": "fix: jax.random.key(0)",
    "outlay.verify(made, batch)": "outlay.verify(program, batches=[batch] * 3)",
    "outlay.verify('digits')": "fix: outlay.verify(outlay.program(",
    "outlay.run('digit')": "did you mean 'digits'?",
    "outlay.run(made)": "fix: outlay.fit(program, batches, steps=100",
    "outlay.run(not_a_recipe)": "which of its functions makes the recipe?",
    "outlay.run(not_a_recipe + ':one')": "fix: return outlay.Recipe(...)",
    "outlay.show('digits')": "outlay show digits",
    "outlay.explain('digits')": "outlay explain digits",
    "outlay.explain(step)": "fix: outlay.explain(jax.jit(step), ...)",
    "outlay.explain(step, state, batch)": "fix: outlay.explain(jax.jit(step), ...)",
    "outlay.estimate(made, 'h100:1x8')": "fix: target='h100:1x8'",
    "outlay.choose('digits')": 'fix: outlay.choose("digits", target="h100:1x8")',
    "outlay.fit(step, batches, steps=3, key=None)": "fix: outlay.fit(outlay.program(",
    "outlay.fit(made, batches, steps=3, key=None, log='tensorboard')": "on_step=outlay.train.MetricsLog('tensorboard'",
    "outlay.fit(made, batches, steps=3, key=None, logger=print)": "fix: on_step=",
    "outlay.fit(made, batches, steps=3, key=None, verbose=False)": "fix: progress=",
    "outlay.fit(made, batches, steps=3, key=None, validation_data=batches)": "fix: evaluate=",
    "outlay.fit(made, batches, steps=3, key=None, batch_size=16)": "outlay.TrainData(examples, batch_size=16)",
    "outlay.fit(made, batches, steps=3, key=None, checkpoints='folder')": "fix: outlay.Checkpoints('folder')",
    "outlay.Checkpoints('folder').load(made)": "fix: step, state = checkpoints.restore(program)",
    "outlay.train.MetricsLog('tensorboard')": "MetricsLog() lacks folder",
    "outlay.train.MetricsLog('tensorbord', folder='runs/x')": "one of tensorboard, wandb, mlflow",
    "outlay.evaluate(made, state)": "evaluate() lacks examples",
    "outlay.choose(made, target='cpu:8')": "fix: 'path/to/file.py:function'",
    "outlay.run('digits', num_steps=3)": "fix: steps=",
    "outlay.run('digits', device=8)": "did you mean 'devices'?",
    "outlay.run('digits', wandb=True)": "fix: log='wandb'",
    "outlay.run('digits', log='tb')": "one of tensorboard, wandb, mlflow",
    "outlay.run('digits', batch_size=8)": "fix: options={'batch_size': ...}",
    "outlay.show()": "show() lacks x",
    "outlay.show(made, html='page.html')": "Path('page.html').write_text(outlay.show(program).to_html())",
    "outlay.explain(made, html='page.html')": "Path('page.html').write_text(outlay.explain(program).to_html())",
    "outlay.explain(made).save('page.html')": "fix: Path('page.html').write_text(value.to_html())",
    "outlay.explain(made).time": "fix: outlay.estimate(program)",
    "outlay.estimate(made).time": "fix: value.seconds",
    "outlay.verify(made).passed": "fix: value.ok",
    "outlay.explore('digits')": "outlay show digits --explore",
    "outlay.Checkpoints()": 'fix: outlay.Checkpoints("checkpoints")',
}

NAMES = {
    "outlay.fdsp": "did you mean 'fsdp'?",
    "outlay.__version__": WORKS,
    "outlay.P": "fix: from jax.sharding import PartitionSpec as P",
    "outlay.Mesh": "fix: outlay.mesh(data=4, model=2)",
    "outlay.plan(state, mesh)": "fix: layout.plan(state, mesh)",
    "outlay.shard(state, mesh)": "fix: outlay.arrays.put(tree, layout, mesh)",
    "outlay.jit(step)": "fix: program = outlay.program(",
    "outlay.save": 'fix: outlay.Checkpoints("checkpoints")',
    "outlay.launch": "outlay launch",
    "outlay.dp": "fix: outlay.data_parallel()",
    "outlay.devices()": "fix: jax.devices() lists them",
    "outlay.layout([('w', P())])": "fix: outlay.Layout([",
    "outlay.train(step)": "fix: outlay.fit(program",
    "outlay.Plan": "fix: outlay.layout.Plan",
    "outlay.with_sharding_constraint(batch, P())": "fix: outlay.constrain(",
    "outlay.set_mesh(mesh)": "fix: mesh=mesh",
    "outlay.metrics": "on_step=outlay.train.MetricsLog(",
    "outlay.tensorboard": "on_step=outlay.train.MetricsLog(",
    "outlay.wandb": "on_step=outlay.train.MetricsLog(",
    "outlay.pipeline_parallel()": """fix: a rule: ("params.layers.**", outlay.layout.pipeline(""",
    "outlay.expert_parallel()": "axis of the mesh",
    "outlay.sequence_parallel()": "outlay.constrain",
    "outlay.megatron()": "fix: outlay.tensor_parallel(",
    "outlay.adam(1e-3)": "fix: optax.adam(1e-3)",
    "outlay.errors.LayoutEror": "did you mean 'LayoutError'?",
    "outlay.layout.fsdp": "fix: outlay.fsdp",
    "outlay.arrays.putt": "did you mean 'put'?",
}


def init(key):
    return {"w": jax.random.normal(key, (8, 4)), "b": jnp.zeros(8)}


def step(state, batch):
    return state, {"loss": jnp.mean(batch @ state["w"])}


@functools.cache
def names() -> dict[str, Any]:
    """What the lines speak of."""
    batch, mesh, dp = np.ones((16, 8), np.float32), outlay.mesh(data=8), outlay.data_parallel()
    usual = {"step": step, "init": init, "layout": dp, "mesh": mesh}

    def program(**given):
        of = {**usual, **given}
        return outlay.program(of.pop("step"), of.pop("init"), batch, **of)

    def trained(loss):
        optimizer = optax.sgd(0.1)
        return program(step=outlay.train_step(loss, optimizer), init=outlay.init_state(init, optimizer))

    return {
        **globals(),
        **usual,
        "nn": nn,
        "nnx": nnx,
        "dp": dp,
        "batch": batch,
        "batches": [batch] * 3,
        "state": jax.eval_shape(init, jax.random.key(0)),
        "loss": lambda params, batch, keys: batch,
        "program": program,
        "trained": trained,
        "made": program(),
    }


@pytest.mark.parametrize(("typed", "answer"), (MESHES | LAYOUTS | PROGRAMS | VERBS | NAMES).items())
def test_a_first_guess_works_or_its_error_holds_the_line_to_write(typed, answer, tmp_path):
    file = tmp_path / "not_a_recipe.py"
    file.write_text("def one():\n    return 3\n")
    known = {**names(), "not_a_recipe": str(file)}
    if answer is WORKS:
        assert eval(typed, known) is not None
        return
    with pytest.raises(Exception) as refused:  # noqa: PT011 - of any class: the message is what counts
        eval(typed, known)
    assert answer in str(refused.value)


def test_an_error_is_shown_under_the_name_that_users_catch_it_by():
    with pytest.raises(outlay.errors.LayoutError) as refused:
        outlay.Layout(["w"])
    assert type(refused.value).__module__ == "outlay.errors"
    for name in outlay.errors.__all__:
        kind = getattr(outlay.errors, name)
        assert kind is outlay.errors.Problem or kind.__module__ == "outlay.errors"


def test_a_mistake_of_the_users_own_inside_the_call_is_left_as_it_is():
    def broken(key):
        return len(5)

    with pytest.raises(TypeError, match=r"object of type 'int' has no len\(\)"):
        names()["program"](init=broken)


def test_counts_in_a_message_are_those_of_the_printed_plan():
    """Two leaves of the state and the batch are three rows; the loss that the step returns is in no row."""
    made = names()["made"]
    with pytest.raises(outlay.errors.LayoutError, match=f"none of the {len(made.plan)} leaves"):
        names()["program"](layout=outlay.Layout([("ww", P("data"))]) + outlay.data_parallel())
