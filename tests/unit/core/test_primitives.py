"""The table of primitives knows each primitive of the installed JAX, and what it says of them is so."""

import collections
import sys

import jax
import jax.ad_checkpoint
import jax.numpy as jnp
import jax.scipy.linalg
import jax.scipy.special
import numpy as np
import pytest
from jax.extend.core import Primitive

from outlay.core.primitives import EACH_ENTRY, KEEPS, KINDS, kind_of


def primitives_of_jax():
    """Return all primitives that modules of JAX define, by name.

    Without those that stand inside kernels only, and experimental ones: which of their modules are imported depends on
    the tests that ran before.
    """
    left_out = ("pallas", "mosaic", "experimental", "thunky")
    names = [name for name in sys.modules if name.partition(".")[0] == "jax"]
    modules = [sys.modules[name] for name in names if not any(part in name for part in left_out)]
    return {one.name: one for module in modules for one in vars(module).values() if isinstance(one, Primitive)}


def test_each_primitive_of_this_jax_has_a_row():
    names = primitives_of_jax()
    assert {"add", "scan", "dot_general"} <= names.keys(), "the search sees no primitives at all"
    unknown = sorted(name for name in names if kind_of(name) is None)
    assert not unknown, f"give each a row in core/primitives.py, by what it does with entries: {unknown}"


def test_no_primitive_has_two_rows():
    counts = collections.Counter(name for names in KINDS.values() for name in names)
    assert [name for name, count in counts.items() if count > 1] == []


_X = np.linspace(0.1, 0.9, 6, dtype=np.float32).reshape(2, 3)


def _functions():
    """Yield those of `jax.lax` that have the name of a primitive, with as many operands as they take."""
    for name in sorted(EACH_ENTRY):
        function = getattr(jax.lax, name, None)
        for num in (1, 2, 3) if callable(function) else ():
            try:
                shapes = jax.eval_shape(function, *[_X] * num)
            except Exception:
                continue
            if getattr(shapes, "shape", None) == _X.shape:
                yield name, lambda x, function=function, num=num: function(*[x] * num)
                break


def test_what_is_by_entry_goes_with_a_permutation_of_the_entries():
    functions = dict(_functions())
    assert len(functions) > 40
    order = np.random.default_rng(0).permutation(_X.size)

    def permuted(x):
        return jnp.ravel(x)[order].reshape(x.shape)

    results = jax.jit(lambda x: {name: (permuted(f(x)), f(permuted(x))) for name, f in functions.items()})(_X)
    for name, (after, before) in results.items():
        after, before = (np.asarray(one, np.complex128) for one in (after, before))
        np.testing.assert_allclose(after, before, rtol=1e-5, err_msg=name)  # vectors are rounded otherwise than rests


@pytest.mark.parametrize("name", ["reshape", "rev", "squeeze", "transpose", "convert_element_type", "copy"])
def test_what_keeps_its_operand_has_its_entries(name):
    x = jnp.asarray(_X)[None]
    parameters = {
        "reshape": {"new_sizes": (6,), "dimensions": None, "sharding": None},
        "rev": {"dimensions": (1,)},
        "squeeze": {"dimensions": (0,)},
        "transpose": {"permutation": (2, 0, 1)},
        "convert_element_type": {"new_dtype": np.dtype("float32"), "weak_type": False, "sharding": None},
        "copy": {},
    }[name]
    primitive = primitives_of_jax()[name]
    assert name in KEEPS
    np.testing.assert_array_equal(np.sort(np.ravel(primitive.bind(x, **parameters))), np.sort(np.ravel(x)))
