"""Named sets of values to start from: the layouts of processes that are met most, and kinds of nodes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass

from outlay.core.errors import LaunchError
from outlay.core.suggest import did_you_mean


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
