"""What Spark before 1.1.1 wrote in another way. Imported only when such a file is read."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any

from outlay.brain.registry import registered
from outlay.kit import KeyPath


def named_components(
    config: Mapping[str, Any], kinds: Iterable[str], path: KeyPath
) -> Iterator[tuple[str, Mapping[str, Any], KeyPath]]:
    """Yield kind, settings and path of the components of a neuron that is not a graph of them.

    They stand under keys such as `soma`, or `soma_config` in still older files.
    """
    for kind in kinds:
        key = kind if kind in config else f"{kind}_config"
        if isinstance(config.get(key), Mapping):
            yield kind, config[key], (*path, key)


def most_like(
    kind: str, names: Iterable[str], settings: Mapping[str, Any], ports: Collection[str], *, per_pair: bool
) -> str:
    """Guess a component from its settings, since these files do not name it.

    Args:
        kind: `soma`, `synapses`, `delays` or `learning_rule`.
        names: the components of this kind; of equally likely ones the first is taken.
        settings: its settings.
        ports: what it reads.
        per_pair: whether delays differ by pair of neurons.
    """
    if kind == "delays":
        return "n2n" if per_pair else "n"

    def unlike(name: str) -> tuple[int, int, int]:
        cls = registered(name, kind=kind)
        # Unconnected ports weigh most, then settings that the component lacks, then those that are missing.
        fields, reads = {field.name for field in dataclasses.fields(cls)}, set(getattr(cls, "reads", ()))
        given = {"eta" if key == "gamma" and "gamma" not in fields else key for key in settings}
        return len(reads - set(ports)), len(given - fields), len(fields - given) - len(reads)

    return min(dict.fromkeys(names), key=unlike)


def listed_outputs(name: str, ports: Collection[str]) -> dict[str, str]:
    """Return the outputs of a Brain for a module whose ports the file lists."""
    return {f"{name}_{port}" if len(ports) > 1 else name: f"{name}:{port}" for port in ports}


def inhibitory_rate(specs: Iterable[Mapping[str, Any]], rate: Any) -> Any:
    """Return the share of inhibitory neurons: none by a rate where the file tells the soma itself who is."""
    return rate if any("inhibition_mask" in (spec.get("inputs") or {}) for spec in specs) else 0.0
