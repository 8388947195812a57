"""Read a graph of NIR as a Brain."""

from __future__ import annotations

import dataclasses
import math
import os
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection
from outlay.brain.initializers import GivenKernel
from outlay.brain.module import MS_PER_S, BrainError, State
from outlay.brain.neuron import Neuron
from outlay.brain.somas.leaky import LeakySoma
from outlay.brain.synapses import LinearSynapses, Synapses, TracedSynapses
from outlay.errors import Problem
from outlay.kit import INPUTS, OneLine, check_input, counted

POPULATIONS = ("LIF", "CubaLIF")
_FIX = "write it again with nir.write, which puts everything into the file itself"


@dataclass(frozen=True)
class NirBrain(OneLine):
    """A Brain from NIR, with the kernels that its file holds.

    Attributes:
        brain: the Brain; it begins with these kernels.
        kernels: the kernel of each population, (post, pre).
    """

    brain: Brain
    kernels: Mapping[str, np.ndarray]

    def init(self, key: jax.Array) -> State:
        """Return the state before the first step, with the kernels of the file."""
        return self.brain.init(key)


def read_nir(path: str | os.PathLike, *, dt: float = 1.0) -> NirBrain:
    """Read a Brain from a graph of NIR.

    `LIF` and `CubaLIF` nodes become populations, `Linear` nodes (and `Affine` ones without bias) parts of their
    kernels, `Delay` nodes delays of connections. Times are taken as seconds, potentials as mV and currents as pA.
    What enters by an `Input` is any number: times its weight it is current, as in NIR. Every connection takes a step of
    dt in a Brain, on top of its delay.

    Args:
        path: the file.
        dt: the time of one step in ms.

    Raises:
        BrainError: the file cannot be read, or has nodes that a Brain does not know; all are listed.
    """
    name = os.fspath(path)
    graph, problems = _graph(name), []

    def wrong(node: str, what: str, fix: str) -> None:
        problems.append(Problem("not understood", f"{name} {node}", what, fix))

    ways = routes(graph, wrong)
    modules = {
        _name(at): _neuron(at, node, dt, wrong) for at, node in graph.nodes.items() if _kind(node) in POPULATIONS
    }
    if problems:
        raise BrainError(f"{name} cannot be read as a Brain: {counted(len(problems), 'problem')}", problems)
    inputs = {_name(at): _shape(node) for at, node in graph.nodes.items() if _kind(node) == "Input"}
    outputs = {_name(way.target): f"{_name(way.source)}:out_spikes" for way in ways if way.to_output}
    inner = list(_summed([way for way in ways if not way.to_output], modules))
    connections = [_connection(way, inputs, dt) for way in inner]
    kernels = {at: _kernel(at, inner) for at in modules}
    fed = {_name(way.target) for way in inner if _name(way.source) in inputs}
    with_kernels = {at: _complete(module, kernels[at], at in fed) for at, module in modules.items() if module}
    return NirBrain(Brain(with_kernels, connections, inputs, outputs, dt=dt), kernels)


def _graph(name: str) -> Any:
    import nir

    try:
        elsewhere = parts_elsewhere(name)
        if not elsewhere:
            return nir.read(name)
    except Exception as error:  # h5py and nir raise many kinds for files that are none of theirs
        problem = Problem(
            "not NIR", name, f"{type(error).__name__}: {error}", "a whole file that nir.write has written"
        )
        raise BrainError("the NIR file cannot be read:", [problem]) from error
    problems = [Problem("not in the file", f"{name} {part}", what, fix) for part, what, fix in elsewhere]
    raise BrainError(f"{name} takes values from elsewhere: {counted(len(problems), 'part')}; none was read", problems)


def parts_elsewhere(path: str | os.PathLike[str]) -> list[tuple[str, str, str]]:
    """List the parts of an HDF5 file that are not in it: it may name other files, whose bytes a reader would take.

    Nothing that it names is opened.

    Args:
        path: the file.

    Returns:
        For each the path within the file, what is wrong, and how to mend it.

    Raises:
        OSError: it is not a regular file, or not HDF5.
    """
    import h5py

    check_input(path)
    with h5py.File(path, "r") as file:
        return list(_elsewhere(file, set()))


def _elsewhere(group: Any, seen: set[Any]) -> Iterator[tuple[str, str, str]]:
    import h5py
    from h5py import h5l, h5o  # pyright: ignore[reportAttributeAccessIssue]

    at = h5o.get_info(group.id)
    if (at.fileno, at.addr) in seen:  # hard links can make a circle
        return
    seen.add((at.fileno, at.addr))
    for name in group:
        where = f"{group.name.rstrip('/')}/{name}"
        kind = group.id.links.get_info(name.encode(errors="surrogateescape")).type
        if kind != h5l.TYPE_HARD:  # opening it would follow it
            yield where, _of_link(kind, group, name), _FIX
            continue
        part = group[name]
        if isinstance(part, h5py.Group):
            yield from _elsewhere(part, seen)
        elif isinstance(part, h5py.Dataset):
            if part.external:
                yield where, f"its values lie in the file {part.external[0][0]!r}", _FIX
            elif part.is_virtual:
                files = sorted({source.file_name for source in part.virtual_sources()})
                yield where, f"its values are put together from the files {', '.join(map(repr, files))}", _FIX


def _of_link(kind: int, group: Any, name: str) -> str:
    from h5py import h5l  # pyright: ignore[reportAttributeAccessIssue]

    if kind == h5l.TYPE_EXTERNAL:
        link = group.get(name, getlink=True)
        return f"it is a link to {link.path!r} in the file {link.filename!r}"
    return "it is a link, not a part of the file"


def _kind(node: Any) -> str:
    # By name: nir is imported only where a file is read or written.
    return type(node).__name__


def _name(node: str) -> str:
    """Return a node's name with only those characters that a path may have."""
    name = re.sub(r"\W", "_", node)
    return f"n{name}" if not name.isidentifier() or name in (INPUTS, "cache") else name


def _shape(node: Any) -> tuple[int, ...]:
    return tuple(int(size) for size in np.asarray(node.input_type["input"]).reshape(-1))


def _neuron(name: str, node: Any, dt: float, wrong: Any) -> Neuron | None:
    """Return the population of a node; report it and return None if it has no numbers for its neurons."""
    values = {
        key: np.asarray(value)
        for key, value in vars(node).items()
        if key not in ("input_type", "output_type", "metadata")
    }
    units = math.prod(_shape(node))
    if uneven := [key for key, value in values.items() if value.size not in (1, units)]:
        wrong(name, f"its {', '.join(uneven)} are not those of {units} neurons", f"one number, or {units}")
        return None
    each = {key: np.array([_number(one) for one in value.reshape(-1)]) for key, value in values.items()}
    tau = each.get("tau", each.get("tau_mem", np.zeros(1))) * MS_PER_S
    # NIR multiplies the current with r alone, Outlay with tau × resistance.
    rest, reset, threshold = (_setting(each[key]) for key in ("v_leak", "v_reset", "v_threshold"))
    soma = LeakySoma(rest, reset, _setting(tau), _setting(each["r"] / tau), threshold)
    return Neuron(units, soma=soma, synapses=_synapses(each, dt))


def _number(value: np.generic) -> float:
    """Return the shortest number that rounds to this one: 0.02, not 0.019999999552965164."""
    return float(str(value))


def _setting(values: np.ndarray) -> Any:
    """Return one number where it is that of all neurons, else a number for each."""
    return float(values[0]) if np.all(values == values[0]) else tuple(values.tolist())


def _synapses(each: Mapping[str, np.ndarray], dt: float) -> Synapses:
    if "tau_syn" not in each:
        return LinearSynapses()
    tau = each["tau_syn"] * MS_PER_S
    return TracedSynapses(tau=_setting(tau), scale=_setting(-np.expm1(-dt / tau) * each["w_in"]))


def _summed(ways: list[Route], modules: Mapping[str, Neuron | None]) -> Iterator[Route]:
    """Merge routes of the same source, target and delay: their weights add up."""
    together: dict[tuple[str, str, float], list[np.ndarray]] = {}
    for way in ways:
        population = modules[_name(way.target)]
        assert population is not None
        weight = np.eye(population.units) if way.weight is None else way.weight
        together.setdefault((way.source, way.target, way.delay), []).append(weight)
    for (source, target, delay), weights in together.items():
        yield Route(source, target, np.sum(weights, axis=0), delay)


def _connection(way: Route, inputs: Mapping[str, Any], dt: float) -> Connection:
    source, target = _name(way.source), f"{_name(way.target)}:in_spikes"
    if source in inputs:
        return Connection(f"{INPUTS}:{source}", target)
    # An edge of NIR takes no time and a connection of a Brain one step, which is added to the delay.
    steps = round(way.delay * MS_PER_S / dt)
    return Connection(f"{source}:out_spikes", target, (steps + 1) * dt if steps else None)


def _kernel(name: str, ways: list[Route]) -> np.ndarray:
    parts = [way.weight for way in ways if _name(way.target) == name and way.weight is not None]
    return np.concatenate(parts, axis=1).astype(np.float32)


def _complete(neurons: Neuron, kernel: np.ndarray, graded: bool) -> Neuron:
    synapses = dataclasses.replace(neurons.synapses, kernel=GivenKernel(kernel))
    return dataclasses.replace(neurons, synapses=synapses, graded=graded)


Wrong = Callable[[str, str, str], None]
"""Takes what is wrong: node, what, fix."""


@dataclass(frozen=True)
class Route:
    """A path of a NIR graph from one input or population to the next population or output.

    Attributes:
        source: an `Input` or a population.
        target: a population or an `Output`.
        weight: what spikes are multiplied with, (target, source); None if the path has no linear node.
        delay: the sum of the delays on the path, in seconds.
        to_output: whether it ends in an `Output`.
    """

    source: str
    target: str
    weight: np.ndarray | None = None
    delay: float = 0.0
    to_output: bool = False


def routes(graph: Any, wrong: Wrong) -> list[Route]:
    """Return every route of a graph from an input or a population to the next population or output.

    Args:
        graph: the graph.
        wrong: takes each node that is not understood.
    """
    known = {*POPULATIONS, "Input", "Output", "Linear", "Affine", "Delay"}
    for name, node in graph.nodes.items():
        kind = _kind(node)
        if kind not in known:
            wrong(name, f"a Brain knows no {kind}", f"a graph of {', '.join(sorted(known))}")
        elif kind == "Affine" and np.any(node.bias):
            wrong(name, "it adds a bias, and synapses only multiply", "a bias of 0, or none")
        elif kind == "Delay" and not _is_one(node.delay):
            wrong(name, "its delays differ from each other, and a connection has one", "one delay for all")
    starts = [name for name, node in graph.nodes.items() if _kind(node) in (*POPULATIONS, "Input")]
    return [way for start in starts for way in _from(graph, Route(start, start), wrong)]


def _from(graph: Any, way: Route, wrong: Wrong) -> Iterator[Route]:
    """Yield the routes that continue one from its end."""
    for target in [after for before, after in graph.edges if before == way.target]:
        node, there = graph.nodes[target], replace(way, target=target)
        kind = _kind(node)
        if kind in POPULATIONS:
            if _kind(graph.nodes[way.source]) == "Input" and way.delay:
                wrong(target, f"a delay comes between it and the input {way.source}", "delay what is fed in")
            yield there
        elif kind == "Output":
            if way.source != way.target or _kind(graph.nodes[way.source]) not in POPULATIONS:
                wrong(target, f"it puts out not spikes but what {way.target} makes of them", "spikes of a population")
            yield replace(there, to_output=True)
        elif kind in ("Linear", "Affine"):
            if way.weight is not None:
                wrong(target, f"it follows another linear node, {way.target}", "one with the product of their weights")
                continue
            yield from _from(graph, replace(there, weight=np.asarray(node.weight)), wrong)
        elif kind == "Delay" and _is_one(node.delay):
            delay = way.delay + float(np.asarray(node.delay).reshape(-1)[0])
            yield from _from(graph, replace(there, delay=delay), wrong)


def _is_one(values: Any) -> bool:
    values = np.asarray(values).reshape(-1)
    return values.size > 0 and bool(np.all(values == values[0]))
