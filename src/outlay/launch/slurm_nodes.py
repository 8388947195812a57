"""Names of nodes as SLURM writes them, such as `gpu[001-003,7],login1`."""

from __future__ import annotations

import re

from outlay.core.errors import JoinError

_FIRST = re.compile(r"(?P<start>[^\[,]+)(?:\[(?P<number>\d+)[^\]]*\](?P<end>[^\[,]*))?")


def first_node(nodes: str) -> str:
    """The first node of a list.

    Raises:
        JoinError: it cannot be read.

    >>> first_node("gpu[001-003,7],login1"), first_node("a1,a2"), first_node("rack[2-3]-ib")
    ('gpu001', 'a1', 'rack2-ib')
    """
    found = _FIRST.match(nodes)
    if not found:
        raise JoinError(f"the list of nodes {nodes!r} cannot be read (SLURM_STEP_NODELIST)")
    return found["start"] + (found["number"] or "") + (found["end"] or "")
