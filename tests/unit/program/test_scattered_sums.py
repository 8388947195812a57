"""In a job of CPU devices, where gloo scatters sums wrongly at times, no path of Outlay lets it, and users are told."""

import json
import socket
import subprocess

import pytest
from tests import forks
from tests.unit.cli.command import environment

from outlay.cli.doctor_command import known_problems

ONE_OF_ONE = """
import json, sys
import jax, jax.numpy as jnp, numpy as np, optax, outlay
from outlay.core.jax_compat import scatters_wrongly
from outlay.errors import ProgramError

outlay.simulate(4)
jax.distributed.initialize(f"127.0.0.1:{sys.argv[1]}", 1, 0)
mesh, rows, optimizer = outlay.mesh(data=4), np.arange(32, dtype=np.float32).reshape(4, 8), optax.sgd(0.1, momentum=0.9)
plain = outlay.data_parallel()
of_steps = outlay.Layout([("outputs.**", jax.sharding.PartitionSpec("data"))]) + plain

def made(step, init=lambda key: jnp.zeros(()), layout=of_steps):
    return outlay.program(step, init, rows, layout=layout, mesh=mesh, mode="manual")

def loss(params, batch, keys):
    return ((batch @ params["w"]) ** 2).sum(1), {}

def own(state, batch):
    return state, {"sum": outlay.collectives.sum_scatter(batch[0], "data")[None]}

def by_hand(state, batch):
    return state, {"sum": jax.lax.psum_scatter(batch[0], "data", tiled=True)[None]}

def refusal(program):
    try:
        program.compiled
    except ProgramError as error:
        return str(error)
    return ""

init = outlay.init_state(lambda key: {"w": jnp.ones((8, 4))}, optimizer)
layouts = {"fsdp": outlay.fsdp(min_size=2) + plain, "zero2": outlay.zero2(min_size=2) + plain}
trains = {name: made(outlay.train_step(loss, optimizer), init, layout) for name, layout in layouts.items()}
program = made(own)
_, sums = program(program.init(None), rows)
print(json.dumps({
    "wrongly": scatters_wrongly("cpu"),
    "sum": np.asarray(sums["sum"]).ravel().tolist(),
    "scatters": {name: one.lowered.as_text().count("reduce_scatter") for name, one in trains.items()},
    "by hand": refusal(made(by_hand)),
}))
"""


@pytest.mark.processes
def test_no_path_of_outlays_scatters_sums_by_gloo_and_a_users_own_is_refused():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [forks.python(), "-c", ONE_OF_ONE, port]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout.splitlines()[-1])
    assert seen["sum"] == [48.0, 52.0, 56.0, 60.0, 64.0, 68.0, 72.0, 76.0]
    if seen["wrongly"]:  # the older JAX
        assert seen["scatters"] == {"fsdp": 0, "zero2": 0}
        assert "gloo gives wrong sums at times" in seen["by hand"]
        assert "fix: outlay.collectives.sum_scatter in place of jax.lax.psum_scatter" in seen["by hand"]
    else:
        assert seen["scatters"] == {"fsdp": 1, "zero2": 1}
        assert seen["by hand"] == ""


class Cpu:
    platform = "cpu"


@pytest.mark.parametrize(
    ("jaxlib", "variables", "is_shown"),
    [
        ("0.10.2", {"SLURM_NTASKS": "2"}, True),
        ("0.10.2", {"OUTLAY_NUM_PROCESSES": "2"}, True),
        ("0.10.2", {}, False),
        ("0.12.0.1", {"SLURM_NTASKS": "2"}, False),
    ],
)
def test_doctor_tells_of_it_in_a_job(jaxlib, variables, is_shown):
    problems = list(known_problems([Cpu(), Cpu()], variables, {"jax": jaxlib, "jaxlib": jaxlib}))
    assert any("psum_scatter gives wrong sums at times" in problem for problem in problems) == is_shown
