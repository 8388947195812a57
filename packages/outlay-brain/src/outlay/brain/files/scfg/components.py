"""Spark's names of modules, components and settings; and its components as the tables that Outlay reads."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from outlay.brain.check_modules import is_time
from outlay.brain.files.scfg.plain import EDITOR, TYPE
from outlay.brain.files.settings import TYPE as OUR_TYPE
from outlay.brain.files.settings import Report
from outlay.kit import KeyPath

Table = dict[str, Any]

_CLASS = "__class_ref__"
_METADATA = (TYPE, _CLASS, EDITOR, "__metadata__")
_DRAWN = ("delays", "delay_initializer")

NEURONS = ("lif_neuron", "alif_neuron", "adex_neuron", "ad_ex_neuron", "neuron")
MODULES = {
    name: name
    for name in (
        *("linear_spiker", "poisson_spiker", "topological_linear_spiker", "topological_poisson_spiker"),
        *("exponential_integrator", "tanh_integrator", "signal_accumulator", "signal_average", "concat", "sampler"),
    )
} | {"concat_reshape": "concat"}


def _named(suffix: str, *names: str) -> dict[str, str]:
    """Map Spark's names to Outlay's, which lack the suffix."""
    return {f"{name}_{suffix}": name for name in names}


LEAKY = ("leaky", "refractory_leaky", "strict_refractory_leaky", "adaptive_leaky")
_EXPONENTIAL = ("exponential", "refractory_exponential", "adaptive_exponential", "simplified_adaptive_exponential")
# In this order: of components that the settings of an older file fit alike, the first is taken.
COMPONENTS = {
    "soma": {
        **_named("soma", *LEAKY, *_EXPONENTIAL, "izhikevich"),
        **{"alif_soma": "adaptive_leaky", "adaptive_izhikevich_soma": "composed_izhikevich"},
    },
    "synapses": {
        **_named("synapses", "linear", "traced", "rd_traced", "rfs_traced"),
        **{"simple_synapses": "linear", "double_traced_synapses": "rd_traced"},
    },
    "delays": {**_named("delays", "n2n", "n"), "dummy_delays": "none"},
    "learning_rule": {
        **_named("rule", "zenke", "hebbian", "oja", "quadruplet"),
        "quadruplet_rule_tensor": "modulated_bounded_quadruplet",
        **_named("rule", "btsp", "modulated_zenke", "modulated_hebbian", "modulated_oja"),
        "modulated_quadruplet_rule": "modulated_bounded_quadruplet",
        **{"three_factor_rule": "three_factor", "three_factor_hebbian_rule": "three_factor"},
    },
}
"""The components of neurons by kind."""
NOT_HERE = {
    "modulated_btsp_rule": "modulated behavioural time scale plasticity",
    "ru_short_term_plasticity": "short-term plasticity",
    "leaky_dendrite": "dendrites",
    "coupled_leaky_soma": "somas coupled to dendrites",
    "coupled_adaptive_exponential_soma": "somas coupled to dendrites",
}
"""What Spark 1.2.2 has and Outlay has not, and what it is."""
INITIALIZERS = {"sparse_normal": "normal", "sparse_log_normal": "log_normal"}
"""Initializers that are called otherwise in Outlay."""
UNUSED = {
    "constant": ("min_value", "max_value"),
    **dict.fromkeys(("normal", "sparse_normal", "log_normal", "sparse_log_normal"), ("scale",)),
}
"""Settings that Spark's initializers have and do not use."""
NOT_OURS = frozenset({"seed", "dtype", "dt", "async_spikes", "payload_type", "num_inputs"})
"""Settings of Spark that a Brain has once for all its modules, or that follow from others."""
SETTINGS = {"reshape": "shape", "kernel_initializer": "kernel"}
ONE_PORT = {"concat": "inputs", "sampler": "inputs"}
"""Modules that here have one input port, whatever those of Spark are called."""


def component_table(
    kind: str,
    config: Mapping[str, Any],
    path: KeyPath,
    wrong: Report,
    *,
    spark_class: str | None,
    ports: Collection[str],
    is_newer: bool = False,
) -> Table | None:
    """Return the table of one component of a neuron; None if Outlay has no such component.

    Args:
        kind: `soma`, `synapses`, `delays` or `learning_rule`.
        config: its settings in Spark.
        path: where they are, for messages.
        wrong: takes what is wrong.
        spark_class: its class in Spark, if the file says it.
        ports: what it reads.
        is_newer: whether Spark 1.1.1 or a later version wrote it.
    """
    spark_class = spark_class or _class_of(config)
    names = COMPONENTS[kind]
    if spark_class is not None and spark_class not in names:
        wrong(path, "unknown component", not_here(kind.replace("_", " "), spark_class), known_names(names))
        return None
    # A kernel is drawn by its initializer; of any other setting a constant one is a number.
    settings = {key: _constant(value) if key != "kernel" else value for key, value in own_settings(config).items()}
    if kind == "delays":
        _check_drawn(settings, path, wrong, is_newer=is_newer)
        _as_our_delays(settings, config, is_newer=is_newer)
    if spark_class:
        own_type = names[spark_class]
    else:
        from outlay.brain.files.scfg.older import most_like

        own_type = most_like(kind, names.values(), settings, ports, per_pair="units" in config)
    if own_type == "btsp":
        _check_btsp(settings, ports, path, wrong)
    if own_type == "quadruplet" and "max_clip" in settings:
        own_type = "modulated_bounded_quadruplet" if "modulation" in ports else "bounded_quadruplet"
    # Spark renamed the rate; only the three-factor rule calls it gamma here, too.
    if kind == "learning_rule" and own_type != "three_factor" and "gamma" in settings:
        settings["eta"] = settings.pop("gamma")
    if "kernel" in settings:
        settings["kernel"] = initializer_table(settings["kernel"], (*path, "kernel"), wrong)
    return {OUR_TYPE: own_type, **settings}


def own_settings(config: Mapping[str, Any]) -> Table:
    """Return the settings of a module itself, by Outlay's names; unset ones are left out."""
    return {
        SETTINGS.get(key, key): value
        for key, value in config.items()
        if key not in NOT_OURS and key not in _METADATA and key != "units" and value is not None
    }


def initializer_table(value: Any, path: KeyPath, wrong: Report) -> Any:
    """Return the table of an initializer; a number is a constant."""
    if isinstance(value, int | float):
        return {OUR_TYPE: "constant", "value": value}
    if not isinstance(value, Mapping):
        fix = "an initializer in the file; put the values into the state that Brain.init returns"
        wrong(path, "array", "the file holds its values one by one, which no setting takes", fix)
        return {OUR_TYPE: "constant"}
    spark_class = _class_of(value) or str(value.get("name"))
    name = spark_class.removesuffix("_initializer").removesuffix("_kernel").removesuffix("_delay")
    settings = {key: item for key, item in own_settings(value).items() if key != "name"}
    if name == "constant" and "scale" in settings:
        settings["value"] = settings.pop("scale")
    settings = {key: item for key, item in settings.items() if key not in UNUSED.get(name, ())}
    return {OUR_TYPE: INITIALIZERS.get(name, name), **settings}


def _class_of(config: Mapping[str, Any]) -> str | None:
    """Return the name by which Spark registers the class of a configuration; None if the file does not name it."""
    if config.get(_CLASS):
        return snake_case(config[_CLASS])
    return config[TYPE].removesuffix("_config") if config.get(TYPE) else None


def not_here(kind: str, name: str) -> str:
    """Say that Outlay has no such module or component, and what it is in Spark."""
    return f"Outlay has no {kind} {name!r}" + (f": it has no {NOT_HERE[name]}" if name in NOT_HERE else "")


def _constant(value: Any) -> Any:
    """Return a setting as a number where it is the same for all neurons."""
    if isinstance(value, Mapping) and (_class_of(value) or "").startswith("constant_init"):
        return value.get("scale")
    return value


def _as_our_delays(settings: Table, config: Mapping[str, Any], *, is_newer: bool) -> None:
    """Round the longest delay up to a whole number of steps, as Spark does.

    Since Spark 1.2.1 a delay of d means d steps; until then d = 1 meant none.
    """
    dt, longest = config.get("dt", 1.0), settings.get("max_delay")
    if not (is_time(longest) and is_time(dt) and longest / dt < math.inf):
        return
    # 0.3 / 0.1 is 2.9999999999999996.
    steps = round(longest / dt, 6)
    whole = longest if steps == int(steps) else math.ceil(steps) * dt
    settings["max_delay"] = whole
    if is_newer:
        settings["max_delay"], settings["min_delay"] = whole + dt, 2 * dt


def _check_btsp(settings: Table, ports: Collection[str], path: KeyPath, wrong: Report) -> None:
    """Remove settings of behavioural time scale plasticity that act only through ports that Outlay's rule lacks."""
    if settings.pop("et_post_tau", 0) and "post_spikes" in ports:
        what = "an eligibility of spikes at both ends"
        wrong((*path, "et_post_tau"), "not understood", what, "et_post_tau = 0, or no post_spikes")
    if "sign" in ports:
        wrong(path, "not understood", "a rule that reads a sign", "a rule without it")
    settings.pop("k_neg", None)


def _check_drawn(settings: Table, path: KeyPath, wrong: Report, *, is_newer: bool) -> None:
    """Remove how delays are drawn, which in Outlay is always uniformly up to the longest; report any other way."""
    for key in _DRAWN:
        drawn = settings.pop(key, None)
        if drawn is None:
            continue
        table = initializer_table(drawn, (*path, key), wrong)
        if is_newer and table.get(OUR_TYPE) == "uniform":
            table.pop("scale", None)  # Spark takes the longest delay in its place
            table = {name: value for name, value in table.items() if name != "min_value"}
        if table != {OUR_TYPE: "uniform", "scale": 1} and table != {OUR_TYPE: "uniform"}:
            text = ", ".join(f"{name} = {value}" for name, value in table.items() if name != OUR_TYPE)
            what = f"delays are drawn by {table[OUR_TYPE]} with {text}, and here uniformly up to max_delay"
            wrong((*path, key), "not understood", what, "a uniform initializer with scale 1")


def known_names(names: Iterable[str]) -> str:
    """Return a fix that lists the known names."""
    return f"one of {', '.join(names)}"


def snake_case(name: str) -> str:
    """Return the name by which Spark registers a class.

    >>> snake_case("NormalizedSparseUniformInitializer"), snake_case("N2NDelays"), snake_case("RDTracedSynapses")
    ('normalized_sparse_uniform_initializer', 'n2n_delays', 'rd_traced_synapses')
    """
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)).lower()
