"""What a batch script says: the nodes, tasks and GPUs, and the command that every task runs."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from outlay.core.error_types import LaunchError
from outlay.core.suggest import did_you_mean
from outlay.jobs.guard import LOST
from outlay.jobs.stop_request import STOPPED

# As SLURM reads them: minutes, minutes:seconds, hours:minutes:seconds, days-hours, and so on.
_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}")
_DERIVED = ("num_tasks", "gpus_per_task", "saves", "stopped", "lost", "job_name", "command")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True)
class Script:
    """The values of a batch script; a template sees them by these names.

    Attributes:
        recipe: what `outlay run` is to run.
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

    Raises:
        LaunchError: there cannot be such a job; all reasons are listed.

    >>> script = Script("digits", ("--layout", "fsdp"), nodes=2, gpus_per_node=4, tasks_per_node=4)
    >>> script.num_tasks, script.gpus_per_task, script.command
    (8, 1, 'outlay run digits --layout fsdp')
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

    def __post_init__(self) -> None:
        problems = [*_counts(self), *_texts(self), *_continues(self)]
        if problems:
            raise LaunchError("\n  ".join(["there cannot be such a job:", *problems]))

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
        return any(word.partition("=")[0] == "--checkpoint-every" for word in self.arguments)

    @property
    def job_name(self) -> str:
        """What the queue shows: the recipe, or the function of a file that makes it."""
        return re.sub(r"[^\w.-]", "-", self.recipe.rpartition(":")[2].rpartition("/")[2])

    @property
    def command(self) -> str:
        """What every process runs, quoted for a shell."""
        resume = ["--resume"] if self.requeue and "--resume" not in self.arguments else []
        return shlex.join(["outlay", "run", self.recipe, *self.arguments, *resume])

    def values(self) -> dict[str, Any]:
        """What a template may use, by name."""
        own = {name: getattr(self, name) for name in self.__dataclass_fields__}
        derived = {name: getattr(self, name) for name in _DERIVED}
        return own | derived


def _counts(script: Script) -> Iterator[str]:
    least = {"nodes": 1, "gpus_per_node": 0, "tasks_per_node": 1, "cpus_per_task": 1}
    wrong = False
    for name, minimum in least.items():
        value = getattr(script, name)
        if value is not None and value < minimum:
            wrong = True
            yield f"--{name.replace('_', '-')} {value}: it is {minimum} at least"
    if wrong or script.gpus_per_node % script.tasks_per_node == 0:
        return
    fit = [str(num) for num in range(1, script.gpus_per_node + 1) if script.gpus_per_node % num == 0]
    yield (
        f"the {script.gpus_per_node} GPUs of a node cannot be shared out evenly among {script.tasks_per_node} tasks\n"
        f"    fix: --tasks-per-node {' or '.join(fit)}"
    )


def _texts(script: Script) -> Iterator[str]:
    for name in ("partition", "time", "account", "constraint", "qos"):
        value = getattr(script, name)
        # SLURM would take the rest of such a line for something else.
        if value is not None and (not value or re.search(r"[\s\"'\\]", value)):
            yield f"--{name} {value!r}: it is one word, without spaces and quotes"
        elif name == "time" and value is not None and not _TIME.fullmatch(value):
            yield f"--time {value!r} is not a time\n    fix: minutes, HH:MM:SS or D-HH:MM:SS, such as 20:00:00"
    for module in script.modules:
        if not module or re.search(r"\s", module):
            yield f"--module {module!r}: it is one word; give --module once for each"
    for name in script.env:
        if not _NAME.fullmatch(name):
            yield f"--env {name!r}: a variable's name has letters, digits and _ only"


def _continues(script: Script) -> Iterator[str]:
    if not script.requeue:
        return
    if not script.saves:
        yield (
            "--requeue continues a run from its last checkpoint, and this one saves none\n"
            "    fix: --checkpoint-every 100, or how many steps you can afford to take again"
        )
    if "--force" in script.arguments:
        yield (
            "--requeue with --force: every time that the job starts again, it would replace the run that it is to "
            "continue\n    fix: a run folder of its own: --run-folder DIR"
        )


@dataclass(frozen=True)
class Preset:
    """What a preset says; None where it says nothing.

    Attributes:
        nodes: how many nodes.
        gpus_per_node: the GPUs of each.
        tasks_per_node: the processes on each node.
        cpus_per_gpu: the cores of a node that belong to each GPU.
        partition: where the job runs.
    """

    nodes: int | None = None
    gpus_per_node: int | None = None
    tasks_per_node: int | None = None
    cpus_per_gpu: int | None = None
    partition: str | None = None


PRESETS = {
    "one-task": Preset(nodes=1, gpus_per_node=4, tasks_per_node=1),
    "two-nodes": Preset(nodes=2, gpus_per_node=4),
    # Examples of nodes: clusters differ in how many cores go with a GPU, and in what they call the partition.
    "v100": Preset(gpus_per_node=4, cpus_per_gpu=10, partition="v100"),
    "a100": Preset(gpus_per_node=8, cpus_per_gpu=8, partition="a100"),
}
"""The presets by name."""


def combined(names: Iterable[str]) -> Preset:
    """Several presets as one; of two that say something of the same thing, the later one counts.

    Raises:
        LaunchError: there is no such preset.

    >>> combined(["two-nodes", "v100"])
    Preset(nodes=2, gpus_per_node=4, tasks_per_node=None, cpus_per_gpu=10, partition='v100')
    """
    said: dict[str, int | str] = {}
    for name in names:
        if name not in PRESETS:
            raise LaunchError(f"there is no preset {name!r}: {did_you_mean(name, PRESETS)}")
        said |= {what: value for what, value in asdict(PRESETS[name]).items() if value is not None}
    return Preset(**said)  # pyright: ignore[reportArgumentType]  # each value is of the field that it came from
