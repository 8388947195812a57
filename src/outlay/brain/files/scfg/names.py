"""Spark's names of modules, components and settings, and what they are called here."""

from __future__ import annotations

import re
from collections.abc import Iterable

NEURONS = ("lif_neuron", "alif_neuron", "adex_neuron", "ad_ex_neuron", "neuron")
MODULES = {
    "linear_spiker": "linear_spiker",
    "poisson_spiker": "poisson_spiker",
    "topological_linear_spiker": "topological_linear_spiker",
    "topological_poisson_spiker": "topological_poisson_spiker",
    "exponential_integrator": "exponential_integrator",
    "tanh_integrator": "tanh_integrator",
    "signal_accumulator": "signal_accumulator",
    "signal_average": "signal_average",
    "concat": "concat",
    "concat_reshape": "concat",
    "sampler": "sampler",
}
COMPONENTS = {
    "soma": {
        "leaky_soma": "leaky",
        "refractory_leaky_soma": "refractory_leaky",
        "strict_refractory_leaky_soma": "strict_refractory_leaky",
        "adaptive_leaky_soma": "adaptive_leaky",
        "alif_soma": "adaptive_leaky",
        "exponential_soma": "exponential",
        "refractory_exponential_soma": "refractory_exponential",
        "adaptive_exponential_soma": "adaptive_exponential",
        "simplified_adaptive_exponential_soma": "simplified_adaptive_exponential",
        "izhikevich_soma": "izhikevich",
        "adaptive_izhikevich_soma": "composed_izhikevich",
    },
    "synapses": {
        "linear_synapses": "linear",
        "simple_synapses": "linear",
        "traced_synapses": "traced",
        "rd_traced_synapses": "rd_traced",
        "double_traced_synapses": "rd_traced",
        "rfs_traced_synapses": "rfs_traced",
    },
    "delays": {"n2n_delays": "n2n", "n_delays": "n", "dummy_delays": "none"},
    "learning_rule": {
        "zenke_rule": "zenke",
        "hebbian_rule": "hebbian",
        "oja_rule": "oja",
        "quadruplet_rule": "quadruplet",
        "quadruplet_rule_tensor": "modulated_bounded_quadruplet",
        "btsp_rule": "btsp",
        "modulated_zenke_rule": "modulated_zenke",
        "modulated_hebbian_rule": "modulated_hebbian",
        "modulated_oja_rule": "modulated_oja",
        "modulated_quadruplet_rule": "modulated_bounded_quadruplet",
        "three_factor_rule": "three_factor",
        "three_factor_hebbian_rule": "three_factor",
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
INITIALIZERS = {
    "constant": "constant",
    "uniform": "uniform",
    "sparse_uniform": "sparse_uniform",
    "normalized_sparse_uniform": "normalized_sparse_uniform",
    "normal": "normal",
    "sparse_normal": "normal",
    "log_normal": "log_normal",
    "sparse_log_normal": "log_normal",
}
UNUSED = {
    "constant": ("min_value", "max_value"),
    "normal": ("scale",),
    "sparse_normal": ("scale",),
    "log_normal": ("scale",),
    "sparse_log_normal": ("scale",),
}
"""Settings that Spark's initializers have and do not use."""
NOT_OURS = frozenset({"seed", "dtype", "dt", "async_spikes", "payload_type", "num_inputs"})
"""Settings of Spark that a Brain has once for all its modules, or that follow from others."""
SETTINGS = {"reshape": "shape", "kernel_initializer": "kernel"}
ONE_PORT = {"concat": "inputs", "sampler": "inputs"}
"""Modules that here have one input port, whatever those of Spark are called."""


def known_names(names: Iterable[str]) -> str:
    """All of some names, for what to write instead."""
    return f"one of {', '.join(names)}"


def snake_case(name: str) -> str:
    """The name by which Spark registers a class.

    >>> snake_case("NormalizedSparseUniformInitializer"), snake_case("N2NDelays"), snake_case("RDTracedSynapses")
    ('normalized_sparse_uniform_initializer', 'n2n_delays', 'rd_traced_synapses')
    """
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)).lower()
