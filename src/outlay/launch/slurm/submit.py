"""Hand a batch script to SLURM."""

from __future__ import annotations

import shutil
import subprocess

from outlay.core.errors import LaunchError


def submit(text: str) -> str:
    """Put a batch script into the queue; what `sbatch` answers.

    Raises:
        LaunchError: there is no `sbatch` here, or it refuses the script.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise LaunchError(
            "--submit hands the script to sbatch, and there is no sbatch on PATH"
            "\n  cure: run this on a login node of the cluster, or leave out --submit and save the script: "
            "outlay slurm run ... > job.sh"
        )
    done = subprocess.run([sbatch], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"sbatch refused the script, exit code {done.returncode}\n  {done.stderr.strip()}")
    return done.stdout.strip()
