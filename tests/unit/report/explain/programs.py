"""Small programs whose collectives are known, for the tests of `explain`."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import optax
from jax.sharding import PartitionSpec as P

from outlay.devices.build import mesh
from outlay.layout.layout import Layout
from outlay.layout.strategies import data_parallel, fsdp
from outlay.program.make import program
from outlay.report.explain.explain import explain
from outlay.train.step import init_state, train_step

WIDTH = 64
programs_file = Path(__file__).resolve()


def shape(*sizes, on=None, spec=P(), dtype=jnp.float32):
    return jax.ShapeDtypeStruct(sizes, dtype, sharding=None if on is None else jax.NamedSharding(on, spec))


def explain_on(on, function, *args, **options):
    """Explain a function whose arguments are (sizes, spec) pairs."""
    return explain(jax.jit(function, **options), *(shape(*sizes, on=on, spec=spec) for sizes, spec in args))


def line_of(text, file):
    """The line of a file that ends in a text, as no other line may."""
    numbers = [number for number, line in enumerate(Path(file).read_text().splitlines(), 1) if line.endswith(text)]
    assert len(numbers) == 1, f"{text!r} ends lines {numbers}"
    return numbers[0]


def kinds(explanation):
    return [(one.kind, one.axes, one.bytes_moved, one.count) for one in explanation.collectives]


def named(explanation):
    return {finding.kind: finding for finding in explanation.findings}


def two_layers(params, x):
    for number in range(2):
        with jax.named_scope(f"layer{number}"):
            x = jnp.tanh(x @ params[f"w{number}"])  # the line of every product
    return x


def squared_error(params, batch, keys):
    return ((two_layers(params, batch["x"]) - batch["y"]) ** 2).mean(-1), {}


def init_params(key):
    return {f"w{number}": jax.random.normal(key, (WIDTH, WIDTH)) for number in range(2)}


def training(layout=None, *, batch_size=512, loss=squared_error, on=None, extra=False, **options):
    """A training program; its batch is so large that compilers rather gather parameters."""
    optimizer = optax.sgd(0.1, momentum=0.9)
    batch = {"x": shape(batch_size, WIDTH), "y": shape(batch_size, WIDTH)}
    if extra:
        batch["a_name_that_nothing_reads"] = shape(batch_size, 3)
    return program(
        train_step(loss, optimizer),
        init_state(init_params, optimizer),
        batch,
        layout=layout or Layout([*fsdp(min_size=8)]) + data_parallel(),
        mesh=on or mesh(data=8),
        **options,
    )


@functools.cache
def explained(layout=None, **options):
    """Explain a training program; compiled once for the tests of a process that read the same one."""
    return explain(training(layout, **options))
