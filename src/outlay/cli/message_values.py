"""What the words about a message need besides what stands in it: sums, comparisons, lists in words."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping

from outlay.core.suggest import did_you_mean

Values = Mapping[str, str]

_SHOWN = 8
"""Devices that are named one by one."""


def _padded(values: Values) -> Values:
    size, num = int(values["size"]), int(values["num"])
    axes = axes_of(values["spec"], int(values["dim"]))
    return {
        **values,
        "who": f" of {values['leaf']}" if values.get("leaf") else "",
        "along": f"the devices along {axes}" if axes else "the devices along its axes",
        "padded": str(-(-size // num) * num),
    }


def _suggested(values: Values) -> Values:
    names = [name.strip(" '\"") for name in values["axes"].split(",") if name.strip(" '\"")]
    hint = did_you_mean(values["axis"], names)
    near = f"; {hint}" if hint.startswith("did") else ""
    return {**values, "hint": near, "names": ", ".join(map(repr, names))}


def _compared(values: Values) -> Values:
    """What a reader must find out by comparing two lists of numbers."""
    first, second = _ids(values["ids"]), _ids(values["other_ids"])
    words = {**values, "on": _on(first), "other_on": _on(second)}
    if first != second and sorted(first) == sorted(second):
        why = "these are the same devices in another order: they come from two meshes"
        fix = "build one mesh and use it for both"
    elif "context mesh" in values["other"]:
        why = "jax.set_mesh makes every jit inside it run on the whole mesh"
        fix = "leave the scope of jax.set_mesh for work on one device, or place the array on the mesh first"
    elif min(len(first), len(second)) == 1:
        stray = values["what"] if len(first) == 1 else values["other"]
        why = f"{stray} was put on one device for good, by jax.device_put(x, device) or by a checkpoint"
        fix = "place it on the mesh first: jax.device_put(it, NamedSharding(mesh, P()))"
    else:
        why = "they come from two meshes"
        fix = "move one of them with jax.device_put, outside jit, or build one mesh and use it for both"
    return {**words, "why": why, "fix": fix}


def _difference(values: Values) -> Values:
    types, other_types = values["types"], values["other_types"]
    if values["sizes"] == values["other_sizes"]:
        words = f"both are {values['sizes']}, but the axes of one are {types}, of the other {other_types}"
    else:
        words = f"{values['sizes']} {types} and {values['other_sizes']} {other_types}"
    return {**values, "difference": words}


def _named(values: Values) -> Values:
    """The axes out of the set that JAX prints, with the old wording's quotes and without."""
    names = [name.strip(" '\"") for name in values["axes"].split(",") if name.strip(" '\"")]
    return {**values, "axes": ", ".join(map(repr, names)) or "an axis", "tuple": repr(tuple(names))}


def _amount(values: Values) -> Values:
    amount = values["amount"]
    if amount.isdecimal():
        amount = f"{int(amount) / 2**30:,.2f} GiB" if int(amount) >= 2**30 // 100 else f"{int(amount):,} bytes"
    return {**values, "amount": amount or "what was asked for"}


def _remedy(values: Values) -> Values:
    """`jax.debug.print` of a split array makes the same warning, and is harmless."""
    one_device = "maximal device" in values["after"]
    return {
        **values,
        "origin": f" ({values['origin']})" if values["origin"] else "",
        "remedy": (
            "this one goes to a single device, as for jax.debug.print or a callback: print a sum or one element instead"
            if one_device
            else "find the two lines that want this value split differently, and change one; or go there in two steps, "
            "one mesh axis at a time, with a constraint in between"
        ),
    }


def _barrier(values: Values) -> Values:
    if values["barrier"].startswith("Shutdown"):
        story = (
            "wanted to end, while the others went on: it raised an error or returned early, so its log has the cause"
        )
    else:
        story = "was there first and waited; those that did not come failed, hang or are slow: see their logs"
    missing = ", ".join(values["missing"].split()) or "not named"
    return {**values, "story": story, "missing": missing, "barrier": values["barrier"].partition("::")[0].lower()}


def _listed(values: Values) -> Values:
    return {**values, "tasks": ", ".join(values["tasks"].split())}


def axes_of(spec: str, dim: int) -> str:
    """The mesh axes of one dim of a spec as JAX prints it, quoted; empty where that cannot be read.

    >>> axes_of("(None, ('data', 'model'))", 1)
    "'data', 'model'"
    """
    try:
        axes = ast.literal_eval(spec)[dim]
    except (ValueError, SyntaxError, IndexError, TypeError):
        return ""
    return ", ".join(repr(axis) for axis in (axes if isinstance(axes, tuple) else (axes,)))


def _ids(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _on(ids: list[str]) -> str:
    """The devices in words, as short as they can be."""
    if len(ids) > 2 and ids == [str(int(ids[0]) + i) for i in range(len(ids))]:
        return f"devices {ids[0]} to {ids[-1]}"
    shown = ", ".join(ids[:_SHOWN]) + (f" and {len(ids) - _SHOWN} more" if len(ids) > _SHOWN else "")
    return f"device {shown}" if len(ids) == 1 else f"devices {shown}"


VALUES: Mapping[str, Callable[[Values], Values]] = {
    "padded": _padded,
    "suggested": _suggested,
    "compared": _compared,
    "difference": _difference,
    "named": _named,
    "amount": _amount,
    "remedy": _remedy,
    "barrier": _barrier,
    "listed": _listed,
}
"""By the names that `doctor_messages.toml` uses."""
