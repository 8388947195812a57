"""What to write so that a value lives elsewhere: `outlay.constrain`, in the terms of the line that makes the value.

Under `jax.vmap` a function sees one sample, and a spec speaks of one sample's dims: there an axis of the batch would
split features.
"""

from __future__ import annotations

import linecache
import re

from outlay.analysis.attribution.op_name import read_op_name
from outlay.analysis.attribution.who_asked import user_line
from outlay.analysis.findings.evidence import Evidence
from outlay.analysis.hlo.hlo_module import HloModule, SourceLine

_CONSTRAINS = re.compile(r"constrain|reshard|out_sharding")


def spread_samples(evidence: Evidence, what: str, source: SourceLine | None, axis: str) -> str:
    """How to keep each device's samples its own.

    Args:
        evidence: the program.
        what: what is to be constrained, in words.
        source: the line that makes it.
        axis: the batch's axis.
    """
    if is_under_vmap(evidence.module, source):
        return (
            f"{what}{at(source)} are made inside jax.vmap, where a spec speaks of one sample: constrain what vmap "
            f"returns, outlay.constrain(jax.vmap(f)(x), P({axis!r})), or inside it outlay.constrain(x, P()), which "
            "splits no dim of a sample and leaves the samples where they are"
        )
    return f"constrain {what}{at(source)} to the batch's axis: outlay.constrain(x, P({axis!r}))"


def is_under_vmap(module: HloModule, source: SourceLine | None) -> bool:
    """Whether what a line computes stands under `jax.vmap`."""
    return any("vmap(" in one for one in _op_names(module, source))


def is_constrained(module: HloModule, source: SourceLine | None) -> bool:
    """Whether a line says itself where a value lives."""
    if source is None:
        return False
    names = (read_op_name(one) for one in _op_names(module, source))
    by_jax = any(name is not None and name.primitive == "sharding_constraint" for name in names)
    return by_jax or bool(_CONSTRAINS.search(linecache.getline(source.file, source.line)))


def at(source: SourceLine | None) -> str:
    """A line, as it goes on after a word."""
    return f" at {source}" if source else ""


def _op_names(module: HloModule, source: SourceLine | None) -> list[str]:
    if source is None:
        return []
    return [
        one.op_name
        for computation in module.computations.values()
        for one in computation.instructions.values()
        if one.op_name and user_line(one.frames) == source
    ]
