"""Spark's neurons as the tables that Outlay reads: older ones name four components, newer ones wire them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from outlay.brain.files.scfg.components import (
    COMPONENTS,
    LEAKY,
    Table,
    component_table,
    known_names,
    not_here,
    own_settings,
)
from outlay.brain.files.scfg.plain import NEWER
from outlay.brain.files.settings import TYPE as OUR_TYPE
from outlay.brain.files.settings import Report
from outlay.kit import KeyPath

KINDS = ("delays", "synapses", "soma", "learning_rule")
SPECS = "modules_specs"
CALL = "__call__"
_READS = {
    "delays": {CALL},
    "synapses": {CALL, "delays"},
    "soma": {"synapses"},
    "pre_spikes": {CALL, "delays"},
    "post_spikes": {"soma"},
}
"""What each component may read of; a learning rule by port, of others of outside."""


@dataclass(frozen=True)
class Ports:
    """How a neuron's own ports are called here.

    Attributes:
        inputs: those that it reads.
        outputs: those that it writes.
    """

    inputs: Mapping[str, str]
    outputs: Mapping[str, str]


def ports_of(config: Mapping[str, Any]) -> Ports:
    """Return the ports of a neuron that is a graph of components: what they read from outside, what the soma writes."""
    inputs, outputs = {}, {}
    for spec in config.get(SPECS) or ():
        kind = _kind_of(spec)
        for port, origins in (spec.get("inputs") or {}).items():
            own_port = port if kind == "learning_rule" else "in_spikes"
            inputs |= {o["port"]: own_port for o in origins if o["origin"] == CALL and port != "pre_spikes"}
        if kind == "soma":
            outputs |= {name: "out_spikes" for name, port in (spec.get("outputs") or {}).items() if port == "spikes"}
    return Ports(inputs, outputs)


def neuron_table(
    config: Mapping[str, Any], path: KeyPath, wrong: Report, *, ports: Collection[str], is_newer: bool
) -> Table:
    """Return the table of a neuron.

    Args:
        config: its settings in Spark.
        path: where they are, for messages.
        wrong: takes what is wrong.
        ports: what is connected to it.
        is_newer: whether Spark 1.1.1 or a later version wrote it.
    """
    wired = SPECS in config
    components = _wired(config, path, wrong, is_newer) if wired else _of_older(config, path, wrong, ports)
    named = {SPECS, "max_delay", *KINDS, *(f"{kind}_config" for kind in KINDS)}
    rest = {key: value for key, value in own_settings(config).items() if key not in named}
    count, rate = count_of(config), rest.get("inhibitory_rate")
    if wired and not is_newer:
        from outlay.brain.files.scfg.older import inhibitory_rate

        rate = inhibitory_rate(config[SPECS], rate)
    if count and isinstance(rate, int | float):
        rest["inhibitory_rate"] = int(count * rate) / count  # Spark rounds down
    tables = {kind: table for kind, table in components if table is not None}
    return {OUR_TYPE: "neuron", **({"count": count} if count else {}), **rest, **tables}


def count_of(config: Mapping[str, Any]) -> int | None:
    """Return the number of neurons; None if the file does not say it."""
    units = config.get("units")
    return (math.prod(units) if isinstance(units, list) else units) if units else None


def _of_older(
    config: Mapping[str, Any], path: KeyPath, wrong: Report, ports: Collection[str]
) -> Iterator[tuple[str, Table | None]]:
    from outlay.brain.files.scfg.older import named_components

    for kind, settings, at in named_components(config, KINDS, path):
        yield kind, component_table(kind, settings, at, wrong, spark_class=None, ports=ports)


def _wired(
    config: Mapping[str, Any], path: KeyPath, wrong: Report, is_newer: bool
) -> Iterator[tuple[str, Table | None]]:
    """Yield the components of a newer neuron, which is a graph of them; Outlay knows only the usual graph."""
    specs = {spec["name"]: spec for spec in config[SPECS]}
    kinds = {name: _kind_of(spec) for name, spec in specs.items()}
    of_kind: dict[str, str] = {}
    for name, spec in specs.items():
        at, kind = (*path, SPECS, name), kinds[name]
        if kind is None:
            known = known_names(known for names in COMPONENTS.values() for known in names)
            wrong(at, "unknown component", not_here("component", class_of(spec)), known)
            continue
        if of_kind.setdefault(kind, name) != name:
            what = f"{of_kind[kind]} and {name} are both {kind}"
            wrong(at, "not understood", what, f"one {kind.replace('_', ' ')} for a neuron")
            continue
        _check_wiring(spec, kind, specs, kinds, at, wrong)
        ports = spec.get("inputs") or ()
        spark_class = class_of(spec)
        table = component_table(
            kind, spec["config"], (*at, "config"), wrong, spark_class=spark_class, ports=ports, is_newer=is_newer
        )
        yield kind, _as_ours(table, spec["config"]) if kind == "soma" and table else table


def _kind_of(spec: Mapping[str, Any]) -> str | None:
    return next((kind for kind, names in COMPONENTS.items() if class_of(spec) in names), None)


def class_of(spec: Mapping[str, Any]) -> str:
    """Return the name by which Spark registers the class of a module or a component."""
    cls = spec["module_cls"]
    return str(cls.get("__module_type__")) if isinstance(cls, Mapping) else str(cls)


def _check_wiring(
    spec: Mapping[str, Any],
    kind: str,
    specs: Mapping[str, Any],
    kinds: Mapping[str, str | None],
    path: KeyPath,
    wrong: Report,
) -> None:
    """Report a component that is wired in another way than in Outlay's neuron."""
    for port, origins in (spec.get("inputs") or {}).items():
        of = {kinds.get(origin["origin"], origin["origin"]) for origin in origins if not origin.get("is_property")}
        if of - _READS.get(kind, _READS.get(port, {CALL})):
            what = f"{kind} reads {port} of {', '.join(map(str, sorted(of, key=str)))}"
            wrong(path, "not understood", what, "the usual order: delays, synapses, soma, learning rule")
    if kind != "learning_rule":
        return
    for name, other in specs.items():
        if kinds[name] != "synapses":
            continue
        if _origins(spec, "pre_spikes") != _origins(other, "spikes"):
            what = f"its pre_spikes are not the spikes that {name} reads"
            wrong(path, "not understood", what, "a rule that sees what its synapses see")
        if _origins(other, "kernel", of="effects") != {spec["name"]}:
            what = f"the kernel of {name} is not what it writes"
            wrong(path, "not understood", what, f"the effect {spec['name']}:kernel on {name}, or no rule")


def _origins(spec: Mapping[str, Any], port: str, *, of: str = "inputs") -> set[str]:
    return {origin["origin"] for origin in (spec.get(of) or {}).get(port, ())}


def _as_ours(table: Table, config: Mapping[str, Any]) -> Table:
    """Convert a soma of a neuron that is a graph.

    Its leaky ones take resistance × current in place of tau × resistance × current. Since Spark 1.1.1, one class with
    four mechanisms has taken the place of several; one without any is a plain soma.
    """
    table, tau = dict(table), table.get("potential_tau")
    if (
        table[OUR_TYPE] in LEAKY
        and isinstance(tau, int | float)
        and tau
        and isinstance(table.get("resistance"), int | float)
    ):
        table["resistance"] = table["resistance"] / tau
    if not NEWER & config.keys():
        return table
    membrane = next(name for name in ("exponential", "leaky", "izhikevich") if table[OUR_TYPE].endswith(name))
    if any(mechanism in table for mechanism in _MECHANISMS):
        return {**table, OUR_TYPE: f"composed_{membrane}"}
    idle = ("threshold_tau", "adaptation_tau", "adaptation_subthreshold")
    return {**{key: value for key, value in table.items() if key not in idle}, OUR_TYPE: membrane}


_MECHANISMS = ("cooldown", "clamp_duration", "threshold_delta", "adaptation_delta")
"""What switches the mechanisms of a newer soma on."""
