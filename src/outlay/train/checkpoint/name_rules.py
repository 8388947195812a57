"""Rules that say which leaf of a state an array of a file is: other programs have other names, and other dims."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from outlay.core.error_types import CheckpointError, Problem

NameRules = Sequence[tuple[str, str | None] | tuple[str, str, tuple[int, ...]]]
"""Rules as people write them: (name in the file, path of the leaf), and the order of dims where it is another one."""

_STAR = re.compile(r"\*\*|\*")


@dataclass(frozen=True)
class NameRule:
    """One rule, read.

    Attributes:
        name: pattern of names in the file; `*` stands for a part of a name, or a piece of one, `**` for any text.
        path: the leaf's path, with the name's stars in their order; None leaves these arrays where they are.
        dims: of each dim of the leaf, the file's; one that stands twice is split over the two. None for the same order.
    """

    name: str
    path: str | None
    dims: tuple[int, ...] | None = None

    def leaf_of(self, name: str) -> tuple[str | None, tuple[int, ...]] | None:
        """The leaf that an array of this name is, and its place in the leaf's leading dims; None if it is not meant.

        >>> NameRule("h.*.w", "layers.*.kernel").leaf_of("h.3.w"), NameRule("h.*.w", "layers.kernel").leaf_of("h.3.w")
        (('layers.3.kernel', ()), ('layers.kernel', (3,)))
        """
        texts = {"**": "(.+)", "*": "([^.]*)"}
        pattern = "".join(texts.get(piece, re.escape(piece)) for piece in re.split(r"(\*\*|\*)", self.name))
        found = re.fullmatch(pattern, name)
        if found is None:
            return None
        if self.path is None:
            return None, ()
        stars = list(found.groups())
        path = _STAR.sub(lambda _: stars.pop(0), self.path)
        if not all(star.isdecimal() for star in stars):
            return None
        return path, tuple(map(int, stars))

    @property
    def numbered(self) -> str:
        """What else its stars ask of a name, for messages; empty if nothing."""
        if self.path is None or len(_STAR.findall(self.name)) == len(_STAR.findall(self.path)):
            return ""
        return " with numbers for the stars that the path lacks"

    def text(self) -> str:
        """As it is written.

        >>> NameRule("h.*.w", "layers.*.kernel", (1, 0)).text()
        '("h.*.w", "layers.*.kernel", (1, 0))'
        """
        path = "None" if self.path is None else f'"{self.path}"'
        return f'("{self.name}", {path}{f", {self.dims}" if self.dims else ""})'


def name_rules(rules: NameRules) -> list[NameRule]:
    """Rules as people write them, read.

    Raises:
        CheckpointError: with one problem per rule that is none.
    """
    read, problems = [], []
    for number, rule in enumerate(rules, 1):
        if what := _fault(rule):
            fix = 'write ("model.layers.*.up.weight", "params.layers.*.up", (1, 0)), for example'
            problems.append(Problem("no rule for names", f"rule {number}: {rule!r:.80}", what, fix))
        else:
            read.append(NameRule(rule[0], rule[1], rule[2] if len(rule) == 3 else None))
    if problems:
        raise CheckpointError(f"{len(problems)} of {len(rules)} rules for names cannot be read", problems)
    return read


def _is_order(dims: object) -> bool:
    """Whether these are all dims of an array, those that stand more than once next to themselves."""
    if not isinstance(dims, tuple) or not all(isinstance(dim, int) for dim in dims):
        return False
    once = [dim for dim, _ in itertools.groupby(dims)]
    return sorted(once) == list(range(len(once)))


def _fault(rule: object) -> str:
    """What is wrong with the writing of a rule; empty if nothing is."""
    if not isinstance(rule, tuple) or len(rule) not in (2, 3) or not isinstance(rule[0], str):
        return "a rule is (name in the file, path of the leaf) or (name, path, order of dims)"
    name, path, *dims = rule
    if dims and not _is_order(dims[0]):
        return (
            f"{dims[0]!r} is no order of dims, such as (1, 0) for a matrix that is stored transposed, or "
            "(1, 0, 0) where its first dim is two neighbouring ones of the leaf"
        )
    if path is None:
        return "what is left out has no dims to order" if dims else ""
    if not isinstance(path, str):
        return f"{path!r} is no path of a leaf; None leaves arrays of this name out"
    in_name, in_path = _STAR.findall(name), _STAR.findall(path)
    if in_name[: len(in_path)] != in_path or "**" in in_name[len(in_path) :]:
        return (
            f"the stars of {path!r} must be the first of {name!r}, in their order; those that it lacks are `*`, and "
            "count along its leading dims"
        )
    return ""
