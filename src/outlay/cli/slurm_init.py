"""`outlay slurm init`: ask what a cluster wants from every job, and write it as a preset."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import typer

from outlay.cli.output import say
from outlay.core.error_types import LaunchError
from outlay.slurm.slurm_preset import DEFAULT, FILE, SHAPES, Preset, config_folder, preset_text, read_presets

_QUESTIONS = {
    "gpus_per_node": "GPUs of a node (0 for the CPUs)",
    "cpus_per_gpu": "cores of a node for each GPU",
    "partition": "partition (--partition)",
    "constraint": "features of the nodes (--constraint, such as a100)",
    "account": "who pays (--account)",
    "qos": "quality of service (--qos)",
    "time": "time limit (--time, such as 20:00:00)",
    "modules": "modules to load, with spaces between them",
    "sbatch": "other options of sbatch, such as --mem=64G",
}


def ask_for_preset(name: str) -> tuple[str, Preset]:
    """Ask for a preset on the terminal; an empty answer leaves a value open.

    Args:
        name: its name; asked for if empty.
    """
    _say_partitions()
    name = name or _ask(f"Name of the preset; {DEFAULT} is taken for every job", DEFAULT)
    answers = {key: _ask(question, "") for key, question in _QUESTIONS.items()}
    values: dict[str, Any] = {key: answer for key, answer in answers.items() if answer}
    for key in {"gpus_per_node", "cpus_per_gpu"} & values.keys():
        if not values[key].isdecimal():
            raise LaunchError(f"{values[key]!r} is not a number of {_QUESTIONS[key]}")
        values[key] = int(values[key])
    if "modules" in values:
        values["modules"] = tuple(values["modules"].split())
    if "sbatch" in values:
        values["sbatch"] = (values["sbatch"],)
    return name, Preset(**values)


def write_preset(name: str, preset: Preset) -> Path:
    """Add a preset to the user's file; return the file.

    Raises:
        LaunchError: there is such a preset already, or a value is none of a batch script.
    """
    from outlay.slurm.sbatch_options import read_sbatch_options

    file = config_folder(os.environ) / FILE
    text = preset_text(name, preset)
    read_sbatch_options(preset.sbatch)
    if name in read_presets():
        where = "Outlay has it" if name in SHAPES else f"{file} has it"
        raise LaunchError(f"there is a preset {name!r} already: {where}\n  fix: another name, or edit the file")
    before = file.read_text(encoding="utf-8").rstrip("\n") + "\n\n" if file.is_file() else ""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(before + text, encoding="utf-8")
    return file


def _ask(question: str, default: str) -> str:
    return typer.prompt(question, default=default, show_default=bool(default), err=True).strip()


def _say_partitions() -> None:
    """Say what `sinfo` knows of the partitions here, where there is one."""
    sinfo = shutil.which("sinfo")
    if sinfo is None:
        return
    done = subprocess.run([sinfo, "-o", "%P %D %c %G %f"], capture_output=True, text=True, check=False, timeout=20)
    if done.returncode == 0:
        say(f"sinfo: partition, nodes, cores, GPUs, features\n{done.stdout.rstrip()}", err=True)
