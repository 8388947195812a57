"""Install each extra alone, from the built wheel, in an empty environment, and run every command that it is for.

make wheels              # all of them, some minutes
python .ci/wheels.py brain zarr
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
SMALL = "import outlay; outlay.simulate(4); import numpy as np; "
QUIET = "python -c import jax; jax.devices()"

COMMANDS = {
    "": [
        "outlay --version",
        "outlay doctor",
        "outlay examples copy plain_pytree",
        "python plain_pytree.py",
        "outlay completion bash",
        "outlay compiler gpu",
        "outlay compiler tpu",
        "outlay run ab_brain",
        "outlay brain show model.toml",
        f"python -c {SMALL}print(hasattr(outlay, 'brain'))",
        f"python -c {SMALL}print(outlay.mesh(data=8, target='h100:1x8').shape)",
        f"python -c {SMALL}print(outlay.mesh(data=16, target='tpu-v5e:4x4').shape)",
        QUIET,
    ],
    "train": [
        "outlay run digits --devices 8 --layout fsdp --steps 20",
        "outlay run digits --devices 8 --steps 4 --checkpoint-every 2 --force",
        "outlay run digits --devices 8 --steps 8 --checkpoint-every 2 --resume",
        "outlay show digits --devices 8 --mesh data=4,model=2 --layout fsdp+tp --html page.html",
        "outlay run lm --devices 8 --steps 2",
        "outlay run gan --devices 8 --steps 2",
        "outlay run resnet --devices 8 --steps 1",
        "outlay verify digits --devices 8 --layout fsdp --mode manual",
        "outlay explain digits --devices 8 --layout fsdp",
        "outlay diff fsdp dp --recipe digits --devices 8",
        "outlay diff fsdp dp --recipe digits --devices 8 --fail-if memory>1TB",
        "outlay profile digits --devices 8",
        "outlay choose digits --target cpu:8 --num-candidates 2",
        "outlay run digits --layout chosen.toml --devices 8 --steps 2 --force",
        "outlay run digits --devices 4 --processes 2 --steps 2 --run-folder shared",
        "outlay show digits --devices 8 --explore --html explore.html",
        "outlay estimate digits --devices 8",
        "outlay runs . --html runs.html",
        "outlay checkpoint show runs/digits/checkpoints",
        "outlay slurm run --nodes 2 --gpus-per-node 4 digits",
        "outlay examples copy flax_nnx_mlp flax_linen_mlp",
        "python flax_nnx_mlp.py",
        "python flax_linen_mlp.py",
    ],
    "brain": [
        "outlay examples copy ab_brain",
        "outlay run ab_brain.toml --steps 200",
        "outlay run ab_brain --devices 6 --mode placed --steps 20 --run-folder placed",
        "outlay verify ab_brain --devices 6 --layout by-neuron",
        "outlay explain ab_brain --devices 6 --mode placed",
        "outlay brain show ab_brain.toml",
    ],
    "zarr": [f"python -c {SMALL}from outlay.train.recording import Recording,_tensorstore;_tensorstore()"],
    "parquet": ["python -c import pyarrow.parquet, outlay.datasets.tables"],
    "safetensors": ["python -c import safetensors, outlay.train.checkpoint.weight_files"],
    "fast-cpu": ["python -c import llvmlite, outlay.brain"],
    "train,tensorboard": [
        "outlay run digits --devices 8 --steps 2 --log tensorboard",
        "tensorboard --inspect --logdir runs",
    ],
    "gpu-plan": [f"python -c {SMALL}print(outlay.mesh(data=8, target='h100:1x8').shape)"],
    "tpu-plan": [f"python -c {SMALL}print(outlay.mesh(data=16, target='tpu-v5e:4x4').shape)"],
}
"""The commands of each extra; of those in Python the whole rest of the line is the program."""

ENDS_WITH = {
    "outlay diff fsdp dp --recipe digits --devices 8": 1,
    **dict.fromkeys(("outlay run ab_brain", "outlay brain show model.toml"), 2),
}
"""The exit codes other than 0 that commands document; of a difference it is 1, of what is not installed 2."""


def main(extras: list[str]) -> int:
    """Try the extras, or all of them; return the number of commands that failed."""
    failed = []
    with tempfile.TemporaryDirectory(prefix="outlay-wheels-") as folder:
        there = Path(folder)
        for project in (ROOT, ROOT / "packages" / "outlay-brain"):
            build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", folder]
            subprocess.run(build, cwd=project, check=True)
        (wheel,) = there.glob("outlay-*.whl")
        for extra in extras or COMMANDS:
            environment = there / f"venv-{extra or 'bare'}"
            uv = Path(sys.executable).with_name("uv")
            subprocess.run([uv, "venv", "--quiet", "--python", sys.executable, environment], check=True)
            name = f"outlay[{extra}] @ {wheel.as_uri()}" if extra else f"outlay @ {wheel.as_uri()}"
            python = environment / "bin" / "python"
            subprocess.run(
                [uv, "pip", "install", "--quiet", "--find-links", folder, "--python", python, name], check=True
            )
            failed += _failing(extra, environment, there)
    print("\n".join(failed) or "every command ran to its end")
    return len(failed)


def _failing(extra: str, environment: Path, there: Path) -> list[str]:
    """Run the commands of an extra in a folder of its own; return those that failed."""
    work, failed = there / f"work-{extra or 'bare'}", []
    work.mkdir()
    path = f"{environment / 'bin'}{os.pathsep}{os.environ['PATH']}"
    own = {"PATH": path, "XDG_DATA_HOME": str(there / "data")}
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    for command in COMMANDS[extra]:
        words = ["python", "-c", command.removeprefix("python -c ")] if "python -c" in command else command.split()
        words[0] = str(environment / "bin" / words[0])
        done = subprocess.run(words, cwd=work, env={**inherited, **own}, capture_output=True, text=True, check=False)
        is_well = done.returncode == ENDS_WITH.get(command, 0) and "Traceback" not in done.stderr
        is_well = is_well and (command != QUIET or not done.stderr)
        print(f"{'ok    ' if is_well else 'FAILED'} [{extra or 'bare'}] {command}", flush=True)
        if not is_well:
            failed.append(f"[{extra}] {command}: exit code {done.returncode}\n{done.stderr[-2000:]}")
    return failed


if __name__ == "__main__":
    sys.exit(min(main(sys.argv[1:]), 1))
