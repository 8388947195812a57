"""Nearly each case is a program of its own: the number of devices is fixed once JAX has started."""

import os
import subprocess
import sys
import textwrap

import pytest
from tests import forks
from tests.unit.cli.command import environment

import outlay
from outlay.core.error_types import MeshError

pytestmark = [pytest.mark.newest, pytest.mark.processes]

SET_BY_SIMULATE = ("XLA_FLAGS", "NPROC", "JAX_PLATFORMS", "JAX_PLATFORM_NAME")


def run(program: str, timeout: float = 60, **env: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a fork of a process that has imported JAX; or in the Python that `python=` names."""
    clean = {name: value for name, value in environment().items() if name not in SET_BY_SIMULATE}
    program = "import os, outlay\n" + textwrap.dedent(program)
    command = [env.pop("python", forks.python()), "-c", program]
    return subprocess.run(command, env={**clean, **env}, capture_output=True, text=True, timeout=timeout, check=False)


def output_of(program: str, **env: str) -> str:
    done = run(program, **env)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout.strip()


def last_lines_of(program: str, **env: str) -> str:
    done = run(program, **env)
    assert done.returncode == 1, done.stdout
    return done.stderr


SHOW = "outlay.simulate(6); import jax; print([d.id for d in jax.devices()])"


@pytest.mark.some_cases(1)
@pytest.mark.parametrize(
    "env",
    [
        pytest.param({"python": sys.executable}, marks=pytest.mark.any_jax),  # here JAX is imported after `simulate`
        pytest.param({"JAX_PLATFORM_NAME": "cpu"}, marks=pytest.mark.any_jax),
        pytest.param({"JAX_PLATFORMS": "cpu"}, marks=pytest.mark.any_jax),
        {"JAX_PLATFORMS": "cuda,cpu"},
        pytest.param({"XLA_FLAGS": "--xla_force_host_platform_device_count=6"}, marks=pytest.mark.any_jax),
    ],
)
def test_six_devices_have_the_ids_0_to_5(env):
    assert output_of(SHOW, **env) == "[0, 1, 2, 3, 4, 5]"


@pytest.mark.any_jax
def test_jax_may_be_imported_before():
    assert output_of("import jax; outlay.simulate(3); print(jax.device_count())") == "3"


def test_the_last_number_before_the_start_counts_and_after_it_another_one_is_too_late():
    program = """
    import jax
    from outlay.devices.mesh_info import host_of
    outlay.simulate(2)
    for num_hosts in (2, 4, 1):  # which may be changed after the start
        outlay.simulate(8, num_hosts=num_hosts)
        print([host_of(device) for device in jax.devices()])
    try:
        outlay.simulate(4)
    except outlay.errors.BackendStartedError as error:
        print(error)
    """
    *hosts, error = output_of(program).splitlines()[:4]
    assert hosts == ["[0, 0, 0, 0, 1, 1, 1, 1]", "[0, 0, 1, 1, 2, 2, 3, 3]", "[0, 0, 0, 0, 0, 0, 0, 0]"]
    assert error.startswith("outlay.simulate(4) comes too late: JAX has started with 8 cpu devices")


def test_too_late_names_the_call_that_started_jax(tmp_path):
    script = tmp_path / "train.py"
    script.write_text("import outlay, jax\n\nkey = jax.random.key(0)\noutlay.simulate(8)\n")
    error = last_lines_of(f"import runpy; runpy.run_path({str(script)!r})")
    assert "outlay.simulate(8) comes too late: JAX has started with " in error
    assert f"JAX's backend was started by {script}:3 at top level: key = jax.random.key(0)\n" in error
    assert "fix: move outlay.simulate(8) above it" in error


@pytest.mark.any_jax
def test_a_start_before_outlay_was_imported_is_said_to_be_unknown(tmp_path):
    script = "import jax; jax.devices(); import outlay; outlay.simulate(8)"
    env = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": ""}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, timeout=280)
    assert "started before outlay was imported, so the call that did it is not known" in done.stderr


@pytest.mark.any_jax
def test_a_setting_that_excludes_simulated_devices_is_an_error_that_names_it():
    program = """
    import jax
    def refused():
        try:
            outlay.simulate(8)
        except outlay.errors.OutlayError as error:
            print(" ".join(str(error).split()))
    refused()  # by the variable
    jax.config.update("jax_platform_name", "")
    jax.config.update("jax_platforms", "cuda")
    refused()
    jax.config.update("jax_platforms", None)
    os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=4"
    refused()
    """
    *platforms, flag = output_of(program, JAX_PLATFORM_NAME="cuda").splitlines()
    for variable, error in zip(("JAX_PLATFORM_NAME", "JAX_PLATFORMS"), platforms, strict=True):
        assert f"simulated devices are CPU devices, but {variable}=cuda" in error
        assert f"fix: unset {variable}, or set it to cpu" in error
    assert "asks for 8 devices, but XLA_FLAGS holds --xla_force_host_platform_device_count=4" in flag
    assert "fix: remove that flag from XLA_FLAGS, or call outlay.simulate(4)" in flag


@pytest.mark.any_jax
def test_flags_and_threads_of_the_user_are_kept():
    flag = "--xla_cpu_collective_call_warn_stuck_timeout_seconds=7"
    program = "outlay.simulate(8); import jax; jax.devices(); print(os.environ['XLA_FLAGS'], os.environ['NPROC'])"
    first, added, threads = output_of(program, XLA_FLAGS=flag, NPROC="777").split()
    assert (first, added, threads) == (flag, "--xla_cpu_collective_call_terminate_timeout_seconds=600", "777")


def test_a_single_device_has_the_threads_that_xla_gives_it():
    program = "for number in (1, 2): outlay.simulate(number); print(os.environ.get('NPROC'))"
    one, two = output_of(program, NPROC="1").splitlines()
    assert one == "1"
    assert int(two) >= 8


@pytest.mark.any_jax
@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ((0, 1), "simulate needs at least 1 device and 1 host, not 0 and 1"),
        ((8, 0), "simulate needs at least 1 device and 1 host, not 8 and 0"),
        (
            (7, 2),
            r"7 devices cannot be spread evenly over 2 hosts\n  fix: outlay.simulate\(8, num_hosts=2\)",
        ),
    ],
)
def test_numbers_that_cannot_be_are_refused(numbers, message):
    with pytest.raises(MeshError, match=message):  # before anything that has started, or has not, is looked at
        outlay.simulate(numbers[0], num_hosts=numbers[1])


def test_pretended_hosts_and_several_processes_exclude_one_another():
    program = """
    import jax, socket
    with socket.socket() as free:
        free.bind(("localhost", 0))
        address = f"localhost:{free.getsockname()[1]}"
    jax.distributed.initialize(address, num_processes=1, process_id=0)
    outlay.simulate(8, num_hosts=2)
    """
    assert "num_hosts=2 simulates hosts inside one process" in last_lines_of(program)


MANY_STEPS = """
import jax, jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P
mesh = outlay.mesh(data=8)
state = jax.device_put([jnp.full((16, 16), i / 20) for i in range(20)], NamedSharding(mesh, P()))
batch = jax.device_put(jnp.ones((64, 16)), NamedSharding(mesh, P("data")))
def step(state, batch):
    gradients = jax.grad(lambda ws: sum(jnp.mean(jnp.tanh(batch @ w)) for w in ws))(state)
    return [w - 0.01 * g for w, g in zip(state, gradients)]
step = jax.jit(step, donate_argnums=0)
for _ in range(100):
    state = step(state, batch)
jax.block_until_ready(state)
print("done")
"""


@pytest.mark.any_jax
def test_more_devices_than_a_process_can_simulate_are_refused_at_once():
    with pytest.raises(MeshError, match=r"100,000 devices are too many .* limit is 1,024(?s:.)*fix: simulate fewer"):
        outlay.simulate(100_000)


def test_many_small_steps_in_flight_do_not_starve_one_another():
    # With XLA's own number of threads 60 steps hang on two cores (JAX 0.10.2), and XLA ends the process.
    flags = "--xla_cpu_collective_call_terminate_timeout_seconds=40"
    done = run("outlay.simulate(8)\n" + MANY_STEPS, timeout=280, XLA_FLAGS=flags)
    assert done.stdout.strip() == "done", done.stderr


@pytest.mark.any_jax
def test_a_single_device_on_a_single_thread_does_not_starve_itself():
    program = "outlay.simulate(1)\n" + MANY_STEPS.replace("data=8", "data=1")
    assert run(program, timeout=280, NPROC="1").stdout.strip() == "done"
