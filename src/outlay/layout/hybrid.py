"""Hybrid sharding: state split inside a host and copied across hosts, and the check that it stays inside."""

from __future__ import annotations

import collections
import dataclasses

import numpy as np
from jax.sharding import PartitionSpec as P

from outlay.core.error_types import LayoutError, Problem
from outlay.core.public_names import called_as
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.layout import Layout
from outlay.layout.policies import LargestDim, OneDim
from outlay.layout.rule import Otherwise, Rule
from outlay.layout.strategies import MIN_SIZE


@dataclasses.dataclass(frozen=True)
class LargestDimInHost(LargestDim):
    """Split the largest divisible free dim over an axis that has to stay inside a host.

    Attributes:
        axis: the mesh axis.
    """

    axis: str

    def problem_on(self, mesh: MeshInfo, rule: str) -> Problem | None:
        """Return what is wrong on a mesh, for the rule so named: its axis runs over several hosts."""
        along = _num_hosts_along(self.axis, mesh)
        if along == 1:
            return None
        each = min(collections.Counter(mesh.hosts).values())
        what = (
            f"axis {self.axis!r} is to stay inside a host, and its {mesh.axis_sizes[self.axis]} devices are on {along}"
        )
        fix = (
            f"a host has {each} devices: give {self.axis!r} a size that divides {each}, and declare it: "
            f'outlay.mesh("data=-1,{self.axis}={each}@host"). Or outlay.fsdp("{self.axis}"), which may cross hosts'
        )
        return Problem("crosses hosts", rule, what, fix)

    def __str__(self) -> str:
        return f"largest dim over {self.axis!r} (inside a host, min_size {self.min_size})"


def _num_hosts_along(axis: str, mesh: MeshInfo) -> int:
    """Return the number of hosts that an axis runs over: the most, for any place along the other axes."""
    hosts = np.reshape(mesh.hosts, [size for _, size in mesh.axes])
    lines = np.moveaxis(hosts, list(mesh.axis_sizes).index(axis), -1).reshape(-1, mesh.axis_sizes[axis])
    return max(len(set(line)) for line in lines.tolist())


@called_as('outlay.layout.hsdp(inside="fsdp", across="data")')
def hsdp(
    inside: str = "fsdp",
    across: str = "data",
    *,
    min_size: int = MIN_SIZE,
    pattern: str = "**",
    otherwise: Otherwise = "error",
) -> Layout:
    """Split parameters and optimizer state inside a host, and hold a copy on each host (hybrid sharding).

    Parameters are gathered over the fast links of a host only. Over the slower network between hosts travel gradients
    alone, of which each device sends the part that it holds. It takes the memory of FSDP over one host. The batch's
    first dim is split over both axes, so `data_parallel` is not needed beside it.

    A host is here what a target calls one: the devices with fast links to each other, such as the 72 of an NVL72.
    Source: Zhao et al., PyTorch FSDP (arXiv:2304.11277), section 3.2.2.

    Args:
        inside: the mesh axis that splits the state; a mesh on which it crosses hosts is refused.
        across: the mesh axis over the copies.
        min_size: leaves with fewer elements stay whole.
        pattern: which state leaves.
        otherwise: what to do with a leaf without a divisible dim: `error`, or `replicate` to keep it whole.

    Raises:
        LayoutError: the axes are no names, or the same one.

    Example:
        >>> plan = outlay.layout.hsdp(min_size=16).plan(
        ...     {"w": jnp.ones((16, 4))}, outlay.mesh(data=2, fsdp=4), batch=jnp.ones((16, 4))
        ... )
        >>> plan["w"].spec, plan["w"].num_copies, plan["batch"].spec
        (P('fsdp', None), 2, P(('data', 'fsdp'), None))
    """
    if not (isinstance(inside, str) and isinstance(across, str) and isinstance(min_size, int)) or inside == across:
        raise LayoutError(
            "outlay.layout.hsdp splits over one axis of the mesh and copies over another, and splits leaves of "
            f"at least a number of elements; these are inside={inside!r}, across={across!r}, min_size={min_size!r}"
            "\n  fix: outlay.layout.hsdp(inside='fsdp', across='data')"
        )
    rules = [
        Rule("batch.**", OneDim((across, inside), 0)),
        Rule(pattern, LargestDimInHost(inside, min_size), otherwise),
        Rule("**", P(), optional=True),
    ]
    return Layout([dataclasses.replace(rule, source="hsdp") for rule in rules])
