"""The batch script of a SLURM job: its values, and its text from our template or a site's."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import traceback
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import jinja2.nodes
from jinja2.meta import find_undeclared_variables
from jinja2.sandbox import ImmutableSandboxedEnvironment

from outlay.core.error_types import LaunchError
from outlay.core.input_file import read_text
from outlay.core.suggest import did_you_mean
from outlay.jobs.exit_codes import LOST, STOPPED
from outlay.slurm.sbatch_options import GPUS, names
from outlay.slurm.slurm_preset import config_folder

# As SLURM reads them: minutes, minutes:seconds, hours:minutes:seconds, days-hours, and so on.
_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}")
_DERIVED = ("num_tasks", "gpus_per_task", "saves", "stopped", "lost", "job_name", "command", "replaced")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Script:
    """The values of a batch script; a template sees them by these names.

    Attributes:
        recipe: what `outlay run` is to run; "" for a program of one's own.
        arguments: the options that go with it.
        nodes: how many nodes.
        gpus_per_node: the GPUs of each; 0 to compute on the CPUs.
        tasks_per_node: the processes on each node, which share its GPUs evenly.
        cpus_per_task: the cores of each process; SLURM's own number if None.
        partition: where the job runs; the cluster's default if None, like the next ones.
        time: the time limit.
        account: who pays.
        constraint: features that the nodes must have.
        qos: the quality of service.
        modules: environment modules to load.
        env: variables to set.
        requeue: go back into the queue when preempted or out of time, and continue from the last checkpoint.
        program: the words of a program of one's own, which every process runs instead of a recipe.
        sbatch: other options of `sbatch`, as `read_sbatch_options` returns them.

    Raises:
        LaunchError: the values are wrong or contradict each other; all problems are listed.

    >>> script = Script("digits", ("--layout", "fsdp"), nodes=2, gpus_per_node=4, tasks_per_node=4)
    >>> script.num_tasks, script.gpus_per_task, script.command
    (8, 1, 'outlay run digits --layout fsdp')
    >>> Script("", program=("python", "my train.py")).command
    "python 'my train.py'"
    """

    recipe: str
    arguments: Sequence[str] = ()
    nodes: int = 1
    gpus_per_node: int = 0
    tasks_per_node: int = 1
    cpus_per_task: int | None = None
    partition: str | None = None
    time: str | None = None
    account: str | None = None
    constraint: str | None = None
    qos: str | None = None
    modules: Sequence[str] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    requeue: bool = False
    program: Sequence[str] = ()
    sbatch: Sequence[str] = ()

    def __post_init__(self) -> None:
        problems = [*_counts(self), *_texts(self), *_continues(self)]
        if problems:
            raise LaunchError("\n  ".join(["this job cannot be submitted:", *problems]))

    @property
    def num_tasks(self) -> int:
        """The processes of the job."""
        return self.nodes * self.tasks_per_node

    @property
    def gpus_per_task(self) -> int:
        """The GPUs of each process."""
        return self.gpus_per_node // self.tasks_per_node

    @property
    def stopped(self) -> int:
        """The exit code of a run that was asked to save and to end."""
        return STOPPED

    @property
    def lost(self) -> int:
        """The exit code of processes that end because another one, or its machine, has gone."""
        return LOST

    @property
    def saves(self) -> bool:
        """Whether the run saves checkpoints, and so can save one before the time limit."""
        if self.program:  # it says so by asking to continue
            return self.requeue
        return any(word.partition("=")[0] == "--checkpoint-every" for word in self.arguments)

    @property
    def job_name(self) -> str:
        """What the queue shows: the recipe, or the function of a file that makes it; the name of a program's file."""
        if self.program:
            return re.sub(r"[^\w.-]", "-", Path(python_file(self.program) or self.program[0]).stem)
        return re.sub(r"[^\w.-]", "-", self.recipe.rpartition(":")[2].rpartition("/")[2])

    @property
    def command(self) -> str:
        """What every process runs, quoted for a shell."""
        if self.program:
            return shlex.join(self.program)
        resume = ["--resume"] if self.requeue and "--resume" not in self.arguments else []
        return shlex.join(["outlay", "run", self.recipe, *self.arguments, *resume])

    @property
    def replaced(self) -> frozenset[str]:
        """The options of the script that those for `sbatch` replace."""
        given = names(self.sbatch)
        return given | {"gres"} if given & GPUS else given

    def values(self) -> dict[str, Any]:
        """Return what a template may use, by name."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        derived = {name: getattr(self, name) for name in _DERIVED}
        return own | derived


def python_file(words: Sequence[str]) -> str | None:
    """Return the file that a command runs with Python; None if it runs none.

    >>> python_file(["python", "-u", "train.py", "--steps", "5"]), python_file(["python", "-m", "train"])
    ('train.py', None)
    """
    if not words or not _PYTHON.fullmatch(Path(words[0]).name):
        return None
    rest = iter(words[1:])
    for word in rest:
        if word in ("-X", "-W"):
            next(rest, None)
        elif word in ("-m", "-c", "-") or word.startswith(("-m", "-c")):
            return None
        elif not word.startswith("-"):
            return word
    return None


def _counts(script: Script) -> Iterator[str]:
    least = {"nodes": 1, "gpus_per_node": 0, "tasks_per_node": 1, "cpus_per_task": 1}
    wrong = False
    for name, minimum in least.items():
        value = getattr(script, name)
        if value is not None and value < minimum:
            wrong = True
            yield f"--{name.replace('_', '-')} {value}: the least is {minimum}"
    if wrong or script.gpus_per_node % script.tasks_per_node == 0:
        return
    fit = [str(num) for num in range(1, script.gpus_per_node + 1) if script.gpus_per_node % num == 0]
    yield (
        f"the {script.gpus_per_node} GPUs of a node cannot be divided evenly among {script.tasks_per_node} tasks\n"
        f"    fix: --tasks-per-node {' or '.join(fit)}"
    )


def _texts(script: Script) -> Iterator[str]:
    for name in sorted({"partition", "time", "account", "constraint", "qos"} & names(script.sbatch)):
        if getattr(script, name) is not None:
            yield f"--{name} and --sbatch --{name}: one of the two is enough"
    for name in ("partition", "time", "account", "constraint", "qos"):
        value = getattr(script, name)
        # SLURM would take the rest of such a line for something else.
        if value is not None and (not value or re.search(r"[\s\"'\\]", value)):
            yield f"--{name} {value!r}: it must be one word, without spaces and quotes"
        elif name == "time" and value is not None and not _TIME.fullmatch(value):
            yield f"--time {value!r} is not a time\n    fix: minutes, HH:MM:SS or D-HH:MM:SS, such as 20:00:00"
    for module in script.modules:
        if not module or re.search(r"\s", module):
            yield f"--module {module!r}: it must be one word; give --module once for each module"
    for name in script.env:
        if not _NAME.fullmatch(name):
            yield f"--env {name!r}: a variable's name may only have letters, digits and _"


def _continues(script: Script) -> Iterator[str]:
    if not script.requeue or script.program:  # what a program of one's own saves is its own
        return
    if not script.saves:
        yield (
            "--requeue continues a run from its last checkpoint, but this run saves none\n"
            "    fix: --checkpoint-every 100, or as many steps as you can afford to repeat"
        )
    if "--force" in script.arguments:
        yield (
            "--requeue with --force: each time the job starts again, it would replace the run that it is to "
            "continue\n    fix: give it a run folder of its own: --run-folder DIR"
        )


OURS = "slurm.sh.j2"
"""Our template; a site's own may extend it by this name and replace some of its blocks only."""


def render(script: Script, template: Path | None = None) -> str:
    """Return the text of the batch script.

    Args:
        script: its values.
        template: the template to use; by default the site's own if there is one, else ours.

    Raises:
        LaunchError: the template cannot be read, or uses what is not a value of a script.
    """
    file = template or site_template(os.environ)
    environment = ImmutableSandboxedEnvironment(  # a template may be a stranger's, and no more than text is its to make
        loader=jinja2.PackageLoader("outlay.slurm"),
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
    """Return the line of the template that an error passed through."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<template>"]
    return f":{lines[-1]}" if lines else ""


def site_template(environment: Mapping[str, str]) -> Path | None:
    """Return the template in the user's configuration; None where there is none."""
    file = config_folder(environment) / OURS
    return file if file.is_file() else None


def _read(file: Path) -> str:
    try:
        return read_text(file)
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not a text in UTF-8"
        raise LaunchError(f"the template {file} cannot be read: {why}") from error


def _check_names(file: Path, parsed: jinja2.nodes.Template, values: Mapping[str, Any]) -> None:
    unknown = find_undeclared_variables(parsed) - set(values)
    if not unknown:
        return
    used = [name for name in parsed.find_all(jinja2.nodes.Name) if name.name in unknown]
    fix = f"use one of {', '.join(values)}; or give it a value there: {{% set {min(unknown)} = ... %}}"
    raise LaunchError(
        "\n  ".join(
            ["the template uses variables that a script does not have:", *_positions(file, used, values), f"fix: {fix}"]
        )
    )


def _positions(file: Path, used: Iterable[jinja2.nodes.Name], values: Mapping[str, Any]) -> list[str]:
    return [f"{file}:{name.lineno}: {name.name!r}; {did_you_mean(name.name, values)}" for name in used]


def submit(text: str) -> str:
    """Put a batch script into the queue; return what `sbatch` answers.

    Raises:
        LaunchError: there is no `sbatch` here, or it refuses the script.
    """
    sbatch = shutil.which("sbatch")
    if sbatch is None:
        raise LaunchError(
            "--submit hands the script to sbatch, but there is no sbatch on PATH"
            "\n  fix: run this on a login node of the cluster, or drop --submit and save the script: "
            "outlay slurm run ... > job.sh"
        )
    done = subprocess.run([sbatch], input=text, capture_output=True, text=True, check=False)
    if done.returncode:
        raise LaunchError(f"sbatch refused the script, exit code {done.returncode}\n  {done.stderr.strip()}")
    return done.stdout.strip()
