"""Memory that could be used again and is not, and state that does not come back where it was."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax

from outlay.analysis.attribution.leaves import each_sharding
from outlay.analysis.findings.evidence import Evidence
from outlay.analysis.findings.finding import Finding
from outlay.arrays.shardings import OnHost
from outlay.core.paths import flatten_paths
from outlay.core.quantities import counted, format_bytes

_MAX_NAMED = 4
_MIN_BYTES = 1024
"""Below this, a step counter say, nobody cares."""


def donated_in_vain(evidence: Evidence) -> Iterator[Finding]:
    """Donated leaves that no output could use."""
    used = {number for _, number in evidence.module.input_output_alias}
    lost = [leaf for leaf in evidence.leaves if leaf.donated and leaf.number not in used]
    cost = sum(leaf.num_bytes for leaf in lost)
    if cost < _MIN_BYTES:
        return
    paths = [leaf.path for leaf in sorted(lost, key=lambda leaf: -leaf.num_bytes)]
    text = (
        f"the memory of {counted(len(lost), 'donated leaf', 'donated leaves')} is not used again, "
        f"{format_bytes(cost)}: {_named(paths)}"
    )
    fix = "return each with the shape, dtype and sharding it came with, or do not donate it"
    yield Finding("donation", text, fix, cost)


def state_not_donated(evidence: Evidence) -> Iterator[Finding]:
    """A first argument that comes back as it was, of whose memory there are two while the step runs."""
    pair = _state(evidence.compiled)
    if pair is None:
        return
    (before, _), _ = pair
    if any(info.donated for info in jax.tree.leaves(before)):
        return
    first = len(jax.tree.leaves(before))
    cost = sum(leaf.num_bytes for leaf in evidence.leaves[:first])
    if cost >= _MIN_BYTES:
        text = f"the first argument comes back with the same shapes but is not donated: {format_bytes(cost)} held twice"
        yield Finding("donation", text, "jax.jit(..., donate_argnums=0), and use what it returns", cost)


def state_that_moves(evidence: Evidence) -> Iterator[Finding]:
    """State whose sharding is another one when it comes back: the next call compiles again, or moves it."""
    pair = _state(evidence.compiled)
    if pair is None:
        return
    (before, have), want = pair
    num_bytes = {leaf.number: leaf.num_bytes for leaf in evidence.leaves}
    moved, cost, number = [], 0, 0
    for (path, info), old, new in zip(flatten_paths(before)[0], have, want, strict=True):
        if old is None:  # not used, and so no parameter
            continue
        # Of what is on the host of absent GPUs no compiled program tells the memory; where it is split it does tell.
        back = old if isinstance(old, OnHost) and new.memory_kind is None and _dims(old) == _dims(new) else new
        if not old.is_equivalent_to(back, len(info.shape)):
            moved.append(f"{path or 'the array'} {_spec(old)} -> {_spec(new)}")
            cost += num_bytes.get(number, 0)
        number += 1
    if moved:
        text = (
            f"{counted(len(moved), 'leaf', 'leaves')} of the first argument returned with another sharding: "
            f"{_named(moved)}"
        )
        fix = "jax.jit(..., out_shardings=...) with the shardings they came with, or use outlay.program"
        yield Finding("state-moves", text, fix, cost)


def _state(compiled: jax.stages.Compiled | None) -> Any:
    """The first argument with its shardings, and those of the first of several outputs, if that has the same shapes.

    So a step is written that takes a state and returns the next one; any other function has none.
    """
    if compiled is None or not isinstance(compiled.args_info, tuple) or not compiled.args_info[0]:
        return None
    before = compiled.args_info[0][0]
    have = each_sharding(before, compiled.input_shardings[0][0])
    outputs, shardings = compiled.out_info, compiled.output_shardings
    if not (isinstance(outputs, tuple) and len(outputs) > 1 and jax.tree.leaves(before)):
        return None
    if _shapes(before) != _shapes(outputs[0]):
        return None
    return (before, have), jax.tree.leaves(shardings[0])


def _shapes(tree: Any) -> list[tuple[Any, ...]]:
    return [(path, tuple(leaf.shape), str(leaf.dtype)) for path, leaf in flatten_paths(tree)[0]]


def _spec(sharding: Any) -> str:
    return str(getattr(sharding, "spec", sharding))


def _dims(sharding: Any) -> tuple[Any, ...]:
    """The dims that are split; a spec may say of the last ones that they are not, or say nothing."""
    dims = list(getattr(sharding, "spec", ()))
    while dims and dims[-1] is None:
        dims.pop()
    return tuple(dims)


def _named(names: list[str]) -> str:
    more = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
    return ", ".join(names[:_MAX_NAMED]) + more
