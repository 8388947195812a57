"""Check the leaves of a resolved layout: that rules cover them, and that no copies or many bytes are left whole."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from outlay.core.error_types import Problem
from outlay.core.paths import join_parts, matches, split_path
from outlay.core.quantities import counted, format_bytes, listed, plural
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.placement import Follow, is_optimizer, spec_text
from outlay.layout.policies import fitting_spec
from outlay.layout.resolve import Resolution

if TYPE_CHECKING:
    from outlay.layout.optimizer_state import Copies


def check_leaves(
    leaves: Sequence[LeafPlan], resolution: Resolution, max_whole_bytes: int, copies: Sequence[Copies]
) -> list[Problem]:
    """Return the problems of uncovered leaves, and of copies and many bytes left whole while others are split."""
    uncovered = [leaf for leaf in leaves if _is_uncovered(leaf, resolution)]
    whole = [copy for copy in copies if any(resolution.assignments[path].is_whole for path in copy.leaves)]
    reported = {leaf.path for leaf in uncovered}
    return [
        *_uncovered_problems(uncovered, leaves, resolution),
        *(_copy_left_whole(copy, leaves, resolution) for copy in whole if reported.isdisjoint(copy.leaves)),
        *_big_and_whole(leaves, resolution, max_whole_bytes, reported.union(*(copy.leaves for copy in whole))),
    ]


def misplaced_copies(leaves: Sequence[LeafPlan], resolution: Resolution) -> list[Copies]:
    """Return copies of split leaves that take more memory of a device than following would, and that no rule names."""
    state = {leaf.path: leaf for leaf in leaves if leaf.kind == "state"}
    split = {path for path, leaf in state.items() if leaf.is_split}
    reported = {problem.where for problem in resolution.problems} | _without_original(resolution)
    unmeant = [path for path in state if path not in reported and not _is_meant(path, resolution)] if split else []
    worse = []
    for copy in resolution.copies_among(unmeant):
        originals: dict[str, str] = {}
        sources: list[str] = []
        for path, first in copy.leaves.items():
            for source, other in _originals(copy, first):  # of two similar networks perhaps only one is split
                if other in split and state[path].bytes_per_device > state[other].bytes_per_device:
                    originals.setdefault(path, other)
                    sources.append(source)
        if originals:
            worse.append(replace(copy, sources=tuple(dict.fromkeys(sources)), leaves=originals))
    return worse


def _originals(copy: Copies, first: str) -> list[tuple[str, str]]:
    """Return each source of a copy, with its leaf that corresponds to `first` in the first source."""
    tail = split_path(first)[len(split_path(copy.sources[0])) :]
    return [(source, join_parts(split_path(source) + tail)) for source in copy.sources]


def follow_text(copy: Copies, leaves: Sequence[LeafPlan]) -> str:
    """Write the rules that place copies like their originals; they reach no other split leaf."""
    if copy.sources == ("",):
        pairs = [f'("{path}", outlay.layout.follow("{other}"))' for path, other in copy.leaves.items()]
        return ", ".join(pairs[:3])
    below = f"{copy.below}.**"
    others = _split_outside(copy, leaves)
    from outlay.layout.suggested_patterns import globs, globs_text

    reach = [below] if not any(matches(below, path) for path in others) else globs(copy.leaves, others)
    return " or ".join(globs_text(reach, f'outlay.layout.follow("{source}")') for source in copy.sources)


def _split_outside(copy: Copies, leaves: Sequence[LeafPlan]) -> list[str]:
    """Return the split leaves of the state that are not among these copies."""
    return [leaf.path for leaf in leaves if leaf.kind == "state" and leaf.is_split and leaf.path not in copy.leaves]


def _is_uncovered(leaf: LeafPlan, resolution: Resolution) -> bool:
    # Values inside a step are the compiler's to place, and there is nothing to split in one number.
    if leaf.kind == "intermediate" or math.prod(leaf.shape) <= 1:
        return False
    return not resolution.matched[leaf.path] and leaf.path not in resolution.followed


def _is_meant(path: str, resolution: Resolution) -> bool:
    """Return whether a leaf's placement is intended: it follows, or the pattern of a rule begins with its name."""
    if path in resolution.followed or resolution.assignments[path].positions is not None:
        return True
    return any(not resolution.rules[number].is_leading_wild for number in resolution.matched[path])


def _without_original(resolution: Resolution) -> set[str]:
    """Return the leaves of a `follow` rule that can follow nothing; `check_rules` reports the rule."""
    return {
        path
        for rule, applications in zip(resolution.rules, resolution.applications, strict=True)
        if isinstance(rule.placement, Follow) and not any(a.granted for a in applications.values())
        for path in applications
    }


def _uncovered_problems(
    uncovered: Sequence[LeafPlan], leaves: Sequence[LeafPlan], resolution: Resolution
) -> Iterable[Problem]:
    copies = resolution.copies_among([leaf.path for leaf in uncovered if leaf.kind == "state"])
    originals = {path: (copy, other) for copy in copies for path, other in copy.leaves.items()}
    state = {leaf.path for leaf in leaves if leaf.kind == "state" and math.prod(leaf.shape) > 1}
    odd = [leaf.path for leaf in uncovered if is_optimizer(leaf.path) and leaf.path not in originals]
    replicated = ""
    if odd:
        from outlay.layout.suggested_patterns import globs, globs_text

        replicated = globs_text(globs(odd, state - set(odd)), "outlay.replicate()")
    for leaf in uncovered:
        what = f"no rule covers {leaf.shape} {leaf.dtype} ({format_bytes(leaf.bytes_total)})"
        if leaf.kind == "batch":
            fix = "add outlay.data_parallel() to split the batch"
        elif leaf.path in originals:
            copy, other = originals[leaf.path]
            alike = other if len(copy.sources) == 1 else " and ".join(copy.sources) + " alike"
            fix = f"it mirrors {alike}; add {follow_text(copy, leaves)}"
        elif is_optimizer(leaf.path):
            fix = f"it mirrors no parameter; add {replicated}, or a spec for it"
        else:
            spec = spec_text(fitting_spec(leaf.shape, resolution.mesh.axes), quote='"')
            fix = f'add ("{leaf.path}", {spec}), or + outlay.replicate() to keep all that is left whole'
        yield Problem("uncovered leaf", leaf.path, what, fix)


def _copy_left_whole(copy: Copies, leaves: Sequence[LeafPlan], resolution: Resolution) -> Problem:
    whole = [leaf for leaf in leaves if leaf.path in copy.leaves and not leaf.is_split]
    number = next(iter(resolution.matched[whole[0].path]))
    first = copy.leaves[whole[0].path]
    source = next(leaf for leaf in leaves if leaf.path == first)
    what = (
        f"{counted(len(whole), 'leaf', 'leaves')} ({format_bytes(sum(leaf.bytes_total for leaf in whole))}) "
        f"{plural(len(whole), 'is', 'are')} whole on each of "
        f"{whole[0].num_copies} devices by {resolution.rules[number].named(number)}, while the leaves that they mirror "
        f"under {' and '.join(map(repr, copy.sources))} are split: {_paths(whole)}; {first} is {source.spec}"
    )
    from outlay.layout.suggested_patterns import globs, globs_text

    replicated = globs_text(globs([leaf.path for leaf in whole], _split_outside(copy, leaves)), "outlay.replicate()")
    fix = f"add {follow_text(copy, leaves)} as the first rule"
    fix += f"\nor add {replicated} as the first rule if whole copies are meant"
    return Problem("copy left whole", f"{copy.below}.**" if copy.below else copy.sources[0], what, fix)


def _big_and_whole(
    leaves: Sequence[LeafPlan], resolution: Resolution, limit: int, reported: set[str]
) -> Iterable[Problem]:
    # Apart, since ZeRO splits one of them and leaves the other whole on purpose.
    for optimizer in (False, True):
        group = [leaf for leaf in leaves if leaf.kind == "state" and is_optimizer(leaf.path) is optimizer]
        num_split = sum(leaf.is_split for leaf in group)
        whole = [leaf for leaf in left_whole(group, resolution) if leaf.path not in reported] if num_split else []
        for leaf in whole:
            if leaf.bytes_total >= limit:
                yield _big(leaf, num_split, resolution, limit)
        # What a policy has looked at and found too small is only noted: `min_size` was asked for (decision 15).
        small = [leaf for leaf in whole if leaf.bytes_total < limit and not resolution.assignments[leaf.path].declined]
        if sum(leaf.bytes_total for leaf in small) >= limit:
            yield _many(small, num_split, resolution, limit)


def left_whole(leaves: Sequence[LeafPlan], resolution: Resolution) -> list[LeafPlan]:
    """Return state leaves that are whole although no rule says that they should be."""
    return [
        leaf
        for leaf in leaves
        if leaf.kind == "state"
        and not leaf.is_split
        and math.prod(leaf.shape) > 1
        and resolution.assignments[leaf.path].closed_by is None
        and leaf.path not in resolution.followed
    ]


def _big(leaf: LeafPlan, num_split: int, resolution: Resolution, limit: int) -> Problem:
    what = (
        f"{format_bytes(leaf.bytes_total)} are left whole on each of {leaf.num_copies} devices while "
        f"{counted(num_split, 'other leaf is', 'other leaves are')} split (limit {format_bytes(limit)}); {leaf.reason}"
    )
    spec = fitting_spec(leaf.shape, resolution.mesh.axes)
    split = f'("{leaf.path}", {spec_text(spec, quote=chr(34))}), or ' if len(spec) else ""
    fix = f'add, as the first rule, {split}("{leaf.path}", outlay.replicate()) if it is meant'
    return Problem("big leaf left whole", leaf.path, what, fix)


def _many(whole: Sequence[LeafPlan], num_split: int, resolution: Resolution, limit: int) -> Problem:
    what = (
        f"{format_bytes(sum(leaf.bytes_total for leaf in whole))} in {len(whole)} leaves are left whole on each of "
        f"{whole[0].num_copies} devices while {counted(num_split, 'other leaf is', 'other leaves are')} split "
        f"(limit {format_bytes(limit)} in all): "
        f"{_paths(whole)}"
    )
    axis, _ = max(resolution.mesh.axes, key=lambda item: item[1])
    number = next(iter(resolution.matched[whole[0].path]))
    size = min(math.prod(leaf.shape) for leaf in whole)
    options = f'"{axis}", min_size={size}, otherwise="replicate"'
    fix = f"put outlay.fsdp({options}) before {resolution.rules[number].named(number)}"
    fix += "\nor + outlay.replicate() if it is meant"
    return Problem("many leaves left whole", whole[0].path, what, fix)


def _paths(leaves: Sequence[LeafPlan]) -> str:
    return listed([leaf.path for leaf in leaves])
