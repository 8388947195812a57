"""Read Brains from Spark's model files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from outlay.brain.brain import Brain
from outlay.brain.connections import Connection, split_end
from outlay.brain.files.scfg.components import (
    MODULES,
    NEURONS,
    ONE_PORT,
    Path,
    Table,
    Wrong,
    known_names,
    not_here,
    own_settings,
)
from outlay.brain.files.scfg.neurons import CALL, SPECS, class_of, count_of, neuron_table, ports_of
from outlay.brain.files.scfg.plain import EDITOR, TYPE, Plain, malformed, plain
from outlay.brain.files.settings import TYPE as OUR_TYPE
from outlay.brain.files.settings import Unread, read_table
from outlay.brain.module import BrainError, Module, Shape
from outlay.brain.neuron import Neuron
from outlay.brain.registry import MODULE
from outlay.core.error_types import Problem
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.graph.step_graph import INPUTS


def read_scfg(content: bytes, *, name: str, inputs: Mapping[str, Shape]) -> Brain:
    """Return the Brain in a `.scfg` file: JSON or xz, with `modules_map` (older) or `modules_specs` (newer).

    Args:
        content: the content of the file.
        name: the name of the file, for messages.
        inputs: shapes of the inputs that the file does not say.

    Raises:
        BrainError: the file is damaged, or holds something that is not understood; every such thing is named.
    """
    held, problems = _whole(content, name), []
    config = held.config
    if held.is_neuron:
        what = f"it holds {config.get(TYPE)!r}, which is a neuron, not a Brain"
        fix = f"outlay.brain.read_neuron({name!r}, units=12) makes a Neuron of it, to put among the modules of a Brain"
        raise BrainError("the .scfg file cannot be read:", [Problem("not a Brain", name, what, fix)])

    wrong = _collecting(problems, name)
    specs = _specs(config)
    modules = {part: _module(part, spec, wrong, held.is_newer) for part, spec in specs.items()}
    connections = [c for part, spec in specs.items() for c in _connections(part, spec, specs, wrong)]
    settings = {
        "inputs": _inputs(config, modules, connections, inputs, wrong),
        "outputs": _outputs(config, specs),
        **{key: value for key in ("dt", "dtype") if (value := _one(key, config, specs, wrong)) is not None},
    }
    try:
        brain = Brain(modules, connections, **settings)
    except BrainError as error:
        unread = {part for part, module in modules.items() if isinstance(module, Unread)}
        # What is wrong with a module that could not be read is told already.
        problems += [problem for problem in error.problems if problem.kind != "setting" or problem.where not in unread]
    if problems:
        raise BrainError(f"{name} cannot be read: {counted(len(problems), 'problem')}", problems)
    return brain


def read_scfg_neuron(content: bytes, *, name: str, units: int | None) -> Neuron:
    """Return the neuron in a `.scfg` file.

    Args:
        content: the content of the file.
        name: the name of the file, for messages.
        units: how many neurons; as many as the file says if None.

    Raises:
        BrainError: the file is damaged, or holds no neuron, or something that is not understood; all of it is named.
    """
    held, problems = _whole(content, name), []
    wrong = _collecting(problems, name)
    if not held.is_neuron:
        wrong((), "not a neuron", f"it holds {held.config.get(TYPE)!r}", "outlay.brain.read_brain, if it is a Brain")
    elif units is None and count_of(held.config) is None:
        wrong(
            (),
            "missing units",
            "the file does not say how many neurons",
            f"outlay.brain.read_neuron({name!r}, units=12)",
        )
    else:
        config = {**held.config, **({} if units is None else {"units": [units]})}
        ports = ports_of(config).inputs.values()
        table = neuron_table(config, (), wrong, ports=ports, is_newer=held.is_newer)
        neuron = read_table(table, MODULE, (), wrong)
    if problems:
        raise BrainError(f"{name} cannot be read: {counted(len(problems), 'problem')}", problems)
    return neuron


def _collecting(problems: list[Problem], name: str) -> Wrong:
    """Return a function that adds a problem at a path in a file."""

    def wrong(path: Path, kind: str, what: str, fix: str) -> None:
        problems.append(Problem(kind, f"{name} {'.'.join(path)}", what, fix))

    return wrong


def _whole(content: bytes, name: str) -> Plain:
    """Return what a file holds; raise if any of it has another shape than Spark writes."""
    held = plain(content, name=name)
    if problems := malformed(held.config, name=name):
        raise BrainError(f"{name} cannot be read: {counted(len(problems), 'problem')}", problems)
    return held


def _specs(config: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the modules of the file by name: older files have a table of them, newer ones a list."""
    listed = config.get("modules_map") or {}
    return {**listed, **{spec["name"]: spec for spec in config.get("modules_specs") or ()}}


def _module(name: str, spec: Mapping[str, Any], wrong: Wrong, is_newer: bool) -> Module:
    """Return the module that a spec describes, or a stand-in if it is not understood."""
    path = ("modules", name, "config")
    table = _table(spec, path, wrong, is_newer)
    module = (
        None if table is None else read_table(table, MODULE, (), lambda at, *problem: wrong((*path, *at), *problem))
    )
    return module or Unread(tuple(_port(spec, port) for port in spec.get("inputs") or ()))


def _port(spec: Mapping[str, Any], port: str) -> str:
    """Return Outlay's name of an input port of a module."""
    if _is_wired(spec):
        return ports_of(spec["config"]).inputs.get(port, port)
    return ONE_PORT.get(MODULES.get(class_of(spec), ""), port)


def _written(spec: Mapping[str, Any] | None, port: str) -> str:
    """Return Outlay's name of an output port of a module."""
    if spec is None:
        return port
    if _is_wired(spec):
        return ports_of(spec["config"]).outputs.get(port, port)
    is_only = MODULES.get(class_of(spec)) == "sampler" and spec["config"].get("num_outputs", 1) == 1
    return "output" if is_only and port == "output_0" else port


def _is_wired(spec: Mapping[str, Any]) -> bool:
    return SPECS in spec["config"]


def _table(spec: Mapping[str, Any], path: Path, wrong: Wrong, is_newer: bool) -> Table | None:
    spark_class, config = class_of(spec), spec["config"]
    if spark_class in NEURONS or _is_wired(spec):
        return neuron_table(config, path, wrong, ports=spec.get("inputs") or (), is_newer=is_newer)
    if spark_class not in MODULES:
        known = known_names([*MODULES, *NEURONS])
        wrong(path[:-1], "unknown module", not_here("module", spark_class), known)
        return None
    table = {OUR_TYPE: MODULES[spark_class], **own_settings(config)}
    if "glue" in table:
        glue = table["glue"]
        table["glue"] = [bool(each) for each in glue] if isinstance(glue, list) else bool(glue)
    if spark_class.startswith("signal_") and "trace" in (spec.get("inputs") or ()):
        table["chained"] = True
    return table


def _connections(
    name: str, spec: Mapping[str, Any], specs: Mapping[str, Mapping[str, Any]], wrong: Wrong
) -> Iterator[Connection]:
    for port, origins in (spec.get("inputs") or {}).items():
        target = f"{name}:{_port(spec, port)}"
        for origin in origins:
            if origin.get("is_property"):
                what = f"{target} reads the property {origin['origin']}.{origin['port']}"
                wrong(("modules", name, "inputs", port), "not understood", what, "connections between ports")
                continue
            part = INPUTS if origin["origin"] == CALL else origin["origin"]
            yield Connection(f"{part}:{_written(specs.get(part), origin['port'])}", target)
    if spec.get("effects"):
        wrong(("modules", name, "effects"), "not understood", "modules that write into others", "ports")


def _inputs(
    config: Mapping[str, Any],
    modules: Mapping[str, Module],
    connections: list[Connection],
    given: Mapping[str, Shape],
    wrong: Wrong,
) -> dict[str, Shape]:
    """Return the shape of each input: as given, as in the file, or (1,) if all that read it take one number."""
    declared, drawn = config.get("input_map") or {}, config.get(EDITOR) or {}
    shapes = {}
    for name in dict.fromkeys(c.origin.partition(":")[2] for c in connections if c.origin.startswith(f"{INPUTS}:")):
        readers = [split_end(c.target) for c in connections if c.origin == f"{INPUTS}:{name}"]
        one_number = all(_reads_one_number(modules[part], port) for part, port in readers)
        shape = _shape_in(declared.get(name)) or ((1,) if one_number else _shape_in(drawn.get(name)))
        # Where nobody declared a shape, the graph editor writes this one.
        if name not in given and not (shape and (one_number or name in declared or list(shape) != [1])):
            fix = f'outlay.brain.read_brain(path, inputs={{"{name}": (4,)}}), or --shape {name}=4'
            wrong(("inputs", name), "missing shape", "the file does not say the shape of this input", fix)
        shapes[name] = tuple(given.get(name) or shape or (1,))
    for name in given.keys() - shapes.keys():
        wrong(("inputs", name), "unknown input", f"the file has no input {name!r}", did_you_mean(name, shapes))
    return shapes


def _reads_one_number(module: Module, port: str) -> bool:
    return isinstance(module, Neuron) and module.learning_rule is not None and port in module.learning_rule.reads


def _shape_in(spec: Any) -> Shape | None:
    """Return the shape that the file declares for a port, if any."""
    return (spec.get("shape") or (spec.get("spec") or {}).get("shape")) if isinstance(spec, Mapping) else None


def _outputs(config: Mapping[str, Any], specs: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    outputs = {}
    for name, entry in (config.get("output_map") or {}).items():
        if "input" in entry:
            origin = entry["input"]["origin"]
            outputs[name] = f"{origin}:{_written(specs.get(origin), entry['input']['port'])}"
        else:  # the oldest files list the ports of a module
            outputs |= {f"{name}_{port}" if len(entry) > 1 else name: f"{name}:{port}" for port in entry}
    for part, spec in specs.items():
        outputs |= {name: f"{part}:{_written(spec, port)}" for name, port in (spec.get("outputs") or {}).items()}
    return outputs


def _one(key: str, config: Mapping[str, Any], specs: Mapping[str, Mapping[str, Any]], wrong: Wrong) -> Any:
    """Return a setting that Spark repeats in every module and a Brain has once; report modules that differ in it."""
    values = [settings[key] for settings in (config, *(spec["config"] for spec in specs.values())) if key in settings]
    different = [value for at, value in enumerate(values) if value not in values[:at]]
    if len(different) > 1:
        what = f"modules differ in {key}: {', '.join(map(str, different))}"
        wrong((key,), "not understood", what, f"one {key} for the whole Brain")
    return next(iter(different), None)
