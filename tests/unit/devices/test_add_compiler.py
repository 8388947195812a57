"""Compilers that JAX does not find: `uv` is replaced by a script, since a test downloads nothing."""

import importlib.metadata
import importlib.util
import subprocess
from pathlib import Path

import pytest
from tests.unit.cli.command import command_here

from outlay.core import jax_topologies
from outlay.core.compiler_folder import compiler_file, compiler_folder, compiler_versions
from outlay.core.error_types import TargetError
from outlay.devices.add_compiler import _installer, add_compiler

UV = """#!/bin/sh
echo "$@" >> "$XDG_DATA_HOME/asked"
while [ "$1" != --target ]; do shift; done
mkdir -p "$2/jax_plugins/xla_cuda13" "$2/jax_cuda13_pjrt-7.dist-info"
printf 'Metadata-Version: 2.1\\nName: jax-cuda13-pjrt\\nVersion: 7\\n' > "$2/jax_cuda13_pjrt-7.dist-info/METADATA"
echo library > "$2/jax_plugins/xla_cuda13/xla_cuda_plugin.so"
[ ! -e "$XDG_DATA_HOME/fails" ] || { echo 'no such version' >&2; exit 3; }
"""


@pytest.fixture(autouse=True)
def uv(tmp_path, monkeypatch):
    script = tmp_path / "bin/uv"
    script.parent.mkdir()
    script.write_text(UV)
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{script.parent}:/usr/bin:/bin")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    return script


@pytest.mark.processes
def test_the_compiler_is_where_outlay_looks_and_no_package_is(tmp_path, monkeypatch):
    assert compiler_file("gpu") is None
    done = command_here("compiler", "gpu", cwd=tmp_path)
    assert (done.exit_code, done.stdout) == (0, f"the compiler for GPUs is in {compiler_folder('gpu')}\n")
    jaxlib = importlib.metadata.version("jaxlib")
    assert (tmp_path / "asked").read_text().split()[-1] == f"jax-cuda13-pjrt=={jaxlib}"
    assert jaxlib in compiler_folder("gpu").name
    assert compiler_versions() == {"jax-cuda13-pjrt": "7"}
    monkeypatch.setattr(jax_topologies, "GPU_PLUGINS", {})  # as where no package has it
    assert jax_topologies.gpu_library() == compiler_file("gpu")


@pytest.mark.processes
def test_a_download_that_fails_leaves_what_was_there(tmp_path):
    folder = add_compiler("gpu")
    (tmp_path / "fails").write_text("")
    with pytest.raises(TargetError, match=r"cannot be installed, exit code 3\n  no such version"):
        add_compiler("gpu")
    assert compiler_file("gpu")
    assert [entry.name for entry in folder.parent.iterdir()] == [folder.name]


@pytest.mark.processes
def test_a_missing_compiler_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setattr(jax_topologies, "GPU_PLUGINS", {})
    with pytest.raises(TargetError, match="the GPU compiler is not installed"):
        jax_topologies.gpu_library()
    wrong = command_here("compiler", "cpu", cwd=tmp_path)
    assert wrong.exit_code == 2
    assert "'cpu': one of gpu, tpu" in wrong.stderr
    assert not Path(tmp_path, "asked").exists()


@pytest.mark.processes
def test_an_environment_without_pip_takes_the_one_that_python_brings(uv, monkeypatch):
    uv.unlink()
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find_spec(name))
    command = _installer()
    assert command[1].endswith(".whl/pip")
    asked = subprocess.run([*command[:2], "--version"], capture_output=True, text=True, check=True)
    assert asked.stdout.startswith("pip ")
