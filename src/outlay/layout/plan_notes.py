"""Notes of a plan: useless mesh axes, copies and bytes left whole, rules that look like a slip."""

from __future__ import annotations

import collections
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from outlay.core.paths import pattern_parts, split_path
from outlay.core.quantities import counted, format_bytes, listed, plural
from outlay.devices.mesh_info import MeshInfo
from outlay.layout.check_leaves import follow_text, left_whole
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import is_optimizer, spec_text
from outlay.layout.policies import OneDim, fitting_spec
from outlay.layout.resolve import Resolution

if TYPE_CHECKING:
    from outlay.core.annotated_boxes import Annotation
    from outlay.layout.optimizer_state import Copies


def notes_on_mesh(mesh: MeshInfo, leaves: Sequence[LeafPlan]) -> tuple[str, ...]:
    """Return notes on the mesh: axes that split nothing, and layouts that only replicate."""
    # On one device, and where modules have devices of their own, whole leaves are meant.
    if mesh.num_devices == 1 or not leaves or any(leaf.device_ids != mesh.device_ids for leaf in leaves):
        return ()
    used = {axis for leaf in leaves for axes in leaf.dims for axis in axes}
    if not any(mesh.axis_sizes[axis] > 1 for axis in used):
        return (_nothing_split(mesh, leaves),)
    return (*_idle_axes(mesh, used), *_axes_of_one(mesh, leaves))


def notes_on_rules(
    leaves: Sequence[LeafPlan],
    resolution: Resolution,
    max_whole_bytes: int,
    copies: Sequence[Copies],
    annotated: Mapping[str, Annotation],
) -> tuple[str, ...]:
    """Return notes on the rules: how they read the tree, and what they leave whole.

    Args:
        leaves: the plan's leaves.
        resolution: what each rule got of them.
        max_whole_bytes: the bytes left whole, all together, from which there is a note.
        copies: copies that take more bytes than their originals.
        annotated: the model's annotations of its own arrays.
    """
    if resolution.mesh.num_devices == 1:
        return ()
    return (
        *_too_small_each(leaves, resolution, max_whole_bytes),
        *_copies_split_less(leaves, copies),
        *_by_layer(resolution),
        *_unlike_samples(leaves, resolution),
        *_more_than_meant(resolution),
        *_annotations_left_out(leaves, resolution, annotated),
    )


def _idle_axes(mesh: MeshInfo, used: set[str]) -> Iterable[str]:
    return (
        f"axis {name!r} splits nothing: its {size} devices hold the same arrays and repeat the same work"
        for name, size in mesh.axes
        if name not in used and size > 1
    )


def _axes_of_one(mesh: MeshInfo, leaves: Sequence[LeafPlan]) -> Iterable[str]:
    for name, size in mesh.axes:
        whole = [
            leaf for leaf in leaves if leaf.kind == "state" and not leaf.is_split and any(name in d for d in leaf.dims)
        ]
        if size == 1 and whole:
            yield (
                f"axis {name!r} has one device, so {_count(whole)} that rules split over it are whole on each of "
                f"{whole[0].num_copies} devices: {listed([leaf.path for leaf in whole])}"
            )


def _nothing_split(mesh: MeshInfo, leaves: Sequence[LeafPlan]) -> str:
    copied = sum(leaf.bytes_per_device for leaf in leaves) * (mesh.num_devices - 1)
    fitting = [leaf for leaf in leaves if any(n and n % mesh.num_devices == 0 for n in leaf.shape)]
    largest = max(leaves, key=lambda leaf: leaf.bytes_total)
    why = (
        f"{len(fitting)} of {counted(len(leaves), 'leaf', 'leaves')} have a dim that is divisible by {mesh.num_devices}"
        if fitting
        else f"no dim of {largest.path} {largest.shape} is divisible by {mesh.num_devices}, nor of any other leaf"
    )
    return (
        f"this layout gains nothing: every leaf is replicated {mesh.num_devices} times (+{format_bytes(copied)} "
        f"of copies) and every device repeats the same work; {why}"
    )


def _too_small_each(leaves: Sequence[LeafPlan], resolution: Resolution, limit: int) -> Iterable[str]:
    """Report leaves that a policy left whole one by one as too small, although together they are large."""
    if not any(leaf.is_split for leaf in leaves if leaf.kind == "state"):
        return
    whole = [leaf for leaf in left_whole(leaves, resolution) if resolution.assignments[leaf.path].declined]
    if sum(leaf.bytes_total for leaf in whole) >= limit:
        yield (
            f"{_count(whole)} are whole on each of {whole[0].num_copies} devices, each for its own reason, such as "
            f"{whole[0].path}: {whole[0].reason}; a smaller min_size splits them"
        )


def _copies_split_less(leaves: Sequence[LeafPlan], copies: Sequence[Copies]) -> Iterable[str]:
    state = {leaf.path: leaf for leaf in leaves if leaf.kind == "state"}
    for copy in copies:
        more = sum(state[a].bytes_per_device - state[b].bytes_per_device for a, b in copy.leaves.items())
        yield (
            f"{counted(len(copy.leaves), 'leaf', 'leaves')} under {copy.below} "
            f"{plural(len(copy.leaves), 'takes', 'take')} {format_bytes(more)} of a device more than they would "
            f"where the leaves live that they mirror under {' or '.join(copy.sources)}; add "
            f"{follow_text(copy, leaves)} as the first rule"
        )


def _by_layer(resolution: Resolution) -> Iterable[str]:
    stacks = resolution.stacks
    if not stacks:
        return
    from outlay.layout.check_stacks import splits_by_layer

    for number, rule in enumerate(resolution.rules):
        if paths := splits_by_layer(number, stacks, resolution):
            yield (
                f"{rule.named(number)} splits {len(paths)} stacked leaves by layer, so a scan over the layers fetches "
                f"each from other devices: {listed(paths)}; dim 0 counts {stacks[paths[0]]} layers"
            )


def _unlike_samples(leaves: Sequence[LeafPlan], resolution: Resolution) -> Iterable[str]:
    """Report leaves of the batch whose first dim differs although one rule splits it as if it counted samples."""
    by_rule: dict[int, list[LeafPlan]] = collections.defaultdict(list)
    for leaf in leaves:
        owner = resolution.assignments[leaf.path].dim_rules.get(0)
        if leaf.kind == "batch" and owner is not None and isinstance(resolution.rules[owner].placement, OneDim):
            by_rule[owner].append(leaf)
    for number, group in by_rule.items():
        sizes = collections.Counter(leaf.shape[0] for leaf in group)
        usual = max(sizes, key=lambda size: (sizes[size], sum(size in leaf.shape for leaf in group)))
        odd = [leaf for leaf in group if leaf.shape[0] != usual]
        if odd:
            fixes = ", ".join(f'("{leaf.path}", {_for_samples(leaf, usual, resolution, number)})' for leaf in odd[:3])
            example = next(leaf for leaf in group if leaf.shape[0] == usual)
            yield (
                f"the first dims of the batch differ: {usual} of {example.path}, but "
                f"{listed([f'{leaf.path} {leaf.shape}' for leaf in odd])}; "
                f"{resolution.rules[number].named(number)} splits all of them as if they counted samples. Where they "
                f"do not, say so first: {fixes}"
            )


def _for_samples(leaf: LeafPlan, usual: int, resolution: Resolution, number: int) -> str:
    """Return the placement of a leaf whose batch dim is not dim 0, or that has none."""
    dim = next((i for i, size in enumerate(leaf.shape) if size == usual), None)
    if dim is None:
        return "outlay.replicate()"
    sizes = [(axis, resolution.mesh.axis_sizes[axis]) for axis in resolution.rules[number].axes]
    spec = fitting_spec((*[0] * dim, usual), sizes)
    return spec_text(spec, quote='"') if len(spec) else "outlay.replicate()"


def _more_than_meant(resolution: Resolution) -> Iterable[str]:
    """Report stars at the end of a part that match too much: `1*` matches 1, 10 and 11, `head*` also head_norm."""
    for number, rule in enumerate(resolution.rules):
        parts = pattern_parts(rule.pattern)
        for i, part in enumerate(parts):
            stem = part.removesuffix("*")
            if stem == part or "*" in stem or not stem or "**" in parts[:i] or part.startswith("'"):
                continue
            names = {split_path(path)[i] for path in resolution.applications[number]}
            longer = sorted(name for name in names if _is_another(stem, name))
            if stem in names and longer:
                yield (
                    f"{rule.named(number)} reaches {stem!r} and {listed([repr(name) for name in longer])}: "
                    f"`*` stands for any letters; write {stem!r} if only that is meant"
                )


def _annotations_left_out(
    leaves: Sequence[LeafPlan], resolution: Resolution, annotated: Mapping[str, Annotation]
) -> Iterable[str]:
    """Report arrays that the model annotates and this layout splits otherwise, except with `from_annotations`."""
    by_them = {
        path
        for rule, reached in zip(resolution.rules, resolution.applications, strict=True)
        if rule.source == "from_annotations"
        for path in reached
    }
    # Optimizer state follows its parameters, whose annotations it carries.
    by_others = {leaf.path: leaf for leaf in leaves if leaf.path not in by_them and not is_optimizer(leaf.path)}
    left_out = [leaf for path, leaf in by_others.items() if path in annotated and _differs(annotated[path], leaf)]
    if left_out:
        leaf = left_out[0]
        yield (
            f"{_count(left_out)} carry annotations of the model that this layout does not "
            f"follow, such as {leaf.path}: {annotated[leaf.path].names} there, {spec_text(leaf.spec)} here; "
            "outlay.layout.from_annotations(init) makes a layout of them"
        )


def _differs(annotation: Annotation, leaf: LeafPlan) -> bool:
    """Return whether the plan splits a dim over other axes than its annotation names."""
    return any(
        named is not None and (named if isinstance(named, tuple) else (named,)) != tuple(axes)
        for named, axes in zip(annotation.names, leaf.dims, strict=False)
    )


def _is_another(stem: str, name: str) -> bool:
    """Return whether a name continues with a word or digit, and is not the next of a series (`linear_1`)."""
    rest = name.removeprefix(stem)
    return rest.isdigit() if stem.isdigit() else bool(re.match(r"_\D", rest))


def _count(leaves: Sequence[LeafPlan]) -> str:
    return f"{counted(len(leaves), 'leaf', 'leaves')} ({format_bytes(sum(leaf.bytes_total for leaf in leaves))})"
