"""What people write first, and the line that does it: names of other libraries, verbs in another place."""

from __future__ import annotations

_PROGRAM = "program = outlay.program(step, init, batch, layout=layout, mesh=mesh)"
_SPEC = "from jax.sharding import PartitionSpec as P"
_PUT = "outlay.arrays.put(tree, layout, mesh) for arrays that exist; program.init(key) makes a state already sharded"
_PIPELINE = 'a rule: ("params.layers.**", outlay.layout.pipeline("stage", microbatches=8))'
_FIT = "outlay.fit(program, batches, steps=100, key=jax.random.key(0))"
_SAVED = "Path('page.html').write_text(value.to_html()); value.to_dict() for JSON"
_CHECKPOINTS = 'outlay.Checkpoints("checkpoints"), as checkpoints= of outlay.fit, or its save and restore'

_LOG = (
    "on_step=outlay.train.MetricsLog('tensorboard', folder='runs/mine') of outlay.fit; log='tensorboard' of outlay.run"
)
_NAMED = "outlay.constrain(value, 'name') names a value of the step, and a rule says its spec"

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
    "with_sharding_constraint": _NAMED,
    "sequence_parallel": f"a rule for an activation's dim: {_NAMED}",
    "context_parallel": f"a rule for an activation's dim: {_NAMED}",
    "expert_parallel": "a rule for the experts' weights over an axis of the mesh: ('**.experts.**', P('expert'))",
    "pipeline_parallel": _PIPELINE,
    "pipeline": _PIPELINE,
    "stages": _PIPELINE,
    "scan_layers": "outlay.layers(blocks, x) for a list of layers, jax.lax.scan for a stack",
    "megatron": "outlay.tensor_parallel('model', columns=[...], rows=[...])",
    "set_mesh": "mesh=mesh of outlay.program; no global mesh is set",
    "use_mesh": "mesh=mesh of outlay.program; no global mesh is set",
    "metrics": _LOG,
    "log": _LOG,
    "logger": _LOG,
    "tensorboard": _LOG,
    "wandb": _LOG,
    "mlflow": _LOG,
    "adam": "optax.adam(1e-3)",
    "adamw": "optax.adamw(1e-3)",
    "sgd": "optax.sgd(1e-2)",
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
    "outlay.launch": "outlay launch -n 2 -- python train.py, in a shell, or outlay.run(recipe, processes=2)",
    "outlay.slurm": "outlay slurm run digits --nodes 2, in a shell",
}
"""What to write for a module that is called like a function."""

ATTRIBUTES = {
    "Program": {
        "compile": "program.compiled_parts compiles; the first call does it by itself",
        "run": "state, outputs = program(state, batch)",
        "train": _FIT,
        "fit": _FIT,
        "save": _CHECKPOINTS,
        "load": _CHECKPOINTS,
        "state": "state = program.init(jax.random.key(0)); a program holds no state",
        "params": "state = program.init(jax.random.key(0)); a program holds no state",
        "memory": "outlay.explain(program).memory",
        "memory_analysis": "outlay.explain(program).memory; program.compiled.memory_analysis() is JAX's own",
        "cost": "outlay.estimate(program)",
        "cost_analysis": "outlay.estimate(program); program.compiled.cost_analysis() is JAX's own",
        "as_text": "program.compiled.as_text()",
        "hlo": "program.compiled.as_text()",
        "step_fn": "program.step, the function as it was given",
        "sharding": "program.plan says where every leaf lives; outlay.show(program) draws it",
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
    },
    "Plan": {
        "save": "Path('plan.json').write_text(value.to_json())",
        "to_file": "Path('plan.json').write_text(value.to_json())",
        "load": "outlay.layout.Plan.from_json(text)",
        "specs": "{leaf.path: leaf.spec for leaf in plan}",
    },
    "Estimate": {
        "time": "value.seconds",
        "total": "value.seconds",
        "step_time": "value.seconds",
        "milliseconds": "1e3 * value.seconds",
    },
    "Verification": {
        "passed": "value.ok",
        "equal": "value.ok",
        "same": "value.ok",
        "is_equal": "value.ok",
        "success": "value.ok",
        "check": "value.raise_if_different()",
        "assert_equal": "value.raise_if_different()",
        "max_error": "value.worst or value.leaves",
    },
    "Explanation": {
        "time": "outlay.estimate(program)",
        "seconds": "outlay.estimate(program)",
        "flops": "outlay.estimate(program).flops",
        "peak_memory": "value.memory",
        "peak": "value.memory",
        "bytes": "value.bytes_per_step",
    },
    "Checkpoints": {
        "load": "step, state = checkpoints.restore(program)",
        "read": "step, state = checkpoints.restore(program)",
        "write": "checkpoints.save(step, state)",
        "latest": "checkpoints.last_saved()",
        "latest_step": "checkpoints.last_saved()",
        "all_steps": "checkpoints.steps()",
        "wait_until_finished": "checkpoints.wait()",
        "folder": "checkpoints.path",
    },
    "Report": {
        "show": "print(value), or outlay.show(value) for a plan",
        "html": "value.to_html()",
        "save": _SAVED,
        "write": _SAVED,
        "to_file": _SAVED,
        "savefig": _SAVED,
        "json": "value.to_dict()",
        "as_dict": "value.to_dict()",
        "print": "print(value)",
    },
}
"""What to write for an attribute that a value of a class does not have, and that is no misspelt one."""

OPTIONS = {
    "gpus": "--devices N simulates devices; without it the attached ones are used",
    "num-gpus": "--devices N simulates devices; without it the attached ones are used",
    "epochs": "--steps N: the number of batches of all epochs",
    "num-epochs": "--steps N: the number of batches of all epochs",
    "max-steps": "--steps N",
    "iterations": "--steps N",
    "nproc": "--processes N",
    "num-processes": "--processes N",
    "np": "--processes N",
    "output": "--run-folder DIR",
    "out": "--run-folder DIR",
    "output-dir": "--run-folder DIR",
    "logdir": "--run-folder DIR; --log tensorboard writes into it",
    "wandb": "--log wandb",
    "mlflow": "--log mlflow",
    "tensorboard": "--log tensorboard",
    "logger": "--log tensorboard, wandb or mlflow",
    "overwrite": "--force",
    "verbose": "--plan prints where every array lives",
    "strategy": "--layout fsdp",
    "parallelism": "--layout fsdp",
    "fsdp": "--layout fsdp",
    "dp": "--layout dp",
    "tp": "--layout tp --mesh data=4,model=2",
    "hardware": "--target h100:1x8",
    "gpu": "--target h100:1x8",
    "tpu": "--target tpu-v5e:4x4",
}
"""What to write for an option of a command that neither it nor its recipe has."""


def attribute_guess(kind: type, name: str) -> str:
    """Return what to write for an attribute that values of a class do not have; empty if nobody knows.

    >>> attribute_guess(outlay.layout.Plan, "load"), attribute_guess(outlay.layout.Plan, "html")
    ('outlay.layout.Plan.from_json(text)', 'value.to_html()')
    """
    tables = (ATTRIBUTES.get(one.__name__, {}) for one in kind.__mro__)
    return next((table[name] for table in tables if name in table), "")
