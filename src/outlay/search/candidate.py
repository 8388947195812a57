"""The candidates of a search: layouts, on the meshes that a target's devices can form, with sets of options. Pure."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from outlay.core.error_types import MeshError
from outlay.core.one_line import OneLine
from outlay.devices.arrange import arrange
from outlay.devices.mesh_info import MeshInfo
from outlay.devices.mesh_spec import MeshSpec
from outlay.devices.target import Target

WITH_HOST = "+host"
"""The end of a layout's name that keeps the optimizer's state in host memory: `fsdp+host`."""


@dataclass(frozen=True)
class Candidate(OneLine):
    """One way to run a recipe.

    Attributes:
        layout: the name of one of the recipe's layouts, or a TOML file.
        mesh: the mesh as text.
        options: the recipe's options that were varied, with their values.
        compiler_options: those of the compiler, if they differ from those that were asked for.

    >>> print(Candidate("fsdp", "data=8", (("remat", True), ("accumulate", 2))))
    fsdp data=8 --remat --accumulate 2
    """

    layout: str
    mesh: str
    options: tuple[tuple[str, Any], ...] = ()
    compiler_options: str | None = None

    @property
    def words(self) -> tuple[str, ...]:
        """The recipe's options as words of a command line."""
        return words_of(dict(self.options))

    @property
    def all_words(self) -> tuple[str, ...]:
        """The recipe's options, and the compiler's, as words of a command line."""
        more = () if self.compiler_options is None else ("--compiler-options", self.compiler_options)
        return (*self.words, *more)

    @property
    def base_layout(self) -> str:
        """The layout without its options and its storage on the host."""
        return base_name(self.layout)

    def __str__(self) -> str:
        return " ".join([self.layout, self.mesh, *self.all_words])


def base_name(layout: str) -> str:
    """Return the name of a layout without options and without storage on the host.

    >>> base_name("pp+fsdp+host:microbatches=16")
    'pp+fsdp'
    """
    return layout.partition(":")[0].removesuffix(WITH_HOST)


def words_of(options: Mapping[str, Any]) -> tuple[str, ...]:
    """Write options of a recipe as words of a command line; a list is several values to try.

    >>> words_of({"size": "3b", "remat": False, "num_heads": 8, "batch": [8, 16]})
    ('--size', '3b', '--no-remat', '--num-heads', '8', '--batch', '8,16')
    """
    words: list[str] = []
    for name, value in options.items():
        option = name.replace("_", "-")
        if isinstance(value, bool):
            words.append(f"--{option}" if value else f"--no-{option}")
        elif isinstance(value, list | tuple):
            words += [f"--{option}", ",".join(map(str, value))]
        else:
            words += [f"--{option}", f"{value}"]
    return tuple(words)


def candidates(
    meshes: Mapping[str, Sequence[str]], options: Sequence[tuple[tuple[str, Any], ...]]
) -> Iterator[Candidate]:
    """Return every layout on each of its meshes with every set of options.

    Args:
        meshes: meshes as text, by layout.
        options: the sets of options.
    """
    for layout, texts in meshes.items():
        for mesh in texts:
            for chosen in options:
                yield Candidate(layout, mesh, chosen)


def mesh_shapes(spec: MeshSpec, target: Target, either: Collection[str] = ()) -> tuple[MeshSpec, ...]:
    """Return every way to spread all devices of a target over the axes of a mesh, the outermost axis largest first.

    An axis with at least 2 devices keeps at least 2: with 1 it would be another layout's mesh. Axes that stay inside a
    host (see `MeshSpec.crossing`) are never larger than a host.

    Args:
        spec: the axes.
        target: the hardware.
        either: axes that may lie inside a host or across hosts, as those of stages, unless the mesh says it: both are
            tried where both can be and are not the same.

    >>> [str(mesh) for mesh in mesh_shapes(MeshSpec.parse("data=-1,model=2"), Target.parse("h100:2x4"))]
    ['data=4,model=2', 'data=2,model=4']
    >>> [str(mesh) for mesh in mesh_shapes(MeshSpec.parse("stage=2,data=-1"), Target.parse("h100:2x2"), ["stage"])]
    ['stage=4@hosts,data=1', 'stage=2,data=2', 'stage=2@hosts,data=2']
    """
    declared = {*dict(spec.over), *spec.crossing}
    open_axes = {name: "hosts" for name, _ in spec.axes if name in either and name not in declared}
    names = [name for name, _ in spec.axes]
    least = [min(2, abs(size)) for _, size in spec.axes]
    shapes = []
    for sizes in _products(target.num_devices, least):
        arrangements = set()
        for over in ({}, open_axes) if open_axes else ({},):
            mesh = MeshSpec(dict(zip(names, sizes, strict=True)), {**dict(spec.over), **over})
            try:
                resolved = on_target(mesh, target)
            except MeshError:  # an axis would leave its host
                continue
            arranged = mesh_info(resolved, target).device_ids if open_axes else ()
            if arranged not in arrangements:
                shapes.append(resolved)
            arrangements.add(arranged)
    return tuple(shapes)


def on_target(mesh: MeshSpec, target: Target) -> MeshSpec:
    """Resolve a mesh for the devices of a target, as `outlay.mesh(..., target=...)` does.

    Raises:
        MeshError: it does not fit.
    """
    return mesh.resolve(target.num_devices, target.num_islands, target=str(target), host=target.island)


def mesh_info(mesh: MeshSpec, target: Target) -> MeshInfo:
    """Return a mesh of a target as plain data: its devices by number, each with its host (TPU: its slice).

    >>> mesh_info(MeshSpec.parse("data=2,model=2"), Target.parse("h100:2x2")).hosts
    (0, 0, 1, 1)
    """
    resolved = on_target(mesh, target)
    each = target.num_devices // target.num_islands
    groups = [list(range(i * each, (i + 1) * each)) for i in range(target.num_islands)]
    ids = tuple(int(position) for position in arrange(resolved, groups, target.torus).flat)
    return MeshInfo(resolved.axes, ids, tuple(i // each for i in ids), "abstract")


def _products(product: int, least: list[int]) -> Iterator[tuple[int, ...]]:
    """Yield sizes that multiply to a number, each at least as large as given."""
    first, *rest = least
    if not rest:
        if product >= first:
            yield (product,)
        return
    for size in range(product // math.prod(rest), first - 1, -1):
        if product % size == 0:
            for others in _products(product // size, rest):
                yield (size, *others)
