"""Presets of batch scripts: what a site asks for, from the user's own file, and two shapes of a job."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from outlay.core.error_types import LaunchError, Problem
from outlay.core.suggest import did_you_mean
from outlay.core.toml import TomlLines, parse_toml, read_toml_text

DEFAULT = "default"
"""The preset that counts for every script, before those that are asked for."""
FILE = "slurm.toml"
_NAME = re.compile(r"[A-Za-z0-9_-]+")


@dataclass(frozen=True)
class Preset:
    """Values of a script that a preset sets; None, or nothing, where it leaves them open.

    Attributes:
        nodes: how many nodes.
        gpus_per_node: the GPUs of each.
        tasks_per_node: the processes on each node.
        cpus_per_gpu: the cores of a node that belong to each GPU.
        cpus_per_task: the cores of each process.
        partition: where the job runs.
        time: the time limit.
        account: who pays.
        constraint: features that the nodes must have.
        qos: the quality of service.
        modules: environment modules to load.
        sbatch: other options of `sbatch`.
        env: variables to set.
    """

    nodes: int | None = None
    gpus_per_node: int | None = None
    tasks_per_node: int | None = None
    cpus_per_gpu: int | None = None
    cpus_per_task: int | None = None
    partition: str | None = None
    time: str | None = None
    account: str | None = None
    constraint: str | None = None
    qos: str | None = None
    modules: Sequence[str] = ()
    sbatch: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)

    def given(self) -> dict[str, Any]:
        """Return the values that it sets, by name."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        return {name: value for name, value in values.items() if value is not None and value != () and value != {}}


SHAPES = {
    "one-task": Preset(nodes=1, gpus_per_node=4, tasks_per_node=1),
    "two-nodes": Preset(nodes=2, gpus_per_node=4),
}
"""The presets that are of no site."""


def config_folder(environment: Mapping[str, str]) -> Path:
    """Return the folder of the user's own template and presets, which need not be there."""
    config = environment.get("XDG_CONFIG_HOME")
    return (Path(config) if config else Path.home() / ".config") / "outlay"


def read_presets(file: Path | None = None) -> dict[str, Preset]:
    """Read the user's presets: a table for each, such as `[a100]`, whose keys are the options of `outlay slurm run`.

    Args:
        file: the file; by default `slurm.toml` in the user's configuration, if there is one.

    Raises:
        LaunchError: the file is not TOML, or a key or value of it is wrong; every offender with its line.
    """
    if file is None:
        file = config_folder(os.environ) / FILE
        if not file.is_file():
            return dict(SHAPES)
    text = read_toml_text(file, "the file of presets", LaunchError)
    tables = parse_toml(text, str(file), LaunchError, "correct the line, or write the file anew: outlay slurm init")
    lines = TomlLines(str(file), text)
    if problems := [*_problems(tables, lines)]:
        raise LaunchError(f"{file}: the presets cannot be read:", problems)
    own = {
        name: Preset(**{key.replace("-", "_"): value for key, value in keys.items()}) for name, keys in tables.items()
    }
    return SHAPES | own


def _problems(tables: Mapping[str, Any], lines: TomlLines) -> Iterator[Problem]:
    types = {each.name.replace("_", "-"): _type_of(str(each.type)) for each in fields(Preset)}
    for name, keys in tables.items():
        if not isinstance(keys, dict):
            what = f"{name!r} stands in no preset"
            yield Problem("not a preset", lines.of((name,)), what, f"write it below a line [{DEFAULT}]")
            continue
        for key, value in keys.items():
            where = lines.of((name, key))
            if key not in types:
                yield Problem("unknown key", where, repr(key), did_you_mean(key, types))
            elif not _is_a(value, types[key]):
                yield Problem("wrong value", where, f"{key} = {value!r}", f"give it {_WORDS[types[key]]}")


def _type_of(annotation: str) -> type:
    return next(
        kind for word, kind in (("Sequence", list), ("Mapping", dict), ("int", int), ("str", str)) if word in annotation
    )


_WORDS = {list: 'a list of texts, such as ["one", "two"]', dict: "a table of texts", int: "a number", str: "a text"}


def _is_a(value: Any, kind: type) -> bool:
    if kind is list or kind is dict:
        parts = value.values() if isinstance(value, dict) else value
        return isinstance(value, kind) and all(isinstance(part, str) for part in parts)
    return isinstance(value, kind) and not isinstance(value, bool)


def combined(names: Iterable[str], presets: Mapping[str, Preset] = SHAPES) -> Preset:
    """Combine presets, after `default` if there is one; where two set the same value, the later one counts.

    Args:
        names: those that are asked for.
        presets: those that there are.

    Raises:
        LaunchError: there is no such preset.

    >>> combined(["two-nodes", "v100"], SHAPES | {"v100": Preset(cpus_per_gpu=10)}).given()
    {'nodes': 2, 'gpus_per_node': 4, 'cpus_per_gpu': 10}
    """
    values: dict[str, Any] = {}
    for name in [*({DEFAULT} & presets.keys()), *names]:
        if name not in presets:
            raise LaunchError(
                f"there is no preset {name!r}: {did_you_mean(name, presets)}"
                "\n  fix: outlay slurm init writes one of your own"
            )
        values |= presets[name].given()
    return Preset(**values)


def preset_text(name: str, preset: Preset) -> str:
    """Write a preset as the file of presets has it.

    Raises:
        LaunchError: a name has other characters than letters, digits, dashes and underscores.

    >>> print(preset_text("a100", Preset(gpus_per_node=8, constraint="a100")), end="")
    [a100]
    gpus-per-node = 8
    constraint = "a100"
    """
    if not _NAME.fullmatch(name):
        raise LaunchError(f"{name!r} is no name of a preset\n  fix: letters, digits, - and _, such as a100")
    # A string, a number or a list of strings is the same in JSON and in TOML.
    rows = [f"{key.replace('_', '-')} = {json.dumps(value)}" for key, value in preset.given().items() if key != "env"]
    rows += [f"env.{key} = {json.dumps(value)}" for key, value in preset.env.items()]
    return "\n".join([f"[{name}]", *rows]) + "\n"
