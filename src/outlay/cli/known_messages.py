"""Known messages of JAX, XLA and clusters: how to recognize each, what it means, and what to do.

They are listed in `doctor_messages.toml`.
"""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from importlib import resources
from typing import Literal

from outlay.core.quantities import listed, plural
from outlay.core.suggest import did_you_mean

Weight = Literal["error", "warning", "consequence"]
"""The role of a message in a log: the cause, a warning, or a consequence of something else."""

_DIMS = r"\((?:[^()\n]|\([^()\n]{0,200}\)){0,400}\)"
"""A tuple as it is printed, such as the entries of a PartitionSpec."""


_BOUNDS = {
    r"\s+": r"\s{1,200}",
    r"\w+": r"\w{1,200}",
    r"\S+": r"\S{1,1000}",
    r"\S*": r"\S{0,1000}",
    r"\d+": r"\d{1,40}",
}
"""Unbounded repetitions in patterns, and the bound that replaces them: a long word must not be scanned from each of its
letters to the end. Names and numbers in messages are shorter."""
_REACH = 8192
"""Characters on each side of a message's key word that hold all of the message."""


@dataclass(frozen=True)
class KnownMessage:
    """A known message.

    Attributes:
        theme: its topic.
        name: its name, in two or three words.
        patterns: regular expressions, one for each wording, with the same named groups. A space stands for any white
            space, since pasted text is wrapped anywhere, and DIMS for a tuple such as the entries of a spec.
        meaning: plain words, with the numbers and names of the message in braces.
        fix: the edit to make, with the same braces.
        outlay: what in Outlay avoids it; empty if nothing does.
        weight: whether it is the cause, a warning, or the consequence of another failure.
        empty: the text for a group that a wording lacks.
        filled: the text around a group that it has.
        values: the name in `VALUES` of the function that derives further values from the groups; empty for none.
    """

    theme: str
    name: str
    patterns: tuple[str, ...]
    meaning: str
    fix: str
    outlay: str = ""
    weight: Weight = "error"
    empty: Mapping[str, str] = field(default_factory=dict, hash=False)
    filled: Mapping[str, str] = field(default_factory=dict, hash=False)
    values: str = ""

    @cached_property
    def _compiled(self) -> tuple[tuple[str, re.Pattern[str]], ...]:
        return tuple((longest_word(pattern), _compiled(pattern)) for pattern in self.patterns)

    def find(self, text: str) -> Iterator[tuple[tuple[int, int], str, str]]:
        """Yield each match in a text: its start and end, its meaning and its fix.

        The time is proportional to the text: matching is only tried around a word that every match contains, and no
        repetition is unbounded.
        """
        for word, pattern in self._compiled:
            for start, end in _around(word, text):
                for match in pattern.finditer(text, start, end):
                    values = self._in_words({name: value or "" for name, value in match.groupdict().items()})
                    yield match.span(), self.meaning.format(**values), self.fix.format(**values)

    def _in_words(self, groups: dict[str, str]) -> Mapping[str, str]:
        filled = {name: text.format(**groups) for name, text in self.filled.items() if groups.get(name)}
        empty = {name: text for name, text in self.empty.items() if not groups.get(name)}
        words = {**groups, **filled, **empty}
        return VALUES[self.values](words) if self.values else words


def longest_word(pattern: str) -> str:
    r"""Return the longest text without white space that every match of a pattern contains.

    >>> longest_word(r"Resource axis: (?P<axis>\S+) is not found(?:, sorry)?")
    'Resource'
    """
    words, depth = [""], 0
    tokens = iter(re.findall(r"\\.|\[\^?\]?(?:\\.|[^\]])*\]|\{[\d,]*\}|.", pattern, re.DOTALL))
    for token in tokens:
        depth += (token == "(") - (token == ")")
        literal = token[1:] if token[0] == "\\" and not token[1].isalnum() else token
        if token in ("?", "*") or token.startswith("{"):  # what precedes it may be missing
            words[-1:] = [words[-1][:-1], ""]
        elif depth or len(literal) > 1 or literal in " ()+|.^$":
            words.append("")
        else:
            words[-1] += literal
    return max(words, key=len)


def _compiled(pattern: str) -> re.Pattern[str]:
    written = pattern.replace(" ", r"\s+")
    for unbounded, bounded in _BOUNDS.items():
        written = written.replace(unbounded, bounded)
    return re.compile(written.replace("DIMS", _DIMS), re.DOTALL)


def _around(word: str, text: str) -> Iterator[tuple[int, int]]:
    """Yield the stretches of a text around each occurrence of a word; none overlaps another."""
    start = end = 0
    at = text.find(word)
    while at >= 0:
        if at - _REACH > end:
            if end:
                yield start, end
            start = at - _REACH
        end = at + len(word) + _REACH
        at = text.find(word, at + 1)
    if end:
        yield start, end


def _read() -> tuple[KnownMessage, ...]:
    text = (resources.files("outlay.cli") / "doctor_messages.toml").read_text(encoding="utf-8")
    tables = tomllib.loads(text)["message"]
    return tuple(KnownMessage(**{**table, "patterns": tuple(table["patterns"])}) for table in tables)


KNOWN = _read()


Values = Mapping[str, str]

_SHOWN = 8
"""The most devices that are listed one by one."""


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
    names = _axis_names(values["axes"])
    hint = did_you_mean(values["axis"], names)
    near = f"; {hint}" if hint.startswith("did") else ""
    return {**values, "hint": near, "names": ", ".join(map(repr, names))}


def _compared(values: Values) -> Values:
    """Add how two lists of devices differ, so that readers need not compare numbers."""
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
    """Add the names of axes in the set that JAX prints, with quotes in older and without in newer versions."""
    names = _axis_names(values["axes"])
    return {**values, "axes": ", ".join(map(repr, names)) or "an axis", "tuple": repr(tuple(names))}


def _axis_names(text: str) -> list[str]:
    return [name for part in text.split(",") if (name := part.strip(" '\""))]


def _amount(values: Values) -> Values:
    amount = values["amount"]
    if amount.isdecimal():
        amount = f"{int(amount) / 2**30:,.2f} GiB" if int(amount) >= 2**30 // 100 else f"{int(amount):,} bytes"
    return {**values, "amount": amount or "what was asked for"}


def _remedy(values: Values) -> Values:
    """Add the fix: `jax.debug.print` of a split array causes the same warning, and is harmless."""
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
    """Return the mesh axes of one dim of a spec as JAX prints it, quoted; empty where that cannot be read.

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
    """Write a list of devices as short as possible."""
    if len(ids) > 2 and ids == [str(int(ids[0]) + i) for i in range(len(ids))]:
        return f"devices {ids[0]} to {ids[-1]}"
    return f"{plural(len(ids), 'device')} {listed(ids, _SHOWN)}"


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
"""The functions that derive further values, by their names in `doctor_messages.toml`."""
