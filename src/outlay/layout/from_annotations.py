"""Make layouts from a model's own annotations: Flax's partitioning metadata, and logical axis names with rules."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

import jax
from jax.sharding import PartitionSpec as P

from outlay.core.annotated_boxes import Annotation, Axes
from outlay.core.array_leaves import read_annotations, unplaced
from outlay.core.error_types import LayoutError, Problem
from outlay.core.flat_nodes import flat_nodes
from outlay.core.paths import flatten_paths, join_parts, matches, split_path
from outlay.core.quantities import counted
from outlay.core.suggest import did_you_mean
from outlay.layout.layout import Layout
from outlay.layout.placement import is_optimizer, spec_text
from outlay.layout.rule import Rule

LogicalRules = Mapping[str, Axes] | Iterable[tuple[str, Axes]]


def from_annotations(model: Any, rules: LogicalRules | None = None, *, below: str = "") -> Layout:
    """Make the layout that a model's own annotations ask for, to be composed with others.

    It reads `nn.with_partitioning` and `nn.with_logical_partitioning` of Flax Linen, `out_sharding` and
    `nnx.with_partitioning` of NNX (names, specs, or a `NamedSharding`, whose mesh is not read), and arrays with named
    axes (haliax, penzai). Similar layers become one rule. Dims that the annotations leave free can be claimed by other
    layouts.

    Args:
        model: the state, or a part of it, with its annotations, as arrays or shapes; or the function of a key that
            creates it, which is traced and not run.
        rules: the mesh axis (or several, or None) for each logical name, as in `flax.linen.logical_axis_rules`: the
            first rule wins whose axes the array does not use yet. Without rules, names are mesh axes.
        below: the path of `model` in the program's state, such as `params`, if it is only a part.

    Raises:
        LayoutError: nothing is annotated, logical names have no rule, or NNX annotates fewer dims than a stack of
            layers has; all such names and arrays are listed.

    Example:
        >>> import flax.linen as nn
        >>> kernel_init = nn.with_logical_partitioning(nn.initializers.lecun_normal(), ("embed", "mlp"))
        >>> dense = nn.Dense(16, kernel_init=kernel_init)
        >>> rules = [("embed", None), ("mlp", "model")]
        >>> print(outlay.layout.from_annotations(lambda key: dense.init(key, jnp.ones((1, 8))), rules))
        1. params.kernel  P(None, 'model')
    """
    tree = _tree(model)
    # Optimizer state carries copies of its parameters' annotations, and follows them anyway.
    asked = {path: annotation for path, annotation in read_annotations(tree).items() if not is_optimizer(path)}
    if not asked:
        fix = "nn.with_partitioning(init, (None, 'model')) in the model, or rules by path: outlay.Layout([...])"
        raise _unusable("no annotations", model, "none of its arrays is annotated", fix)
    _check_stacks(asked)
    known = None if rules is None else tuple(_pairs(rules))
    _check_known(asked, known)
    specs = {path: _spec(annotation, known) for path, annotation in asked.items()}
    paths = [path for path, _ in flatten_paths(tree)[0]]
    prefix = f"{below}." if below else ""
    return Layout([Rule(prefix + pattern, spec, source="from_annotations") for pattern, spec in _folded(specs, paths)])


def _pairs(rules: LogicalRules) -> Iterable[tuple[str, Axes]]:
    return cast(Iterable[tuple[str, Axes]], rules.items() if isinstance(rules, Mapping) else rules)


def _tree(model: Any) -> Any:
    """Return the arrays of a model, in the boxes that carry the annotations."""
    nnx, linen = sys.modules.get("flax.nnx"), sys.modules.get("flax.linen")
    if nnx and isinstance(model, nnx.Module):
        return nnx.state(model)
    if linen and isinstance(model, linen.Module):
        fix = "outlay.layout.from_annotations(lambda key: model.init(key, example))"
        raise _unusable("no arrays", model, "a Linen module has no arrays before it is initialized", fix)
    if callable(model) and jax.tree_util.all_leaves([model]):  # and not a module that is a tree
        with unplaced():
            return jax.eval_shape(lambda key: flat_nodes(model(key)), jax.random.key(0))
    return model


def _unusable(kind: str, model: Any, what: str, fix: str) -> LayoutError:
    problem = Problem(kind, type(model).__name__, what, fix)
    return LayoutError("a layout cannot be made from annotations:", [problem])


def _names(annotation: Annotation) -> tuple[str, ...]:
    """Return the names of an annotation; a dim may have several."""
    parts = (part if isinstance(part, tuple) else (part,) for part in annotation.names)
    return tuple(name for name in itertools.chain.from_iterable(parts) if name is not None)


def _check_stacks(asked: Mapping[str, Annotation]) -> None:
    """Raise for annotations with another number of dims than the array, as of one layer of a stack."""
    problems = []
    for path, annotation in asked.items():
        names, shape = annotation.names, annotation.shape
        if shape is None or len(names) == len(shape):
            continue
        num = max(0, len(shape) - len(names))
        inner = spec_text(P(*[None] * num, *names), quote='"')
        problems.append(
            Problem(
                "annotation of other dims",
                path,
                f"{names} names {counted(len(names), 'dim')}, and the array {shape} has {len(shape)}: layers stacked "
                "by nnx.vmap or nnx.scan have a dim in front, of which their annotations do not know",
                "nnx.vmap(..., transform_metadata={nnx.PARTITION_NAME: None}), by which Flax adds a name for that dim; "
                f"or a name for each dim, None included; or a rule by path in place of it: ({path!r}, {inner})",
            )
        )
    if problems:
        head = f"{counted(len(problems), 'annotation names', 'annotations name')} other dims than the array has:"
        raise LayoutError(head, problems)


def _check_known(asked: Mapping[str, Annotation], rules: Sequence[tuple[str, Axes]] | None) -> None:
    """Raise for logical names without a rule, each with the arrays that have it."""
    if rules is None:
        return
    where: dict[str, list[str]] = {}
    for path, annotation in asked.items():
        known = {name for name, _ in (*annotation.rules, *rules)}
        for name in _names(annotation):
            if name not in known:
                where.setdefault(name, []).append(path)
    names = [name for name, _ in rules]
    problems = [
        Problem(
            "logical name without a rule",
            repr(name),
            f"a dim of {counted(len(paths), 'array')}, such as {paths[0]}, has it ({did_you_mean(name, names)})",
            f'add ("{name}", None) to the rules, or the mesh axis that it is split over',
        )
        for name, paths in where.items()
    ]
    if problems:
        head = f"the rules leave out {counted(len(problems), 'logical name')} of the model:"
        raise LayoutError(head, problems)


def _spec(annotation: Annotation, rules: Sequence[tuple[str, Axes]] | None) -> P:
    """Return the mesh axes of each dim. A mesh axis splits one dim of an array, the first that asks for it."""
    if rules is None and not annotation.rules:
        return _trimmed(annotation.names)
    used: set[str] = set()
    dims = []
    for part in annotation.names:
        names = part if isinstance(part, tuple) else (part,)
        axes: list[str] = []
        for name in names:
            axes += _first_free(name, (*annotation.rules, *(rules or ())), used)
            used.update(axes)
        dims.append(tuple(axes) if len(axes) > 1 else axes[0] if axes else None)
    return _trimmed(tuple(dims))


def _first_free(name: str | None, rules: Iterable[tuple[str, Axes]], used: set[str]) -> tuple[str, ...]:
    for logical, axes in rules:
        if logical == name:
            wide = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
            if not used.intersection(wide):
                return wide
    return ()


def _trimmed(dims: tuple[Any, ...]) -> P:
    """Return a spec without trailing dims that are not split."""
    while dims and dims[-1] is None:
        dims = dims[:-1]
    return P(*dims)


def _folded(specs: Mapping[str, P], paths: Sequence[str]) -> Iterable[tuple[str, P]]:
    """Yield patterns and specs; arrays of numbered layers share a pattern if every match has the same spec."""
    groups: dict[str, list[str]] = {}
    for path in specs:
        parts = split_path(path)
        number = next((i for i, part in enumerate(parts) if part.isdigit()), None)  # the layer's, outermost
        general = ".".join("*" if i == number else join_parts((part,)) for i, part in enumerate(parts))
        groups.setdefault(general, []).append(path)
    for general, group in groups.items():
        reached = [path for path in paths if matches(general, path)]
        if len(group) > 1 and set(reached) == set(group) and len({spec_text(specs[path]) for path in group}) == 1:
            yield general, specs[group[0]]
        else:
            yield from ((path, specs[path]) for path in group)
