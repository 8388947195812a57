"""Address what can be recorded of a Brain, and select addresses by pattern.

* `A_ex:out_spikes` is the output of a module's port in each step;
* `A_ex.soma.potential` is a leaf of the state after each step. Spark users may write `A_ex.soma:potential` for it, and
  `A_ex.soma:spikes` for the spikes of a neuron.

In a pattern, `*` matches one component or a part of one, and `**` any number of components.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import jax

from outlay.brain.brain import Brain
from outlay.brain.module import BrainError
from outlay.errors import Problem
from outlay.kit import CACHE, counted, did_you_mean, flatten_paths, matches, pattern_problem

_SOMA = "soma"
_SPIKES = {"spikes": "out_spikes"}
"""Spark's name for the output of a soma, and the neuron's port that has it."""


def addresses(brain: Brain) -> tuple[str, ...]:
    """Return all addresses of a Brain: ports first, then the leaves of its state.

    Args:
        brain: the Brain; nothing is computed.
    """
    return (*port_addresses(brain), *_leaf_addresses(brain))


def port_addresses(brain: Brain, kind: str | None = None) -> tuple[str, ...]:
    """Return the addresses of the output ports of a Brain's modules.

    Args:
        brain: the Brain.
        kind: restrict to ports of `spikes` or of `values`.
    """
    ports = brain.wiring.output_ports
    return tuple(
        f"{name}:{port}" for name in brain.modules for port, what in ports[name].items() if kind in (None, what.kind)
    )


def select_addresses(brain: Brain, patterns: Iterable[str]) -> tuple[str, ...]:
    """Return the addresses that match the patterns, each once, in the order of the patterns and of the Brain.

    Args:
        brain: the Brain.
        patterns: such as `*_ex:out_spikes`, `**.soma.potential` or `B_in.synapses.kernel`.

    Raises:
        BrainError: a pattern is malformed or matches nothing; the message lists all of them.

    Example:
        >>> from outlay.brain import Brain, Connection, LinearSpiker
        >>> eyes = {"left": LinearSpiker(), "right": LinearSpiker()}
        >>> brain = Brain(eyes, [Connection("inputs:light", f"{eye}:signal") for eye in eyes], inputs={"light": (3,)})
        >>> select_addresses(brain, ["*:spikes"])
        ('left:spikes', 'right:spikes')
    """
    spelled = _spellings(brain)
    chosen: dict[str, None] = {}
    problems = []
    for pattern in dict.fromkeys(patterns):
        matched = [address for spelling, address in spelled.items() if _matches(pattern, spelling)]
        chosen.update(dict.fromkeys(matched))
        if not matched:
            problems.append(_nothing(pattern, spelled))
    if problems:
        raise BrainError(f"{counted(len(problems), 'address', 'addresses')} cannot be recorded", problems)
    return tuple(chosen)


def _leaf_addresses(brain: Brain) -> tuple[str, ...]:
    leaves, _ = flatten_paths(brain.module_shapes)
    return tuple(path for path, leaf in leaves if not jax.dtypes.issubdtype(leaf.dtype, _KEY))


_KEY = jax.dtypes.prng_key  # PRNG keys are not numbers that could be plotted or stored


def _spellings(brain: Brain) -> dict[str, str]:
    """Map every way to write an address to the address."""
    ports, leaves = port_addresses(brain), _leaf_addresses(brain)
    spelled = {address: address for address in (*ports, *leaves)}
    for leaf in leaves:
        parent, _, last = leaf.rpartition(".")
        # A port that is spelled like this stays what is meant.
        spelled.setdefault(f"{parent}:{last}", leaf)
    somas = {leaf.split(".")[0] for leaf in leaves if leaf.split(".")[1:2] == [_SOMA]}
    for name in somas:
        for spark, port in _SPIKES.items():
            if f"{name}:{port}" in spelled:
                spelled.setdefault(f"{name}.{_SOMA}:{spark}", f"{name}:{port}")
    return spelled


def _matches(pattern: str, spelling: str) -> bool:
    path, _, port = pattern.partition(":")
    its_path, _, its_port = spelling.partition(":")
    return bool(port) == bool(its_port) and matches(path, its_path) and (not port or matches(port, its_port))


def _nothing(pattern: str, spelled: Mapping[str, str]) -> Problem:
    path, _, port = pattern.partition(":")
    wrong = pattern_problem(path) or (pattern_problem(port) if ":" in pattern else None)
    if wrong:
        return Problem("address", pattern, wrong, "MODULE:PORT or a path such as MODULE.soma.potential")
    if path.split(".")[0] == CACHE:
        module, _, written = path.partition(".")[2].partition(".")
        return Problem(
            "address", pattern, "the cache holds what modules wrote last", f"{module or '*'}:{written or '*'}"
        )
    if ":" not in pattern and any(matches(pattern, name) for name in {s.partition(":")[0] for s in spelled}):
        return Problem(
            "address", pattern, "it names a module, but no port and no leaf of it", f"{pattern}.** or {pattern}:*"
        )
    return Problem(
        "address", pattern, "it matches nothing that the Brain writes or holds", did_you_mean(pattern, spelled)
    )
