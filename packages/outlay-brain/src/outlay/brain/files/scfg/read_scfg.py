"""Read Brains from Spark's model files."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from outlay.brain.brain import Brain
from outlay.brain.check_modules import is_time
from outlay.brain.connections import WHOLE, Connection, split_end
from outlay.brain.files.scfg.components import (
    MODULES,
    NEURONS,
    ONE_PORT,
    Table,
    known_names,
    not_here,
    own_settings,
)
from outlay.brain.files.scfg.neurons import CALL, SPECS, class_of, count_of, neuron_table, ports_of
from outlay.brain.files.scfg.plain import EDITOR, TYPE, malformed, plain
from outlay.brain.files.settings import TYPE as OUR_TYPE
from outlay.brain.files.settings import Unread, read_table
from outlay.brain.module import BrainError, Module, Shape
from outlay.brain.neuron import Neuron
from outlay.brain.registry import MODULE
from outlay.brain.somas.soma import in_steps
from outlay.errors import Problem
from outlay.kit import INPUTS, KeyPath, counted, did_you_mean


def read_scfg(content: bytes, *, name: str, inputs: Mapping[str, Shape]) -> Brain:
    """Return the Brain in a `.scfg` file: JSON or xz, with `modules_map` (older) or `modules_specs` (newer).

    Args:
        content: the content of the file.
        name: the name of the file, for messages.
        inputs: shapes of the inputs that the file does not say.

    Raises:
        BrainError: the file is damaged, or holds something that is not understood; every such thing is named.
    """
    file = _ScfgFile(content, name)
    if file.is_neuron:
        what = f"it holds {file.config.get(TYPE)!r}, which is a neuron, not a Brain"
        fix = f"outlay.brain.read_neuron({name!r}, units=12) makes a Neuron of it, to put among the modules of a Brain"
        raise BrainError("the .scfg file cannot be read:", [Problem("not a Brain", name, what, fix)])
    brain = file.brain(inputs)
    file.check()
    assert brain is not None  # without one there are problems
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
    file = _ScfgFile(content, name)
    if not file.is_neuron:
        what = f"it holds {file.config.get(TYPE)!r}"
        file.wrong((), "not a neuron", what, "outlay.brain.read_brain, if it is a Brain")
    elif units is None and count_of(file.config) is None:
        fix = f"outlay.brain.read_neuron({name!r}, units=12)"
        file.wrong((), "missing units", "the file does not say how many neurons", fix)
    file.check()
    config = {**file.config, **({} if units is None else {"units": [units]})}
    ports = ports_of(config).inputs.values()
    table = neuron_table(config, (), file.wrong, ports=ports, is_newer=file.is_newer)
    neuron = read_table(table, MODULE, (), file.wrong)
    file.check()
    return neuron


class _ScfgFile:
    """A file that is being read: what it holds, and what is wrong with it.

    Raises:
        BrainError: any of it has another shape than Spark writes.
    """

    def __init__(self, content: bytes, name: str) -> None:
        held = plain(content, name=name)
        self.name, self.config, self.is_neuron, self.is_newer = name, held.config, held.is_neuron, held.is_newer
        self.problems = malformed(held.config, name=name)
        self.check()
        # Older files have a table of the modules, newer ones a list.
        listed = {spec["name"]: spec for spec in held.config.get("modules_specs") or ()}
        self.specs: dict[str, Mapping[str, Any]] = {**(held.config.get("modules_map") or {}), **listed}

    def wrong(self, path: KeyPath, kind: str, what: str, fix: str) -> None:
        """Add a problem at a path in the file."""
        self.problems.append(Problem(kind, f"{self.name} {'.'.join(path)}", what, fix))

    def check(self) -> None:
        """Raise if something is wrong with the file."""
        if self.problems:
            count = counted(len(self.problems), "problem")
            raise BrainError(f"{self.name} cannot be read: {count}", self.problems)

    def brain(self, inputs: Mapping[str, Shape]) -> Brain | None:
        """Return the Brain; None if it cannot be built, which is among the problems then."""
        modules = {part: self._module(part, spec) for part, spec in self.specs.items()}
        connections = [connection for part, spec in self.specs.items() for connection in self._connections(part, spec)]
        settings = {
            "inputs": self._inputs(modules, connections, inputs),
            "outputs": self._outputs(),
            **{key: value for key in ("dt", "dtype") if (value := self._one(key)) is not None},
        }
        dt = settings.get("dt", Brain.dt)
        modules = {name: _on_the_grid(one, dt) if isinstance(one, Neuron) else one for name, one in modules.items()}
        try:
            return Brain(modules, connections, **settings)
        except BrainError as error:
            unread = {part for part, module in modules.items() if isinstance(module, Unread)}
            # What is wrong with a module that could not be read is reported already.
            self.problems += [p for p in error.problems if p.kind != "setting" or p.where not in unread]
            return None

    def _module(self, name: str, spec: Mapping[str, Any]) -> Module:
        """Return the module that a spec describes, or a stand-in if it is not understood."""
        path = ("modules", name, "config")
        table, module = self._table(spec, path), None
        if table is not None:
            module = read_table(table, MODULE, (), lambda at, *problem: self.wrong((*path, *at), *problem))
        return module or Unread(tuple(_port(spec, port) for port in spec.get("inputs") or ()))

    def _table(self, spec: Mapping[str, Any], path: KeyPath) -> Table | None:
        spark_class, config = class_of(spec), spec["config"]
        if spark_class in NEURONS or _is_wired(spec):
            return neuron_table(config, path, self.wrong, ports=spec.get("inputs") or (), is_newer=self.is_newer)
        if spark_class not in MODULES:
            known = known_names([*MODULES, *NEURONS])
            self.wrong(path[:-1], "unknown module", not_here("module", spark_class), known)
            return None
        table = {OUR_TYPE: MODULES[spark_class], **own_settings(config)}
        if "glue" in table:
            glue = table["glue"]
            table["glue"] = [bool(each) for each in glue] if isinstance(glue, list) else bool(glue)
        if spark_class.startswith("signal_") and "trace" in (spec.get("inputs") or ()):
            table["chained"] = True
        return table

    def _connections(self, name: str, spec: Mapping[str, Any]) -> Iterator[Connection]:
        for port, origins in (spec.get("inputs") or {}).items():
            target = f"{name}:{_port(spec, port)}"
            for origin in origins:
                if origin.get("is_property"):
                    what = f"{target} reads the property {origin['origin']}.{origin['port']}"
                    self.wrong(("modules", name, "inputs", port), "not understood", what, "connections between ports")
                    continue
                part = INPUTS if origin["origin"] == CALL else origin["origin"]
                yield Connection(f"{part}:{_written(self.specs.get(part), origin['port'])}", target)
        if spec.get("effects"):
            self.wrong(("modules", name, "effects"), "not understood", "modules that write into others", "ports")

    def _inputs(
        self, modules: Mapping[str, Module], connections: list[Connection], given: Mapping[str, Shape]
    ) -> dict[str, Shape]:
        """Return the shape of each input: as given, as in the file, or (1,) if every reader takes one number."""
        declared, drawn = self.config.get("input_map") or {}, self.config.get(EDITOR) or {}
        shapes = {}
        for name in dict.fromkeys(c.origin.partition(":")[2] for c in connections if c.origin.startswith(f"{INPUTS}:")):
            readers = [split_end(c.target) for c in connections if c.origin == f"{INPUTS}:{name}"]
            one_number = all(_reads_one_number(modules[part], port) for part, port in readers)
            shape = _shape_in(declared.get(name)) or ((1,) if one_number else _shape_in(drawn.get(name)))
            # Where nobody declared a shape, the graph editor writes this one.
            if name not in given and not (shape and (one_number or name in declared or list(shape) != [1])):
                fix = f'outlay.brain.read_brain(path, inputs={{"{name}": (4,)}}), or --shape {name}=4'
                self.wrong(("inputs", name), "missing shape", "the file does not say the shape of this input", fix)
            shapes[name] = tuple(given.get(name) or shape or (1,))
        for name in given.keys() - shapes.keys():
            what, fix = f"the file has no input {name!r}", did_you_mean(name, shapes)
            self.wrong(("inputs", name), "unknown input", what, fix)
        return shapes

    def _outputs(self) -> dict[str, str]:
        outputs = {}
        for name, entry in (self.config.get("output_map") or {}).items():
            if "input" in entry:
                origin = entry["input"]["origin"]
                outputs[name] = f"{origin}:{_written(self.specs.get(origin), entry['input']['port'])}"
            else:
                from outlay.brain.files.scfg.older import listed_outputs

                outputs |= listed_outputs(name, entry)
        for part, spec in self.specs.items():
            outputs |= {name: f"{part}:{_written(spec, port)}" for name, port in (spec.get("outputs") or {}).items()}
        return outputs

    def _one(self, key: str) -> Any:
        """Return a setting that Spark repeats in every module and a Brain has once; report modules that differ."""
        all_settings = (self.config, *(spec["config"] for spec in self.specs.values()))
        values = [settings[key] for settings in all_settings if key in settings]
        different = [value for at, value in enumerate(values) if value not in values[:at]]
        if len(different) > 1:
            what = f"modules differ in {key}: {', '.join(map(str, different))}"
            self.wrong((key,), "not understood", what, f"one {key} for the whole Brain")
        return next(iter(different), None)


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


def _reads_one_number(module: Module, port: str) -> bool:
    return isinstance(module, Neuron) and module.learning_rule is not None and port in module.learning_rule.reads


def _shape_in(spec: Any) -> Shape | None:
    """Return the shape that the file declares for a port, if any."""
    return (spec.get("shape") or (spec.get("spec") or {}).get("shape")) if isinstance(spec, Mapping) else None


def _on_the_grid(neuron: Neuron, dt: Any) -> Neuron:
    """Return a population whose waiting times are whole numbers of steps, to which Spark rounds them."""
    soma: Any = neuron.soma
    waits = {name: getattr(soma, name, None) for name in ("cooldown", "clamp_duration")}
    rounded = {
        name: in_steps(time, dt) * dt
        for name, time in waits.items()
        if isinstance(time, int | float) and is_time(dt) and time >= 0
    }
    changed: dict[str, Any] = {name: time for name, time in rounded.items() if abs(time - waits[name]) > WHOLE * dt}
    return dataclasses.replace(neuron, soma=dataclasses.replace(soma, **changed)) if changed else neuron
