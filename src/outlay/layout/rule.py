"""A rule: a path pattern and the placement of the leaves it matches."""

from __future__ import annotations

import collections
import functools
from dataclasses import dataclass, field
from typing import Any, Literal

from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from outlay.core.error_types import LayoutError, Problem
from outlay.core.one_line import OneLine
from outlay.core.paths import first_part, matches, pattern_problem, split_path
from outlay.layout.placement import Follow, On, Placement, Replicate, Storage, is_of_products, spec_dims, spec_text

Otherwise = Literal["error", "replicate", "another_dim"]
OTHERWISE: tuple[Otherwise, ...] = ("error", "replicate", "another_dim")

_IN_FILE = "[[rule]]"
"""Part of the source of a rule from a file: there messages name its line, not its number."""

Kind = Literal["state", "batch", "intermediate"]

SOURCE = "@"
"""The first character of patterns that name a value by the source that makes it: `@Block.mlp`, `@model.py:120`."""


@dataclass(frozen=True)
class Rule(OneLine):
    """Where the leaves matched by a pattern live.

    Patterns are globs over whole dotted paths: `*` is one part or a piece of one, `**` any number of parts. A pattern
    that begins with a wildcard matches leaves of the state only. The batch (`batch.**`), values that a step constrains
    by name (`grads.**`) and its outputs (`outputs.**`) are matched by patterns that begin with their name. A pattern
    that begins with `@` matches what a module or a function returns (`@Block.mlp`), or a line computes
    (`@model.py:120`).

    Attributes:
        pattern: the leaves it matches, such as `params.**.kernel`.
        placement: a `PartitionSpec`, `replicate()`, `on(...)`, `follow(...)`, `keep()`, `recompute()`, `on_host()` or a
            policy.
        otherwise: what to do with an indivisible dim: `error`, `replicate` that dim, or use `another_dim`.
        optional: allow the rule to match nothing.
        source: the strategy or file that wrote the rule, if any, for messages; equal rules may have different sources.

    Raises:
        LayoutError: the pattern or the placement is malformed, or a spec has one mesh axis twice.
    """

    pattern: str
    placement: Placement
    otherwise: Otherwise = "error"
    optional: bool = False
    source: str = field(default="", compare=False, repr=False)

    def __post_init__(self) -> None:
        problems = [p for p in (self._pattern_problem(), self._placement_problem(), self._otherwise_problem()) if p]
        if problems:
            raise LayoutError("this rule cannot be used:", problems)

    @classmethod
    def of(cls, item: Any) -> Rule:
        """Make a rule from a rule, a `(pattern, placement)` pair, or a placement for every leaf."""
        if isinstance(item, Rule):
            return item
        if isinstance(item, tuple) and len(item) == 2 and isinstance(item[0], str):
            return cls(*item)
        if isinstance(item, P | Replicate | On | Follow | Storage):
            return cls("**", item)
        what = f"a {type(item).__name__}" if item is not None else "nothing"
        problem = Problem("not a rule", f"{item!r:.80}", what, _instead_of(item))
        raise LayoutError("a layout is made of rules:", [problem])

    def matches(self, path: str, kind: Kind) -> bool:
        """Return whether the rule applies to a leaf. Leading wildcards reach state leaves only."""
        if self.is_by_source:
            name = path.rpartition("#")[0] or path  # values with one name and several shapes are numbered: `name#2`
            return kind == "intermediate" and path.startswith(SOURCE) and matches(self.pattern[1:], name[1:])
        # Else fsdp() would split the largest dim of an image instead of the batch (decision 5).
        if kind != "state" and first_part(self.pattern) != split_path(path)[0]:
            return False
        return matches(self.pattern, path)

    @property
    def is_by_source(self) -> bool:
        """Whether it names values inside the step by the module, function or line that makes them."""
        return self.pattern.startswith(SOURCE)

    @property
    def is_of_value(self) -> bool:
        """Whether it names values inside the step by their source, and not calls whose tokens are split."""
        return self.is_by_source and not hasattr(self.placement, "context_axis")

    @property
    def is_leading_wild(self) -> bool:
        """Whether the pattern begins with a wildcard, so that it may match leaves that its author did not think of."""
        return first_part(self.pattern) is None

    def names(self, root: str) -> bool:
        """Return whether the pattern begins with the plain name `root`."""
        return first_part(self.pattern) == root

    def named(self, number: int) -> str:
        r"""Name the rule as its author knows it, for messages: by its line in a file, or its number in the layout.

        Args:
            number: its position in the layout, from 0.

        >>> Rule("w", P("data")).named(0), Rule("**", P("data"), source="fsdp").named(2)
        ('rule 1 ("w", P(\'data\',))', 'rule 3 ("**", P(\'data\',)) of fsdp')
        """
        if _IN_FILE in self.source:
            return f"{self.source} {self.written}"
        return f"rule {number + 1} {self.written_with_source}"

    @property
    def written(self) -> str:
        """Pattern and placement, written as a pair."""
        return f'("{self.pattern}", {self.placement})'

    @property
    def written_with_source(self) -> str:
        """Pattern and placement, and the file or the strategy that wrote them."""
        return self.written + (f" of {self.source}" if self.source else "")

    @property
    def axes(self) -> tuple[str, ...]:
        """The mesh axes that the rule may use, as far as its placement tells."""
        if self.spec is not None:
            return tuple(axis for axes in spec_dims(self.spec, 0) for axis in axes)
        return tuple(getattr(self.placement, "axes", ()))

    @property
    def spec(self) -> P | None:
        """The spec in the rule, alone or beside a storage."""
        placement = self.placement.spec if isinstance(self.placement, Storage) else self.placement
        return placement if isinstance(placement, P) else None

    @property
    def is_policy(self) -> bool:
        """Whether the placement is chosen leaf by leaf."""
        return not isinstance(self.placement, P | Replicate | On | Follow | Storage)

    def __str__(self) -> str:
        placement = str(self.placement)
        if isinstance(self.placement, P):
            placement = spec_text(self.placement)
        if self.is_policy and type(self.placement).__name__ == "function":
            placement = f"policy {getattr(self.placement, '__name__', '?')}"
        otherwise = "" if self.otherwise == "error" else f", otherwise {self.otherwise}"
        return f"{self.pattern}  {placement}{otherwise}{' (optional)' if self.optional else ''}"

    def _pattern_problem(self) -> Problem | None:
        if not isinstance(self.pattern, str):
            what = f"the pattern is a {type(self.pattern).__name__}, not a string"
            return Problem("not a pattern", repr(self.pattern), what, 'write a glob such as "params.**.kernel"')
        what = pattern_problem(self.pattern.removeprefix(SOURCE))
        if what is None:
            return None
        from outlay.layout.suggested_patterns import as_dotted, as_glob

        suggested = as_dotted(self.pattern) or as_glob(self.pattern)
        fix = "patterns are globs over dotted paths, not regular expressions or key paths: write "
        fix = f'{fix}"{suggested}"' if suggested else 'write a glob such as "params.**.kernel"'
        return Problem("malformed pattern", repr(self.pattern), what, fix)

    def _placement_problem(self) -> Problem | None:
        if self.spec is not None:
            return spec_problem(self.spec, str(self.pattern))
        if not isinstance(self.placement, Replicate | On | Follow | Storage) and not callable(self.placement):
            what = f"the placement is {self.placement!r:.80}, a {type(self.placement).__name__}"
            fix = _spec_instead_of(self.placement) or (
                "use a PartitionSpec, outlay.replicate(), a policy function, or from outlay.layout on(...), "
                "follow(...), on_host(), keep() or recompute()"
            )
            return Problem("not a placement", str(self.pattern), what, fix)
        if hasattr(self.placement, "context_axis") and not str(self.pattern).startswith(SOURCE):
            what = f"{self.placement} is about calls of attention, and the pattern names no call"
            fix = 'name calls by their source: "@attention", "@dot_product_attention", or a line, "@model.py:120"'
            return Problem("not a call", str(self.pattern), what, fix)
        if is_of_products(self.placement) and str(self.pattern).startswith(SOURCE):
            what = "products in FP8 are asked for by parameter, and the pattern names values by their source"
            return Problem("no parameter", str(self.pattern), what, 'name parameters: "**.kernel"')
        return None

    def _otherwise_problem(self) -> Problem | None:
        if self.otherwise in OTHERWISE:
            return None
        return Problem(
            "unknown fallback", str(self.pattern), f"otherwise={self.otherwise!r}", f"use one of {OTHERWISE}"
        )


STRATEGY_NAMES = {
    "pp": 'Layout([("params.layers.**", outlay.layout.pipeline("stage", microbatches=8))])',
    "tp": "tensor_parallel()",
    "tensor_parallel": "tensor_parallel()",
    "fsdp": "fsdp()",
    "zero3": "fsdp()",
    "zero1": "zero1()",
    "zero2": "zero2()",
    "dp": "data_parallel()",
    "ddp": "data_parallel()",
    "data_parallel": "data_parallel()",
    "replicate": "replicate()",
}
"""The strategies by the names that people, recipes and the command line have for them."""


def _instead_of(item: Any) -> str:
    """Return what to write instead of something that is not a rule."""
    example = 'write ("params.**.kernel", P(None, "model"))'
    if isinstance(item, str):
        if item.endswith(".toml"):
            return f"outlay.layout.read_layout({item!r}) reads a file"
        names = item.replace(" ", "").split("+")
        if all(name in STRATEGY_NAMES for name in names):
            first = [*STRATEGY_NAMES]  # what names layers comes before what takes the dims that are left
            calls = [f"outlay.{STRATEGY_NAMES[name]}" for name in sorted(names, key=first.index)]
            batch = [] if "outlay.data_parallel()" in calls else ["outlay.data_parallel()"]
            return f"names are for the command line and recipes; write {' + '.join([*calls, *batch])}"
        return f'a pattern needs a placement: ("{item}", P(None, "model"))'
    if item is None:
        return "outlay.fsdp() + outlay.data_parallel(), or outlay.data_parallel() to split only the batch"
    if callable(item) and getattr(item, "__name__", "") in STRATEGY_NAMES:
        return f"call it: outlay.{item.__name__}()"
    if isinstance(item, tuple | list):
        return f"a rule is a pair of a pattern and a placement: {example.removeprefix('write ')}"
    return example


def _spec_instead_of(placement: Any) -> str:
    """Return the spec that was probably meant; empty if nothing like one was given."""
    if placement is None:
        return "P() or outlay.replicate() for a whole copy on every device; from jax.sharding import PartitionSpec as P"
    if isinstance(placement, NamedSharding):
        return f"a rule holds the spec alone, for any mesh: {spec_text(placement.spec)}"
    dims = [placement] if isinstance(placement, str) else placement if isinstance(placement, tuple | list) else ()
    if dims and all(each is None or isinstance(each, str) for each in dims):
        return f"P({', '.join(map(repr, dims))}); from jax.sharding import PartitionSpec as P"
    return ""


def spec_problem(spec: P, where: str) -> Problem | None:
    """Return the problem of a spec that is wrong on any mesh: an entry without axes, or an axis twice; or None."""
    try:
        fault = _spec_fault(spec)
    except TypeError:  # an entry that cannot even be hashed
        fault = _spec_fault.__wrapped__(spec)
    return None if fault is None else Problem(fault[0], where, *fault[1:])


@functools.lru_cache(maxsize=1024)
def _spec_fault(spec: P) -> tuple[str, str, str] | None:
    if spec.unreduced or spec.reduced:
        what = f"{spec} also says over which axes sums are still to be taken, and a layout says where arrays live"
        return "not a spec", what, "leave unreduced= and reduced= out: a state holds no partial sums"
    odd = [entry for entry in spec if not _names_axes(entry)]
    if odd:
        what = f"{spec} holds {odd[0]!r}, which names no mesh axis"
        return "not a spec", what, "use an axis, a tuple of axes, or None for a dim left free"
    counted = collections.Counter(axis for axes in spec_dims(spec, 0) for axis in axes)
    twice = [axis for axis, count in counted.items() if count > 1]
    if twice:
        what = f"axis {twice[0]!r} appears {counted[twice[0]]} times in {spec}, but it can split only one dim"
        return "one axis twice", what, "keep it for one dim, use None for the others"
    return None


def _names_axes(entry: Any) -> bool:
    if entry is None or isinstance(entry, str):
        return entry != ""
    return isinstance(entry, tuple) and all(isinstance(axis, str) and axis for axis in entry)
