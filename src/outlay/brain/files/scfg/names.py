"""Spark's names of modules, components and settings, and what they are called here."""

from __future__ import annotations

import re

NEURONS = ("lif_neuron", "alif_neuron", "adex_neuron", "ad_ex_neuron", "neuron")
MODULES = {
    "linear_spiker": "linear_spiker",
    "poisson_spiker": "poisson_spiker",
    "topological_linear_spiker": "topological_linear_spiker",
    "topological_poisson_spiker": "topological_poisson_spiker",
    "exponential_integrator": "exponential_integrator",
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
        "three_factor_rule": "three_factor",
        "three_factor_hebbian_rule": "three_factor",
    },
}
"""The components of neurons by kind."""
INITIALIZERS = {
    "constant": "constant",
    "uniform": "uniform",
    "sparse_uniform": "sparse_uniform",
    "normalized_sparse_uniform": "normalized_sparse_uniform",
}
NOT_OURS = frozenset({"seed", "dtype", "dt", "async_spikes", "payload_type", "num_inputs"})
"""Settings of Spark that a Brain has once for all its modules, or that follow from others."""
SETTINGS = {"reshape": "shape", "kernel_initializer": "kernel"}
PORTS = {("concat", "input"): "inputs", ("sampler", "input"): "inputs"}
"""Input ports that some versions call otherwise, by what the module is here."""


def snake_case(name: str) -> str:
    """The name by which Spark registers a class.

    >>> snake_case("NormalizedSparseUniformInitializer"), snake_case("N2NDelays"), snake_case("RDTracedSynapses")
    ('normalized_sparse_uniform_initializer', 'n2n_delays', 'rd_traced_synapses')
    """
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", re.sub(r"([A-Z]+)([A-Z][a-z])", r"\1_\2", name)).lower()
