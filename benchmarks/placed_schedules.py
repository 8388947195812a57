"""A step of a pipeline: stages as programs of their own with 1F1B, against the one program of mode auto.

4 layers of 1024 on 2 simulated stages, 4 microbatches. Simulated devices show what dispatching costs, not speed.
"""

import jax
import jax.numpy as jnp
import numpy as np
import optax
from _timing import compare

import outlay

outlay.simulate(2)

WIDTH, LAYERS, MICROBATCHES = 1024, 4, 4


def init_params(key):
    return {"layers": jax.random.normal(key, (LAYERS, WIDTH, WIDTH)) / WIDTH}


def loss(params, batch, keys):
    x, _ = jax.lax.scan(lambda x, w: (x + jnp.tanh(x @ w), None), batch, params["layers"])
    return (x**2).mean(-1), {}


optimizer, batch = optax.sgd(1e-3), np.ones((64, WIDTH), np.float32)
rule = ("params.layers", outlay.layout.pipeline("stage", microbatches=MICROBATCHES))
states, programs = {}, {}
for mode in ("placed", "auto"):
    programs[mode] = outlay.program(
        outlay.train_step(loss, optimizer),
        outlay.init_state(init_params, optimizer),
        batch,
        layout=outlay.Layout([rule, ("**", outlay.replicate()), ("batch.**", outlay.replicate())]),
        mesh=outlay.mesh(stage=2),
        mode=mode,
    )
    states[mode] = programs[mode].init(jax.random.key(0))


def call(mode):
    states[mode], _ = programs[mode](states[mode], batch)
    jax.block_until_ready(states[mode])


call("placed"), call("auto")
placed, auto, ratio = compare(lambda: call("placed"), lambda: call("auto"), rounds=10, calls=3)
print(f"4 layers of {WIDTH} on 2 simulated stages, {programs['placed'].schedule.name} against one program:")
print(f"  placed {placed * 1e3:.1f} ms, auto {auto * 1e3:.1f} ms, ratio {ratio:.2f}")
