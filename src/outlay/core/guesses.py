"""What people write first, and the line that does it: names of other libraries, verbs in another place."""

from __future__ import annotations

_PROGRAM = "program = outlay.program(step, init, batch, layout=layout, mesh=mesh)"
_SPEC = "from jax.sharding import PartitionSpec as P"
_PUT = "outlay.arrays.put(tree, layout, mesh) for arrays that exist; program.init(key) makes a state already sharded"
_FIT = "outlay.fit(program, batches, steps=100, key=jax.random.key(0))"
_CHECKPOINTS = 'outlay.Checkpoints("checkpoints"), as checkpoints= of outlay.fit, or its save and restore'

NAMES = {
    "P": _SPEC,
    "PartitionSpec": _SPEC,
    "Mesh": "outlay.mesh(data=4, model=2) makes a jax.sharding.Mesh",
    "make_mesh": "outlay.mesh(data=4, model=2)",
    "NamedSharding": "outlay.program makes them from the layout; outlay.arrays.put(tree, layout, mesh) for arrays",
    "ddp": "outlay.data_parallel()",
    "dp": "outlay.data_parallel()",
    "tp": "outlay.tensor_parallel()",
    "zero3": "outlay.fsdp()",
    "plan": "layout.plan(state, mesh), or outlay.program(...).plan",
    "shard": _PUT,
    "put": _PUT,
    "device_put": _PUT,
    "distribute": _PUT,
    "replicated": "outlay.replicate()",
    "compile": f"{_PROGRAM}; program.compiled is what a call runs",
    "jit": _PROGRAM,
    "pjit": _PROGRAM,
    "pmap": _PROGRAM,
    "shard_map": f"{_PROGRAM}; with mode='manual' the step runs on each device's shards",
    "init": f"{_PROGRAM}; state = program.init(jax.random.key(0))",
    "step": "outlay.train_step(loss, optimizer) makes one; program(state, batch) runs one",
    "Trainer": _FIT,
    "train_loop": _FIT,
    "save": _CHECKPOINTS,
    "load": _CHECKPOINTS,
    "restore": _CHECKPOINTS,
    "checkpoint": _CHECKPOINTS,
    "diff": "program.plan.diff(other.plan), or the command `outlay diff`",
    "compare": "program.plan.diff(other.plan), or the command `outlay diff`",
    "memory": "outlay.explain(program).memory",
    "cost": "outlay.estimate(program)",
    "visualize": "outlay.show(program)",
    "visualize_array_sharding": "outlay.show(array)",
    "check": "outlay.verify(program)",
    "test": "outlay.verify(program)",
    "launch": "the command `outlay launch -n 4 -- python train.py`, and outlay.join() in train.py",
    "slurm": "the command `outlay slurm`",
    "doctor": "the command `outlay doctor`",
    "initialize": "outlay.join()",
    "distributed": "outlay.join()",
    "num_devices": "jax.device_count(), or mesh.size",
    "gather": "outlay.arrays.gather(tree)",
    "Config": "outlay takes no configuration object: see outlay.program and outlay.fit",
}
"""What to write for a name that the package does not have, and that is not a misspelt one."""

CALLED = {
    "outlay": _PROGRAM,
    "outlay.devices": "jax.devices() lists them; outlay.mesh(data=-1) is a mesh of all",
    "outlay.layout": 'outlay.Layout([("params.**.kernel", P(None, "model"))])',
    "outlay.train": _FIT,
    "outlay.graph": "outlay.graph.StepGraph(...)",
    "outlay.arrays": _PUT,
    "outlay.datasets": 'outlay.datasets.images("folder"), .tokens, .table, .records or .arrays',
    "outlay.report": "outlay.show(program), or outlay.explain(program)",
    "outlay.analysis": "outlay.explain(program)",
    "outlay.search": 'outlay.choose("digits", target="h100:1x8")',
    "outlay.recipes": 'outlay.run("digits"), or outlay.Recipe.training(...) for one of your own',
    "outlay.models": "outlay.models.TransformerConfig(...), or a model of your own",
    "outlay.jobs": "outlay.join() in a script that `outlay launch` starts",
}
"""What to write for a module that is called like a function."""

OF_A_PROGRAM = {
    "compile": "program.compiled_parts compiles; the first call does it by itself",
    "run": "state, outputs = program(state, batch)",
    "train": _FIT,
    "fit": _FIT,
    "save": _CHECKPOINTS,
    "load": _CHECKPOINTS,
    "state": "state = program.init(jax.random.key(0)); a program holds no state",
    "params": "state = program.init(jax.random.key(0)); a program holds no state",
    "memory": "outlay.explain(program).memory",
    "cost": "outlay.estimate(program)",
    "batch": "program.batch_shapes",
    "inputs": "program.batch_shapes",
    "devices": "program.mesh.devices",
    "shardings": "program.plan says where every leaf lives; outlay.show(program) draws it",
    "show": "outlay.show(program)",
    "explain": "outlay.explain(program)",
    "estimate": "outlay.estimate(program)",
    "verify": "outlay.verify(program)",
    "profile": "outlay.profile(program)",
    "evaluate": "outlay.evaluate(program, state, examples)",
}
"""What to write for an attribute that a program does not have."""
