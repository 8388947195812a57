"""Describe a Brain as a tree: modules, their settings, the shapes of their state, ports and units."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from outlay.brain.module import Port, Shape, State, each_setting
from outlay.brain.wiring import Wiring
from outlay.kit import Code, OneLine, Page, Report, counted, flatten_paths, to_text

if TYPE_CHECKING:
    from rich.tree import Tree


@dataclass(frozen=True)
class PortReads(OneLine):
    """The sources of a port, in order, and their joint shape."""

    sources: tuple[str, ...]
    shape: Shape


@dataclass(frozen=True)
class ModuleFacts(OneLine):
    """The description of a module.

    Attributes:
        name: its name.
        type: its class.
        components: the classes of its components, by field.
        settings: its settings with units, by path within the module.
        inputs: the sources of each input port.
        outputs: its output ports.
        state: the shape and dtype of every leaf of its state, by path within the module.
    """

    name: str
    type: str
    components: Mapping[str, str]
    settings: Mapping[str, str]
    inputs: Mapping[str, PortReads]
    outputs: Mapping[str, Port]
    state: Mapping[str, jax.ShapeDtypeStruct]

    @property
    def num_elements(self) -> int:
        """The number of elements in its state."""
        return sum(math.prod(leaf.shape) for leaf in self.state.values())


@dataclass(frozen=True)
class Inspection(Report):
    """A Brain as a tree; `str()` draws it.

    Attributes:
        modules: the modules, in order.
        dt: the duration of a step in ms.
        dtype: the dtype of potentials, kernels and traces.
    """

    modules: tuple[ModuleFacts, ...]
    dt: float
    dtype: str

    def _in_short(self) -> str:
        return f"{counted(len(self.modules), 'module')}, steps of {self.dt:g} ms, {self.dtype}"

    def _page(self) -> Page:
        return Page(f"Brain: {self._in_short()}", [Code(str(self))])

    def tree(self) -> Tree:
        """Build the tree for rich."""
        from rich.tree import Tree

        tree = Tree(f"Brain: {self._in_short()}", guide_style="dim")
        for facts in self.modules:
            _grow(tree.add(f"{facts.name}: {facts.type}"), facts)
        return tree

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-ready data."""
        modules = {
            facts.name: {
                "type": facts.type,
                "components": dict(facts.components),
                "settings": dict(facts.settings),
                "inputs": {port: dataclasses.asdict(reads) for port, reads in facts.inputs.items()},
                "outputs": {port: dataclasses.asdict(what) for port, what in facts.outputs.items()},
                "state": {path: {"shape": leaf.shape, "dtype": str(leaf.dtype)} for path, leaf in facts.state.items()},
            }
            for facts in self.modules
        }
        return {"dt": self.dt, "dtype": self.dtype, "modules": modules}

    def __str__(self) -> str:
        return to_text(self.tree(), width=120)


def inspect(wiring: Wiring, init_module: Callable[[str, jax.Array], State]) -> Inspection:
    """Describe a Brain; nothing is computed.

    Args:
        wiring: its modules and their connections.
        init_module: initializes the state of a module, by its name, from a key.
    """
    brain = wiring.blueprint
    return Inspection(tuple(_facts(wiring, name, init_module) for name in brain.modules), brain.dt, brain.dtype)


def _facts(wiring: Wiring, name: str, init_module: Callable[[str, jax.Array], State]) -> ModuleFacts:
    module = wiring.blueprint.modules[name]
    # Shapes alone: describing a large Brain must not allocate its kernels.
    state = jax.eval_shape(lambda: init_module(name, jax.random.key(0)))
    shapes, settings = wiring.input_shapes[name], list(each_setting(module))
    return ModuleFacts(
        name=name,
        type=type(module).__name__,
        components={path: type(value).__name__ for path, _, value in settings if dataclasses.is_dataclass(value)},
        settings={
            path: _with_unit(value, field.metadata.get("unit", ""))
            for path, field, value in settings
            if value is not None and not dataclasses.is_dataclass(value)
        },
        inputs={
            port: PortReads(tuple(map(str, sources)), shapes[port]) for port, sources in wiring.reads[name].items()
        },
        outputs=wiring.output_ports[name],
        state=dict(flatten_paths(state)[0]),
    )


def _with_unit(value: Any, unit: str) -> str:
    number = f"{value:g}" if isinstance(value, float) else str(value)
    return f"{number} {unit}".rstrip()


def _grow(tree: Tree, facts: ModuleFacts) -> None:
    """Add the inputs, settings, state, components and outputs of a module to its branch."""
    for port, reads in facts.inputs.items():
        tree.add(f"reads {port} {reads.shape} of {', '.join(reads.sources)}")
    _grow_leaves(tree, facts, "")
    for path, kind in facts.components.items():
        if "." not in path:
            _grow_leaves(tree.add(f"{path}: {kind}"), facts, f"{path}.")
    for port, what in facts.outputs.items():
        tree.add(f"writes {port}: {what}")


def _grow_leaves(tree: Tree, facts: ModuleFacts, above: str) -> None:
    """Add the settings and state under a path, except other components'."""
    others = [f"{path}." for path in facts.components if not above]

    def own(path: str) -> bool:
        return path.startswith(above) and not path.startswith(tuple(others))

    settings = [f"{path.removeprefix(above)} {value}" for path, value in facts.settings.items() if own(path)]
    if settings:
        tree.add(", ".join(settings))
    for path, leaf in facts.state.items():
        if own(path):
            tree.add(f"{path.removeprefix(above)} {leaf.shape} {leaf.dtype}")
