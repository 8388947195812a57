"""Checks on the leaves of a resolved layout: those that no rule covers, and big ones left whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from outlay.core.errors import Problem
from outlay.core.paths import split_path
from outlay.core.sizes import format_bytes
from outlay.layout.mirror import is_optimizer
from outlay.layout.plan import LeafPlan

if TYPE_CHECKING:
    from outlay.layout.resolve import Resolution


def check_leaves(leaves: Sequence[LeafPlan], resolution: Resolution, max_whole_bytes: int) -> list[Problem]:
    """Leaves that no rule covers, and big leaves left whole though others of their kind are split."""
    uncovered = [leaf for leaf in leaves if _is_uncovered(leaf, resolution)]
    return [*(_uncovered(leaf, resolution) for leaf in uncovered), *_big_and_whole(leaves, resolution, max_whole_bytes)]


def _is_uncovered(leaf: LeafPlan, resolution: Resolution) -> bool:
    if leaf.kind == "intermediate" or math.prod(leaf.shape) <= 1:
        return False
    return not resolution.matched[leaf.path] and leaf.path not in resolution.followed


def _uncovered(leaf: LeafPlan, resolution: Resolution) -> Problem:
    what = f"no rule covers {leaf.shape} {leaf.dtype} ({format_bytes(leaf.bytes_total)})"
    if leaf.kind == "batch":
        return Problem("uncovered leaf", leaf.path, what, "add outlay.data_parallel() to split the batch")
    cure = f'add ("{leaf.path}", P(...)), or + outlay.replicate() to keep all that is left whole'
    if is_optimizer(leaf.path):
        root = split_path(leaf.path)[0]
        cure = f'it mirrors no parameter; add ("{root}.**", outlay.replicate()) or a spec for it'
    elif resolution.mirrors.of(leaf.path):
        root, source = (split_path(path)[0] for path in (leaf.path, resolution.mirrors.of(leaf.path)[0]))
        cure = f'it mirrors {resolution.mirrors.of(leaf.path)[0]}; add ("{root}.**", outlay.follow("{source}"))'
    return Problem("uncovered leaf", leaf.path, what, cure)


def _big_and_whole(leaves: Sequence[LeafPlan], resolution: Resolution, limit: int) -> Iterable[Problem]:
    state = [leaf for leaf in leaves if leaf.kind == "state"]
    for optimizer in (False, True):
        kin = [leaf for leaf in state if is_optimizer(leaf.path) is optimizer]
        num_split = sum(leaf.is_split for leaf in kin)
        for leaf in kin if num_split else []:
            meant = resolution.claims[leaf.path].closed_by is not None or leaf.path in resolution.followed
            if leaf.is_split or meant or leaf.bytes_total < limit or _is_uncovered(leaf, resolution):
                continue
            what = (
                f"{format_bytes(leaf.bytes_total)} are left whole on each of {leaf.num_copies} devices while "
                f"{num_split} other leaves are split (limit {format_bytes(limit)}); {leaf.reason}"
            )
            cure = f'add ("{leaf.path}", P(...)) before, or ("{leaf.path}", outlay.replicate()) if it is meant'
            yield Problem("big leaf left whole", leaf.path, what, cure)
