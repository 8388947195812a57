"""Spark's neurons as the tables that Outlay reads: older ones name four components, newer ones wire them."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from outlay.brain.files.scfg.components import Path, Table, Wrong, component_table, own_settings
from outlay.brain.files.scfg.names import COMPONENTS
from outlay.brain.files.settings import TYPE as OUR_TYPE

KINDS = ("delays", "synapses", "soma", "learning_rule")
SPECS = "modules_specs"
CALL = "__call__"
_READS = {"delays": {CALL}, "synapses": {CALL, "delays"}, "soma": {"synapses"}}
"""What each component may read of; a learning rule reads of all."""
_LEAKY = ("leaky", "refractory_leaky", "strict_refractory_leaky", "adaptive_leaky")


def neuron_table(config: Mapping[str, Any], path: Path, wrong: Wrong, *, ports: Collection[str]) -> Table:
    """The table of a neuron.

    Args:
        config: its settings in Spark.
        path: where they are, for messages.
        wrong: takes what is wrong.
        ports: what is connected to it.
    """
    components = _wired(config, path, wrong, ports) if SPECS in config else _named(config, path, wrong, ports)
    named = {SPECS, "max_delay", *KINDS, *(f"{kind}_config" for kind in KINDS)}
    rest = {key: value for key, value in own_settings(config).items() if key not in named}
    units = config.get("units")
    count = {"count": math.prod(units)} if isinstance(units, list) else {"count": units} if units else {}
    return {OUR_TYPE: "neuron", **count, **rest, **{kind: table for kind, table in components if table is not None}}


def _named(
    config: Mapping[str, Any], path: Path, wrong: Wrong, ports: Collection[str]
) -> Iterator[tuple[str, Table | None]]:
    """The components of an older neuron: `soma`, or in still older files `soma_config`, and so on."""
    for kind in KINDS:
        key = kind if kind in config else f"{kind}_config"
        if isinstance(config.get(key), Mapping):
            yield kind, component_table(kind, config[key], (*path, key), wrong, said=None, ports=ports)


def _wired(
    config: Mapping[str, Any], path: Path, wrong: Wrong, ports: Collection[str]
) -> Iterator[tuple[str, Table | None]]:
    """The components of a newer neuron, which is a graph of them; only the usual graph is known here."""
    specs = {spec["name"]: spec for spec in config[SPECS]}
    kinds = {name: _kind_of(spec) for name, spec in specs.items()}
    for name, spec in specs.items():
        at, kind = (*path, SPECS, name), kinds[name]
        if kind is None:
            what = f"Outlay has no component {_class_of(spec)!r} for its neurons"
            wrong(at, "unknown component", what, "a neuron of delays, synapses, a soma and a learning rule")
            continue
        _check_wiring(spec, kind, kinds, at, wrong)
        table = component_table(kind, spec["config"], (*at, "config"), wrong, said=_class_of(spec), ports=ports)
        yield kind, _as_before(table, spec["config"], at, wrong) if kind == "soma" and table else table


def _kind_of(spec: Mapping[str, Any]) -> str | None:
    return next((kind for kind, names in COMPONENTS.items() if _class_of(spec) in names), None)


def _class_of(spec: Mapping[str, Any]) -> str:
    return spec["module_cls"]["__module_type__"]


def _check_wiring(
    spec: Mapping[str, Any], kind: str, kinds: Mapping[str, str | None], path: Path, wrong: Wrong
) -> None:
    for port, origins in spec.get("inputs", {}).items():
        of = {kinds.get(origin["origin"], origin["origin"]) for origin in origins if not origin.get("is_property")}
        if kind in _READS and of - _READS[kind]:
            what = f"{kind} reads {port} of {', '.join(map(str, sorted(of, key=str)))}"
            wrong(path, "not understood", what, "the usual order: delays, synapses, soma, learning rule")


def _as_before(table: Table, config: Mapping[str, Any], path: Path, wrong: Wrong) -> Table:
    """A newer soma by the equations of the older ones.

    Newer leaky somas take resistance × current in place of tau × resistance × current. The newest have one class for
    what once were four: `cooldown`, `clamp_duration` and the threshold's and the current's `_delta` say which one it
    is; and they are ready in the step at which older ones would become ready in the next.
    """
    table = dict(table)
    if table[OUR_TYPE] in _LEAKY and {"resistance", "potential_tau"} <= table.keys():
        table["resistance"] = table["resistance"] / table["potential_tau"]
    if "adaptation_subthreshold" not in config or table[OUR_TYPE] not in _LEAKY:
        return table
    mechanisms = {key for key in ("cooldown", "clamp_duration", "threshold_delta", "adaptation_delta") if key in table}
    names = {
        frozenset(): "leaky",
        frozenset({"cooldown"}): "refractory_leaky",
        frozenset({"cooldown", "threshold_delta"}): "adaptive_leaky",
    }
    if frozenset(mechanisms) not in names:
        what = f"a leaky soma with {', '.join(sorted(mechanisms))}"
        wrong(path, "not understood", what, "cooldown alone, or cooldown and threshold_delta, or neither")
        return table
    kept = {"threshold_tau"} if "threshold_delta" in mechanisms else set()
    table = {key: v for key, v in table.items() if key in kept or key not in ("threshold_tau", *_CURRENT)}
    if "cooldown" in table:
        table["cooldown"] = max(0.0, table["cooldown"] - config.get("dt", 1.0))
    return {**table, OUR_TYPE: names[frozenset(mechanisms)]}


_CURRENT = ("adaptation_tau", "adaptation_subthreshold")
