"""Models as people write them, with their own training steps: few lines lay them out, and the numbers are theirs."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.contract.own_models import equinox_models, flax_models, other_models
from tests.contract.own_models.own_model import OwnModel, lines_for_outlay, row_of_guide
from tests.contract.placed_as_planned import assert_placed_as_planned

import outlay
from outlay.core.error_types import ProgramError

pytestmark = pytest.mark.newest

MAKERS = [*equinox_models.MODELS, *flax_models.MODELS, *other_models.MODELS]
PROVED = [flax_models.normed]
"""One that `outlay.verify` proves in seconds; the others it proves in up to 34. Modules of Equinox are proved in
test_equinox_modules.py, and plain trees in many other tests."""

ON_NEWEST_JAX = [flax_models.normed, other_models.low_rank_adapters]
"""Two ways to hold a state. Equinox is in test_equinox_modules.py, Linen and Haiku are in test_frameworks.py, and a
convolution is in test_layouts.py."""
BY_TURNS = itertools.chain(*itertools.zip_longest(equinox_models.MODELS, flax_models.MODELS, other_models.MODELS))
WITH_MARKS = [
    make if make in ON_NEWEST_JAX else pytest.param(make, marks=pytest.mark.any_jax) for make in BY_TURNS if make
]

MOST_LINES = 5
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "lay_out_your_own_model.md"
NUM_STEPS = 2


@functools.cache
def made(make: Callable[[], OwnModel]) -> OwnModel:
    """Made once for the tests of this file."""
    return make()


@pytest.fixture(autouse=True)
def as_users_write_it() -> Any:
    """Users add biases by rank promotion, and read dtypes as NumPy has them; the tests of this library refuse both."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.thorough  # test_frameworks.py and test_any_model.py have the libraries
@pytest.mark.parametrize("make", WITH_MARKS, ids=lambda make: make.__name__)
def test_few_lines_lay_it_out_and_it_trains_as_alone(make: Callable[[], OwnModel]) -> None:
    assert 1 <= len(lines_for_outlay(make)) <= MOST_LINES, lines_for_outlay(make)
    model = made(make)
    program, key = model.program, jax.random.key(3)
    assert any(leaf.is_split for leaf in program.plan.state)

    state, outputs, alone = program.init(key), None, None
    # What they begin with is the same on one device: test_frameworks.py makes it there too.
    parts = outlay.train.as_model(anywhere(model.parts_of(state)))
    for _ in range(NUM_STEPS):
        *parts, alone = model.train(*parts, model.batch)
    for _ in range(NUM_STEPS):
        state, outputs = program(state, model.batch)
    assert_placed_as_planned(state, program.plan)
    assert_same(model.parts_of(state), list(parts), model.tolerance)
    assert_same(outputs, alone, model.tolerance)

    facts = outlay.explain(program)
    assert facts.collectives
    assert all(finding.text and finding.fix for finding in facts.findings), facts
    if make in PROVED:
        assert outlay.verify(program, steps=1).verdict == "same"


@pytest.mark.any_jax
def test_a_shard_map_that_is_written_for_its_devices_has_no_reference_on_one() -> None:
    with pytest.raises(ProgramError, match=r"its own shard_map is written for its number of devices.*\n  fix: take"):
        outlay.verify(made(other_models.sharded_experts).program)


@pytest.mark.some_cases(1)
@pytest.mark.any_jax
@pytest.mark.parametrize("make", [equinox_models.recurrent, flax_models.normed], ids=lambda make: make.__name__)
def test_a_loop_that_says_nothing_of_devices_is_told_what_mode_manual_wants(make: Callable[[], OwnModel]) -> None:
    model = made(make)
    layout, parts = model.program.layout, list(model.parts)
    with pytest.raises(ProgramError, match=r"runs on each device's pieces.*\n(.*\n)*  fix: give its loss to outlay.tr"):
        lower(model.train, model.init, model.batch, layout=layout, mesh="data=8", mode="manual", parts=parts)


@pytest.mark.any_jax
def test_the_guide_has_the_table_of_them() -> None:
    table = "\n".join(row_of_guide(make) for make in MAKERS)
    assert table in GUIDE.read_text(encoding="utf-8"), f"the table is now:\n{table}"


def lower(*args: Any, **options: Any) -> Any:
    """Trace a program's step as it is run: in mode manual on pieces."""
    return outlay.program(*args, **options).lowered


def anywhere(tree: Any) -> Any:
    """Copy arrays as if nothing had said of them where they are, so that a step may still use several devices."""

    def copied(leaf: Any) -> Any:
        if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
            return jax.random.wrap_key_data(copied(jax.random.key_data(leaf)))
        return jnp.asarray(np.asarray(leaf))

    return jax.tree.map(copied, tree)


def assert_same(left: Any, right: Any, tolerance: float) -> None:
    for one, other in zip(arrays(left), arrays(right), strict=True):
        np.testing.assert_allclose(one, other, rtol=10 * tolerance, atol=tolerance)


def arrays(tree: Any) -> list[np.ndarray]:
    """The arrays of a tree, of keys their bits."""
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    return [
        np.asarray(jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for leaf in leaves
    ]
