"""What an instruction's `op_name` says: the scopes that were open when it was traced, and what JAX did to them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from outlay.analysis.attribution.program_facts import Phase
from outlay.models.attention.kernel_rules import SCOPE
from outlay.program.compiler_options import MICROBATCHES

_TRANSFORM = re.compile(r"(\w+)\((.*)\)", re.DOTALL)
_SCOPED = frozenset(("jvp", "transpose", "vmap", "remat", "checkpoint", "custom_jvp", "custom_vjp", "linearize"))
"""Transformations that carry the scopes they were applied to, as in `transpose(jvp(MLP))`."""

_MACHINERY = frozenset(
    {
        *("while", "body", "cond", "closed_call", "core_call", "core_closed_call", "checkpoint", "remat"),
        *("remat2", "rematted_computation", "custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"),
        *("custom_lin", "shard_map", "shmap_body", "pjit", "eval_jaxpr", "scan", "run_state"),
        *("optimization_barrier", "cond_body", MICROBATCHES),
    }
)
"""Steps that JAX, or the step itself, puts on the path."""

OPTIMIZER = "optimizer"
"""The scope that `outlay.train_step` opens around the optimizer's update."""


@dataclass(frozen=True)
class OpName:
    """An op name, read.

    Attributes:
        primitive: the operation, such as `dot_general`.
        scopes: the names that the model's code gave, outermost first: Flax modules, `jax.named_scope`.
        phase: which part of a step the operation belongs to.
    """

    primitive: str
    scopes: tuple[str, ...]
    phase: Phase


def read_op_name(text: str) -> OpName | None:
    """Read an op name; None where it is none, such as the name of an argument.

    >>> read_op_name("jit(step)/transpose(jvp(MLP))/Dense_0/while/body/dot_general")
    OpName(primitive='dot_general', scopes=('MLP', 'Dense_0'), phase='backward')
    >>> read_op_name("state.params['w']") is None
    True
    """
    if "/" not in text:
        return None
    *path, primitive = _unjoined(_split(text.partition(";")[0], "/"))
    scopes: list[str] = []
    transforms: set[str] = set()
    for part in path:
        _read_part(part, scopes, transforms)
    return OpName(primitive, tuple(scopes), _phase(scopes, transforms))


def _unjoined(path: list[str]) -> list[str]:
    """Where the compiler joins operations it joins their names, `(a:b/c)`; the first that says its phase is taken."""
    *start, last = path
    if not (last.startswith("(") and last.endswith(")")):
        return path
    members = _split(last[1:-1], ":")
    return [*start, *_split(next((member for member in members if "(" in member), members[0]), "/")]


def _split(text: str, separator: str) -> list[str]:
    """At separators outside of parentheses."""
    parts, depth = [""], 0
    for sign in text:
        depth += (sign == "(") - (sign == ")")
        if sign == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += sign
    return parts


def _read_part(part: str, scopes: list[str], transforms: set[str]) -> None:
    transform = _TRANSFORM.fullmatch(part)
    if transform is None:
        if part and part not in _MACHINERY and not part.startswith(("branch_", SCOPE)) and "->" not in part:
            scopes.append(part)
        return
    name, inside = transform[1], transform[2]
    transforms.add(name)
    if name in _SCOPED:
        for inner in _split(inside, "/"):
            _read_part(inner, scopes, transforms)


def _phase(scopes: list[str], transforms: set[str]) -> Phase:
    if "transpose" in transforms:
        return "backward"
    if "jvp" in transforms:
        return "forward"
    return "optimizer" if OPTIMIZER in scopes else "other"
