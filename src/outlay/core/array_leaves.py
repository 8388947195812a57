"""The arrays among the leaves of a tree, their types and bytes; what else is there is an error, or structure.

Arrays may stand in boxes with annotations, and in NNX objects; Equinox modules have functions and settings as leaves.
"""

from __future__ import annotations

import contextlib
import functools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from types import FunctionType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer

from outlay.core.error_types import Problem
from outlay.core.flat_nodes import flat_nodes, is_flat_node, users_nodes
from outlay.core.paths import flatten_paths

if TYPE_CHECKING:
    from outlay.core.annotated_boxes import Annotation
    from outlay.core.shared_objects import Objects

_OF_NO_NUMBERS = "OSUMm"
"""Kinds of NumPy's dtypes that JAX has not: objects, texts, dates."""


def is_array(leaf: Any) -> bool:
    """Return whether a leaf is an array, or a number that JAX takes for one."""
    if isinstance(leaf, np.ndarray | np.generic) and (leaf.dtype.kind in _OF_NO_NUMBERS or leaf.dtype.names):
        return False
    return isinstance(leaf, bool | int | float | complex) or (hasattr(leaf, "shape") and hasattr(leaf, "dtype"))


def is_real(dtype: Any) -> bool:
    """Return whether a dtype is of real numbers or booleans; NumPy does not count bfloat16 as a number, JAX does."""
    return any(jnp.issubdtype(dtype, kind) for kind in (jnp.bool_, jnp.integer, jnp.floating))


def dtype_and_shape(leaf: Any) -> str:
    """Write the type of an array, or of a number that JAX takes for one.

    >>> dtype_and_shape(np.zeros((3, 2), np.float32))
    'float32[3, 2]'
    >>> dtype_and_shape(jax.ShapeDtypeStruct((2,), "float64"))
    'float64[2]'
    """
    # Of an array as it is: `result_type` takes float64 for float32 while x64 is off.
    dtype = leaf.dtype if isinstance(leaf, jax.Array | jax.ShapeDtypeStruct) else jnp.result_type(leaf)
    return f"{dtype}{list(jnp.shape(leaf))}"


def num_bytes(shape: Sequence[int], dtype: Any) -> int:
    """Return the bytes of an array; of sub-byte dtypes (int4, float4) the bits are rounded up to bytes.

    Typed PRNG keys count the bytes of their key data.

    >>> num_bytes((4, 8), "float32")
    128
    >>> num_bytes((3,), jnp.int4)
    2
    """
    return -(-math.prod(shape) * num_bits(dtype) // 8)


@functools.lru_cache(maxsize=256)
def num_bits(dtype: Any) -> int:
    """Return the bits of one element of a dtype (a dtype object, a scalar type or a dtype's name)."""
    if str(dtype).startswith("key<"):  # typed PRNG keys are not NumPy dtypes
        return _KEY_BITS[str(dtype)]
    dtype = jnp.dtype(dtype)
    return 0 if dtype == jax.dtypes.float0 else jax.dtypes.itemsize_bits(dtype)


_KEY_BITS = {"key<fry>": 64, "key<rbg>": 128, "key<urbg>": 128}
"""Key data of JAX's PRNG implementations: threefry2x32, rbg, unsafe_rbg."""


def type_differences(
    before: Any, after: Any, type_of: Callable[[Any], str] = dtype_and_shape
) -> list[tuple[str, str | None, str | None]]:
    """List the leaves that differ in type between two trees: path, and the type in each; None where there is none."""
    old, new = ({path: type_of(leaf) for path, leaf in flatten_paths(tree)[0]} for tree in (before, after))
    return [(path, old.get(path), new.get(path)) for path in {**old, **new} if old.get(path) != new.get(path)]


def non_arrays(tree: Any) -> list[Problem]:
    """Return a problem for every leaf that is not an array and so cannot be laid out.

    >>> [problem.where for problem in non_arrays({"w": 1.0, "activation": "relu"})]
    ['activation']
    """
    return [
        Problem("not an array", path or "the tree itself", f"a {type(leaf).__name__}: {leaf!r:.60}", _way_out(leaf))
        for path, leaf in flatten_paths(tree)[0]
        if not is_array(leaf)
    ]


def _way_out(leaf: Any) -> str:
    if type(leaf).__module__.startswith("penzai."):
        return "take the values out of the model: model, params = pz.unbind_params(model, freeze=True)"
    return "keep it out of the tree: eqx.partition(model, eqx.is_array), nnx.split(model), or a static field"


def used_up(tree: Any, fix: str) -> list[Problem]:
    """Return a problem for every array of a tree whose memory is gone: a program that ran has taken it (donation)."""
    return [
        Problem("used up", path or "the tree itself", "its memory was given to a program that ran, or deleted", fix)
        for path, leaf in flatten_paths(tree)[0]
        if isinstance(leaf, jax.Array) and not isinstance(leaf, Tracer) and leaf.is_deleted()
    ]


@jax.tree_util.register_pytree_node_class
class Static:
    """A leaf that is not an array, stored in the tree's structure, so that no transformation of JAX sees it.

    Attributes:
        value: the leaf. If it is a function, calling this calls it, so that `model(x)` still works.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function that the leaf is."""
        return self.value(*args, **kwargs)

    def __eq__(self, other: object) -> bool:
        from outlay.core.same_values import is_same

        return isinstance(other, Static) and is_same(self.value, other.value)

    def __hash__(self) -> int:
        if isinstance(self.value, FunctionType):
            return hash(self.value.__code__)
        # Of other values that may be the same without being equal, such as partial functions, only the type is known.
        return hash(self.value if isinstance(self.value, str | int | float | type) else type(self.value))

    def __repr__(self) -> str:
        return f"Static({getattr(self.value, '__name__', self.value)!s})"

    def tree_flatten(self) -> tuple[tuple[()], Static]:
        """Return no leaves: everything is structure."""
        return (), self

    @classmethod
    def tree_unflatten(cls, static: Static, leaves: Any) -> Static:
        """Return the node unchanged: it is its own structure."""
        return static


def arrays_only(tree: Any) -> Any:
    """Return a tree as programs hold it: arrays, in containers that can also hold what stands for arrays.

    What is not an array in Equinox modules becomes `Static`, and nodes of users' own classes become `FlatNode`.
    As in Equinox, Python numbers in a module are settings, such as a dropout rate, and not parameters.
    """
    equinox = sys.modules.get("equinox")
    objects, tree = split_objects(tree)
    if equinox is None:
        return merge_objects(objects, flat_nodes(tree))

    def one(leaf: Any) -> Any:
        if _is_static(leaf):
            return leaf
        # Not None in their place: a state without its program could not be made whole again (decision 61).
        is_setting = isinstance(leaf, bool | int | float | complex) or not is_array(leaf)
        return Static(leaf) if is_setting else leaf

    def is_module(node: Any) -> bool:
        return isinstance(node, equinox.Module)

    def flattened(node: Any) -> tuple[list[Any], Any]:
        with_keys, structure = jax.tree_util.tree_flatten_with_path(node, is_leaf=_is_static)
        parts = jax.tree.leaves(node, is_leaf=lambda part: _is_static(part) or is_module(part))
        leaves = (leaf for part in parts for leaf in (map(one, _leaves(part)) if is_module(part) else [part]))
        return [(key, leaf) for (key, _), leaf in zip(with_keys, leaves, strict=True)], structure

    tree = flat_nodes(tree, flattened)
    arrays = jax.tree.map(lambda node: jax.tree.map(one, node) if is_module(node) else node, tree, is_leaf=is_module)
    return merge_objects(objects, arrays)


def split_objects(tree: Any) -> tuple[Objects | None, Any]:
    """Split a tree into its NNX objects, None if there are none, and a tree of arrays; see `shared_objects.py`."""
    # Nothing can hold an object of a library that is not imported.
    if "flax.nnx" not in sys.modules or not _has_objects(sys.modules["flax.nnx"], tree):
        return None, tree
    from outlay.core.shared_objects import take_objects_out

    return take_objects_out(tree)


def _has_objects(nnx: Any, tree: Any) -> bool:
    """Return whether a tree has modules and the like, or a variable twice.

    Other variables, and those of an `nnx.State`, are boxes around their arrays: such a tree is one of JAX.
    """
    kinds = nnx.Pytree | nnx.Variable | nnx.State
    leaves = jax.tree.leaves(tree, is_leaf=lambda node: isinstance(node, kinds))
    variables = [id(leaf) for leaf in leaves if isinstance(leaf, nnx.Variable)]
    return any(isinstance(leaf, nnx.Pytree) for leaf in leaves) or len({*variables}) < len(variables)


def merge_objects(objects: Objects | None, arrays: Any) -> Any:
    """Put arrays back into NNX objects: the inverse of `split_objects`. The objects are new ones.

    Args:
        objects: as `split_objects` returned them.
        arrays: arrays for them, in the same containers.
    """
    return arrays if objects is None else objects.merged(arrays)


def read_annotations(tree: Any) -> dict[str, Annotation]:
    """Return the annotation of each annotated array of a model, by path."""
    from outlay.core.annotated_boxes import annotation_of, is_annotated

    tree = jax.tree.map(
        lambda node: node.with_leaves(node.annotations) if is_flat_node(node) else node,
        flat_nodes(tree),
        is_leaf=lambda node: is_flat_node(node) or is_annotated(node),
    )
    annotations = ((path, annotation_of(node)) for path, node in flatten_paths(tree, is_leaf=is_annotated)[0])
    return {path: annotation for path, annotation in annotations if annotation is not None}


@contextlib.contextmanager
def unplaced() -> Iterator[None]:
    """Have NNX create annotated variables within the block without placing them where their annotations say."""
    nnx = sys.modules.get("flax.nnx")
    with nnx.use_eager_sharding(False) if nnx else contextlib.nullcontext():
        yield


def placed_by_plan(init: Callable[..., Any], *args: Any) -> Any:
    """Return what `init` creates, even where NNX cannot place its annotated variables on any mesh.

    NNX records in each variable whether it was placed, and JAX takes trees with different records for different trees.
    So placement is switched off only where it fails.
    """
    try:
        return init(*args)
    except Exception as error:  # Flax raises a ValueError, or asserts without a word
        if "flax.nnx" not in sys.modules:
            raise
        with unplaced(), contextlib.suppress(Exception):
            return init(*args)
        # Without placement it fails as well, so the first error is the real one.
        raise error


def _is_static(node: Any) -> bool:
    return isinstance(node, Static)


def _leaves(module: Any) -> list[Any]:
    return jax.tree.leaves(module, is_leaf=_is_static)


def as_model(tree: Any) -> Any:
    """Return a tree with the functions and settings of its Equinox modules back in their places.

    The state of a program holds only a module's arrays; its other leaves are `Static` there. Steps and losses are given
    complete modules. Use this to call a model outside of a step.

    Args:
        tree: a state, or a part of one.

    Example:
        >>> import equinox as eqx
        >>> init = lambda key: eqx.nn.MLP(2, 1, 8, depth=1, key=key)
        >>> step = lambda model, x: (model, jax.vmap(model)(x))
        >>> x = np.ones((8, 2), np.float32)
        >>> program = outlay.program(step, init, x, layout=outlay.data_parallel(), mesh=outlay.mesh(data=8))
        >>> outlay.train.as_model(program.init(jax.random.key(0))).activation.__name__
        'relu'
    """

    def whole(node: Any) -> Any:
        return node.value if _is_static(node) else node

    objects, tree = split_objects(tree)
    return merge_objects(objects, jax.tree.map(whole, users_nodes(tree, whole), is_leaf=_is_static))
