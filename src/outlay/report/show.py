"""`outlay.show`: show where every array of an array, a tree, a plan or a program lives."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
from jax.core import Tracer

from outlay.core.array_leaves import split_objects
from outlay.core.error_types import Problem, ShowError
from outlay.core.paths import flatten_paths, matches, pattern_problem
from outlay.core.public_names import called_as
from outlay.core.quantities import counted, format_bytes, listed, plural
from outlay.core.suggest import did_you_mean
from outlay.devices.mesh_info import DeviceId, MeshInfo
from outlay.layout.leaf_plan import LeafPlan
from outlay.layout.plan import Plan
from outlay.layout.plan_notes import notes_on_mesh
from outlay.program.program import Program
from outlay.render.page import Page
from outlay.render.report import Report
from outlay.report.array_blocks import Blocks
from outlay.report.leaf import LeafFacts, array_leaf, is_array, planned_leaf
from outlay.report.show_facts import Count, DeviceFacts, Facts, Subject, Totals, bytes_by_device, heat, modules
from outlay.report.show_page import show_page


@dataclass(frozen=True)
class Show(Report):
    """Where every array of something lives: facts, and ways to read them.

    `str()` gives text without colour, rich prints it with colour on a terminal, a notebook shows the page.
    Indexing by path gives the facts of one leaf.

    Attributes:
        facts: everything in the report, as plain data.
    """

    facts: Facts

    # Nothing is wrapped in files and logs, so there is room for the reasons.
    _text_width = 200

    @property
    def leaves(self) -> tuple[LeafFacts, ...]:
        """The leaves in the order of the tree."""
        return self.facts.leaves

    @property
    def totals(self) -> Totals:
        """The state in numbers."""
        return self.facts.totals

    @property
    def notes(self) -> tuple[str, ...]:
        """What is worth knowing, in words with numbers."""
        return self.facts.notes

    @property
    def blocks(self) -> Blocks:
        """Which device holds which slice of the array that was shown.

        Raises:
            ShowError: several arrays were shown, or the array is not on a device.
        """
        leaf = self._only_leaf()
        if leaf.blocks is None:
            raise ShowError(f"no device holds any block of this array: it is {leaf.in_words} ({leaf.reason})")
        return leaf.blocks

    def __getitem__(self, path: str) -> LeafFacts:
        for leaf in self.leaves:
            if leaf.path == path:
                return leaf
        raise KeyError(f"no leaf {path!r}: {did_you_mean(path, [leaf.path for leaf in self.leaves])}")

    def __iter__(self) -> Iterator[LeafFacts]:
        return iter(self.leaves)

    def __len__(self) -> int:
        return len(self.leaves)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        return self.facts.to_dict()

    def _in_short(self) -> str:
        totals = self.facts.totals
        held = f"{format_bytes(totals.bytes_total)}, {format_bytes(totals.bytes_most)} a device at most"
        return f"{counted(len(self), 'array')} on {counted(len(self.facts.devices), 'device')}: {held}"

    def _page(self) -> Page:
        return show_page(self.facts)

    def _only_leaf(self) -> LeafFacts:
        if len(self.leaves) == 1:
            return self.leaves[0]
        example = f": show(x)[{self.leaves[0].path!r}].blocks" if self.leaves else ""
        raise ShowError(f"{len(self.leaves)} arrays were shown, so blocks are asked for by path{example}")


@called_as(
    "outlay.show(program), or of a plan, an array, a tree",
    html="Path('page.html').write_text(outlay.show(program).to_html())",
)
def show(x: Any, path: str | None = None) -> Show:
    """Show where every array of `x` lives: its shape on a device, its spec, its bytes, its copies, and why.

    Args:
        x: an array of any sharding, a `jax.ShapeDtypeStruct` with one (on an `AbstractMesh` no devices are needed), a
            pytree of those, a plan, or a program.
        path: show only the leaf at this dotted path, the leaves below it, or those that match it as a pattern.

    Raises:
        ShowError: `x` holds nothing that lives on devices, or nothing at `path`.

    Example:
        >>> mesh = outlay.mesh(x=2, y=4)
        >>> array = jax.device_put(np.ones((4, 8)), jax.NamedSharding(mesh, P("x", "y")))
        >>> outlay.show(array).blocks.by_position
        (((0,), (1,), (2,), (3,)), ((4,), (5,), (6,), (7,)))
        >>> print(outlay.show({"w": array, "b": np.ones(3)}, "w").leaves[0].in_words)
        split in 8
    """
    return Show(collect(x, path))


def collect(x: Any, path: str | None) -> Facts:
    """Return the facts of what `x` holds, or of its leaves at `path`."""
    if isinstance(x, Plan | Program):
        subject, plan = ("program", x.plan) if isinstance(x, Program) else ("plan", x)
        leaves = _at([planned_leaf(leaf, plan.mesh) for leaf in plan], path)
        notes = [*plan.notes, *_schedule(x)] if path is None else ()
        return _facts(subject, leaves, (plan.mesh,), notes)
    # A tracer is refused below, with the reason.
    if is_array(x) or isinstance(x, Tracer):
        leaves = _array_leaves(x, [("", x)])
        return _facts("array", leaves, (), _process_notes(leaves))
    named, _ = flatten_paths(split_objects(x)[1])
    leaves = _array_leaves(x, [(name, leaf) for name, leaf in named if is_array(leaf)])
    left_out = [(name, leaf) for name, leaf in named if not is_array(leaf)]
    if left_out and not leaves:
        raise _no_array(x, left_out)
    chosen = _at(leaves, path)
    notes = () if path is not None else (*_tree_notes(leaves), *_process_notes(leaves), *_left_out_notes(left_out))
    return _facts("tree", chosen, (), notes)


def _array_leaves(x: Any, named: Sequence[tuple[str, Any]]) -> list[LeafFacts]:
    if isinstance(x, Tracer):
        raise ShowError(
            "outlay.show cannot see a value that is being traced: inside jit it has no place on devices yet\n"
            "  fix: show the result, outside the jitted function"
        )
    array_leaves = [array_leaf(name, leaf) for name, leaf in named]
    problems = [item for item in array_leaves if isinstance(item, Problem)]
    if problems:
        lines = [f"{len(problems)} of {len(array_leaves)} arrays cannot have their sharding:"]
        raise ShowError("\n".join([*lines, *(problem.text() for problem in problems)]))
    return [item for item in array_leaves if isinstance(item, LeafFacts)]


def _no_array(x: Any, left_out: Sequence[tuple[str, Any]]) -> ShowError:
    if isinstance(x, str):
        raise ShowError(
            f"outlay.show was given a str, {x!r:.80}, which does not live on devices\n"
            f"  fix: on the command line, outlay show {x:.40} shows a recipe; in Python, outlay.show(program)"
        )
    what = f"a {type(x).__name__}"
    if left_out[0][1] is not x:
        kinds = ", ".join(sorted({type(leaf).__name__ for _, leaf in left_out}))
        what += f" whose {len(left_out)} leaves are not arrays ({kinds})"
    return ShowError(
        f"outlay.show was given {what}, which does not live on devices\n"
        "  it shows an array, a jax.ShapeDtypeStruct, a pytree of those, a plan, or a program\n"
        "  fix: for a function, show its arguments or results, for example outlay.show(state)"
    )


def _at(leaves: Sequence[LeafFacts], path: str | None) -> list[LeafFacts]:
    """Return the leaves at a path, below it, or matched by it as a pattern."""
    if path is None:
        return list(leaves)
    problem = pattern_problem(path)
    chosen = [leaf for leaf in leaves if not problem and (matches(path, leaf.path) or matches(f"{path}.**", leaf.path))]
    if chosen:
        return chosen
    known = [leaf.path for leaf in leaves] + [module.path for module in modules(leaves)]
    hint = did_you_mean(path, known) if len(known) <= 20 else _near(path, known)
    raise ShowError(f"no leaf and no module at path {path!r} among {len(leaves)} leaves: {problem or hint}")


def _near(path: str, known: Sequence[str]) -> str:
    """Return a hint that does not list thousands of paths."""
    hint = did_you_mean(path, known)
    return hint if hint.startswith("did") else f"known, for example: {', '.join(map(repr, known[:5]))}"


def _schedule(x: Plan | Program) -> list[str]:
    """Say in which order the stages of a pipeline work, where they are programs of their own."""
    schedule = x.schedule if isinstance(x, Program) else None
    return [] if schedule is None else ["; ".join(str(schedule).splitlines()[:2]), x.pipelines.splitlines()[1]]


def _facts(subject: Subject, leaves: Sequence[LeafFacts], meshes: Sequence[MeshInfo], notes: Sequence[str]) -> Facts:
    homes = dict.fromkeys([*meshes, *(leaf.mesh for leaf in leaves if leaf.mesh is not None)])
    # Devices without a mesh are drawn as well, but as a row, and not named as a mesh of the user's.
    shown = dict.fromkeys([*meshes, *(leaf.mesh for leaf in leaves if leaf.mesh is not None and leaf.on_mesh)])
    hosts = {device: host for home in homes for device, host in zip(home.device_ids, home.hosts, strict=True)}
    state = [leaf for leaf in leaves if leaf.kind == "state"]
    held = bytes_by_device(state)
    devices = tuple(DeviceFacts(device, hosts[device], held.get(device, 0)) for device in sorted(hosts))
    return Facts(
        subject=subject,
        meshes=tuple(shown),
        devices=devices,
        device_kind=_one_kind(homes),
        leaves=tuple(leaves),
        modules=modules(leaves),
        totals=_totals(state, devices),
        heat=heat(state, {device.id: device.host for device in devices}),
        notes=tuple(notes),
    )


def _one_kind(meshes: Iterable[MeshInfo]) -> str:
    kinds = {mesh.kind for mesh in meshes}
    return next((kind for kind in ("simulated", "abstract", "attached") if kind in kinds), "")


def _totals(state: Sequence[LeafFacts], devices: Sequence[DeviceFacts]) -> Totals:
    counts: dict[str, list[LeafFacts]] = collections.defaultdict(list)
    for leaf in state:
        counts[leaf.in_words].append(leaf)
    held = [device.num_bytes for device in devices]
    on_devices = sum(leaf.bytes_total for leaf in state if leaf.device_ids)
    by_words = [Count(words, len(group), sum(leaf.bytes_total for leaf in group)) for words, group in counts.items()]
    return Totals(
        num_leaves=len(state),
        bytes_total=sum(leaf.bytes_total for leaf in state),
        bytes_least=min(held, default=0),
        bytes_most=max(held, default=0),
        replication=sum(held) / on_devices if on_devices else 1.0,
        counts=tuple(sorted(by_words, key=lambda count: -count.bytes_total)),
    )


def _tree_notes(leaves: Sequence[LeafFacts]) -> tuple[str, ...]:
    """Return the notes of a plan, for a tree whose leaves all live on one mesh."""
    meshes = {leaf.mesh if leaf.on_mesh else None for leaf in leaves}
    mesh = next(iter(meshes), None)
    if len(meshes) != 1 or mesh is None:
        return _idle_devices(leaves)
    return notes_on_mesh(mesh, [_as_planned(leaf) for leaf in leaves])


def _idle_devices(leaves: Sequence[LeafFacts]) -> tuple[str, ...]:
    """Report that everything is on one of many devices, which is JAX's default and seldom intended."""
    used = {device for leaf in leaves for device in leaf.device_ids}
    if len(used) != 1 or any(leaf.on_mesh for leaf in leaves):
        return ()
    idle = jax.device_count() - 1
    if not idle:
        return ()
    return (
        f"everything is on device {used.pop()}; JAX has {counted(idle, 'more device')} with nothing on "
        f"{plural(idle, 'it', 'them')}",
    )


def _process_notes(leaves: Sequence[LeafFacts]) -> tuple[str, ...]:
    """Report, in a job of several processes, what one process alone holds, and what none can fetch by itself."""
    alone: dict[int, list[str]] = collections.defaultdict(list)
    between = []
    for leaf in leaves:
        processes = {device.process for device in leaf.device_ids if isinstance(device, DeviceId)}
        if len(processes) == 1:
            alone[processes.pop()].append(leaf.path)
        elif processes and leaf.blocks is not None and leaf.blocks.num_blocks > 1:
            between.append(leaf.path)
    notes = [f"local to process {process}: {_named(paths)}" for process, paths in sorted(alone.items())]
    if between:
        notes.append(
            f"split between processes: {_named(between)}; np.asarray fails there, outlay.arrays.gather(x) in every "
            "process "
            "fetches the whole"
        )
    return tuple(notes)


def _named(paths: Sequence[str]) -> str:
    return listed([path or "this array" for path in paths])


def _as_planned(leaf: LeafFacts) -> LeafPlan:
    return LeafPlan(
        leaf.path, "state", leaf.shape, leaf.dtype, leaf.dims, leaf.local_shape, leaf.device_ids, leaf.rule, leaf.reason
    )


def _left_out_notes(left_out: Sequence[tuple[str, Any]]) -> tuple[str, ...]:
    if not left_out:
        return ()
    named = listed([f"{path} ({type(leaf).__name__})" for path, leaf in left_out])
    return (f"left out, since they are not arrays: {named}",)
