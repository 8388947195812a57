"""What is in a Brain, as a tree: modules, their settings, the shapes of their state, ports and units."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax

from outlay.brain.port import Port
from outlay.core.paths import flatten_paths

if TYPE_CHECKING:
    from outlay.brain.brain import Brain


@dataclass(frozen=True)
class ModuleFacts:
    """One module of a Brain.

    Attributes:
        name: its name.
        type: its class, and those of its components by field.
        inputs: for each port what is connected to it.
        outputs: its ports.
        state: shape and dtype of every leaf of its state, by path within the module.
    """

    name: str
    type: str
    components: Mapping[str, str]
    inputs: Mapping[str, tuple[str, ...]]
    outputs: Mapping[str, Port]
    state: Mapping[str, jax.ShapeDtypeStruct]

    @property
    def num_elements(self) -> int:
        """Numbers in its state."""
        return sum(math.prod(leaf.shape) for leaf in self.state.values())


@dataclass(frozen=True)
class Inspection:
    """A Brain as a tree; `str()` draws it.

    Attributes:
        modules: the modules, in order.
        dt: the time of one step in ms.
        dtype: of potentials, kernels and traces.
    """

    modules: tuple[ModuleFacts, ...]
    dt: float
    dtype: str

    def __str__(self) -> str:
        from rich.console import Console
        from rich.tree import Tree

        tree = Tree(f"Brain  dt {self.dt:g} ms, {self.dtype}", guide_style="dim")
        for facts in self.modules:
            node = tree.add(f"{facts.name}: {facts.type}")
            for port, sources in facts.inputs.items():
                node.add(f"reads {port} of {', '.join(sources)}")
            for component, leaves in _by_component(facts).items():
                kind = facts.components.get(component)
                branch = node.add(f"{component}: {kind}") if kind else node
                for path, leaf in leaves.items():
                    branch.add(f"{path if kind else component + (f'.{path}' if path else '')} {leaf.dtype}{leaf.shape}")
            for port, what in facts.outputs.items():
                node.add(f"writes {port}: {what}")
        out = io.StringIO()
        Console(file=out, width=120, highlight=False, markup=False, force_jupyter=False).print(tree, markup=False)
        return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def inspect(brain: Brain) -> Inspection:
    """The facts of a Brain; nothing is computed."""
    return Inspection(tuple(_facts(brain, name) for name in brain.modules), brain.dt, brain.dtype)


def _facts(brain: Brain, name: str) -> ModuleFacts:
    module = brain.modules[name]
    state = jax.eval_shape(lambda: brain.init_module(name, jax.random.key(0)))
    fields = {f.name: getattr(module, f.name) for f in dataclasses.fields(module)}  # type: ignore[arg-type]
    return ModuleFacts(
        name=name,
        type=type(module).__name__,
        components={k: type(v).__name__ for k, v in fields.items() if dataclasses.is_dataclass(v)},
        inputs={port: tuple(map(str, sources)) for port, sources in brain.wiring.reads[name].items()},
        outputs=brain.wiring.output_ports[name],
        state=dict(flatten_paths(state)[0]),
    )


def _by_component(facts: ModuleFacts) -> dict[str, dict[str, Any]]:
    tree: dict[str, dict[str, Any]] = {}
    for path, leaf in facts.state.items():
        component, _, rest = path.partition(".")
        tree.setdefault(component, {})[rest] = leaf
    return tree
