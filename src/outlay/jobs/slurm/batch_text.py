"""The text of a batch script, from our template or a site's own."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outlay.core.error_types import LaunchError
from outlay.core.suggest import did_you_mean
from outlay.jobs.slurm.script import Script

OURS = "slurm.sh.j2"
"""Our template; a site's own may extend it by this name and replace some of its blocks only."""


def render(script: Script, template: Path | None = None) -> str:
    """The batch script.

    Args:
        script: its values.
        template: the template to use; by default the site's own if there is one, else ours.

    Raises:
        LaunchError: the template cannot be read, or uses what is not a value of a script.
    """
    file = template or site_template(os.environ)
    environment = ImmutableSandboxedEnvironment(  # a template may be a stranger's, and no more than text is its to make
        loader=jinja2.PackageLoader("outlay.jobs.slurm"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["quote"] = shlex.quote
    if file is None:
        return environment.get_template(OURS).render(script.values())
    text = _read(file)
    try:
        parsed = environment.parse(text)
    except jinja2.TemplateSyntaxError as error:
        raise LaunchError(f"the template {file}:{error.lineno} cannot be read: {error.message}") from error
    _check_names(file, parsed, script.values())
    try:
        return environment.from_string(text).render(script.values())
    except Exception as error:  # whatever its expressions come to
        raise LaunchError(f"the template {file}{_line_of(error)} fails: {type(error).__name__}: {error}") from error


def _line_of(error: Exception) -> str:
    """The line of the template that an error passed through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return f":{lines[-1]}" if lines else ""


def site_template(environment: Mapping[str, str]) -> Path | None:
    """The template that stands in the user's configuration; None where there is none."""
    config = environment.get("XDG_CONFIG_HOME")
    file = (Path(config) if config else Path.home() / ".config") / "outlay" / OURS
    return file if file.is_file() else None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a text in UTF-8"
        raise LaunchError(f"the template {file} cannot be read: {why}") from error


def _check_names(file: Path, parsed: nodes.Template, values: Mapping[str, Any]) -> None:
    unknown = find_undeclared_variables(parsed) - set(values)
    if not unknown:
        return
    used = [name for name in parsed.find_all(nodes.Name) if name.name in unknown]
    fix = f"use one of {', '.join(values)}; or give it a value there: {{% set {min(unknown)} = ... %}}"
    raise LaunchError(
        "\n  ".join(["the template uses what no script has a value for:", *_places(file, used, values), f"fix: {fix}"])
    )


def _places(file: Path, used: Iterable[nodes.Name], values: Mapping[str, Any]) -> list[str]:
    return [f"{file}:{name.lineno}: {name.name!r}; {did_you_mean(name.name, values)}" for name in used]


def submit(text: str) -> str:
    """Put a batch script into the queue; what `sbatch` answers.

    Raises:
        LaunchError: there is no `sbatch` here, or it refuses the script.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise LaunchError(
            "--submit hands the script to sbatch, and there is no sbatch on PATH"
            "\n  fix: run this on a login node of the cluster, or leave out --submit and save the script: "
            "outlay slurm run ... > job.sh"
        )
    done = subprocess.run([sbatch], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"sbatch refused the script, exit code {done.returncode}\n  {done.stderr.strip()}")
    return done.stdout.strip()
