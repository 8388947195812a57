"""Read a saved plan, which comes from anywhere: what no layout could have made is refused, every wrong leaf at once."""

from __future__ import annotations

import collections
import json
import math
from typing import Any, get_args

from outlay.core.array_leaves import num_bytes
from outlay.core.error_types import LayoutError, Problem
from outlay.devices.mesh_info import MeshInfo, is_count
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import Stored
from outlay.layout.rule import Kind


def read_plan(data: dict[str, Any]) -> tuple[MeshInfo, tuple[LeafPlan, ...], tuple[str, ...]]:
    """Return the mesh, the leaves and the notes of what `Plan.to_dict` returned.

    Raises:
        LayoutError: it is not a saved plan, or a damaged one.
    """
    try:
        mesh = MeshInfo.from_dict(data["mesh"])
        leaves, notes = list(data["leaves"]), tuple(data["notes"])
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise _not_a_plan(error) from error
    if odd := [note for note in notes if not isinstance(note, str)]:
        raise _not_a_plan(TypeError(f"the note {odd[0]!r} is not text"))
    read: list[LeafPlan] = []
    problems: list[Problem] = []
    for number, leaf in enumerate(leaves):
        try:  # data of any form: what is a list in place of a table raises any of these
            read.append(_leaf(leaf, mesh))
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            name = leaf.get("path") if isinstance(leaf, dict) else None
            what = f"it lacks {error}" if isinstance(error, KeyError) else str(error)
            fix = "save the plan again: plan.to_json()"
            problems.append(Problem("damaged leaf", f"leaf {number} ({name})", what, fix))
    repeated = collections.Counter((leaf.kind, leaf.path) for leaf in read)
    problems += [
        Problem("same path twice", path, f"{count} leaves of the {kind} have it", "save the plan again")
        for (kind, path), count in repeated.items()
        if count > 1
    ]
    if problems:
        raise LayoutError(f"this saved plan is damaged: {len(problems)} of {len(leaves)} leaves", problems)
    return mesh, tuple(read), notes


def read_json(text: str) -> Any:
    """Return the data of what `Plan.to_json` returned.

    Raises:
        LayoutError: the text is not JSON.
    """
    try:
        return json.loads(text)
    except (ValueError, TypeError, RecursionError) as error:
        raise _not_a_plan(error) from error


def _not_a_plan(error: Exception) -> LayoutError:
    what = f"it lacks {error}" if isinstance(error, KeyError) else f"{type(error).__name__}: {error}"
    return LayoutError(f"this is not a saved plan ({what:.300}); write one with plan.to_json()")


def _leaf(data: dict[str, Any], mesh: MeshInfo) -> LeafPlan:
    """Read what `LeafPlan.to_dict` returned; raise ValueError for a leaf that no plan has, KeyError for a gap."""
    leaf = LeafPlan(
        path=data["path"],
        kind=data["kind"],
        shape=tuple(data["shape"]),
        dtype=data["dtype"],
        dims=tuple(tuple(axes) for axes in data["dims"]),
        local_shape=tuple(data["local_shape"]),
        device_ids=mesh.device_ids if data["device_ids"] == "all" else tuple(data["device_ids"]),
        rule=data["rule"],
        reason=data["reason"],
        # Older plans lack the key: they were saved before leaves could be stored elsewhere than on their devices.
        stored=data.get("stored", ""),
        is_placed=data.get("is_placed", True),
    )
    if what := _problem(leaf, mesh):
        raise ValueError(what)
    return leaf


def _problem(leaf: LeafPlan, mesh: MeshInfo) -> str:
    """Return what makes a saved leaf impossible, or nothing: saved plans come from anywhere."""
    texts = {"path": leaf.path, "dtype": leaf.dtype, "rule": leaf.rule, "reason": leaf.reason}
    if odd := [name for name, text in texts.items() if not isinstance(text, str)]:
        return f"{odd[0]} is {texts[odd[0]]!r}, not text"
    if leaf.kind not in get_args(Kind):
        return f"kind is {leaf.kind!r}, not one of {', '.join(get_args(Kind))}"
    if leaf.stored not in get_args(Stored) or not isinstance(leaf.is_placed, bool):
        return f"stored is {leaf.stored!r}, not one of {get_args(Stored)}, or is_placed is {leaf.is_placed!r}"
    try:
        num_bytes((), leaf.dtype)
    except (TypeError, KeyError):
        return f"dtype {leaf.dtype!r} is not known to JAX"
    if not all(is_count(size) for size in (*leaf.shape, *leaf.local_shape)):
        return f"shape {leaf.shape} or local shape {leaf.local_shape} holds something that is not a size"
    axes = [axis for one in leaf.dims for axis in one]
    if len(leaf.dims) != len(leaf.shape) or len(leaf.local_shape) != len(leaf.shape):
        return f"shape {leaf.shape}, local shape {leaf.local_shape} and dims {leaf.dims} have different lengths"
    if len(set(axes)) < len(axes) or not set(axes) <= set(mesh.axis_sizes):
        return f"dims {leaf.dims} name an axis twice, or one that {mesh} lacks"
    if not leaf.device_ids or len(set(leaf.device_ids)) < len(leaf.device_ids):
        return f"devices {leaf.device_ids} are empty, or hold one twice"
    if not set(leaf.device_ids) <= set(mesh.device_ids):
        return f"devices {leaf.device_ids} are not all in {mesh}"
    if leaf.device_ids != mesh.device_ids:  # on some devices: replicated, or split by rows
        rows = leaf.shape and (leaf.local_shape[0] * len(leaf.device_ids), *leaf.local_shape[1:])
        if axes or leaf.shape not in (leaf.local_shape, rows):
            return f"pieces of {leaf.local_shape} on {len(leaf.device_ids)} devices do not make up {leaf.shape}"
    else:
        pieces = [math.prod(mesh.axis_sizes[axis] for axis in one) for one in leaf.dims]
        whole = [local * num for local, num in zip(leaf.local_shape, pieces, strict=True)]
        if tuple(whole) != leaf.shape:
            return f"pieces of {leaf.local_shape}, split as {leaf.dims}, do not make up {leaf.shape}"
    return ""
