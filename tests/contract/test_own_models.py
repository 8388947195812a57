"""Models as people write them, with their own training steps: few lines lay them out, and the numbers are theirs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import equinox as eqx
import jax
import numpy as np
import pytest
from tests.contract.own_models import equinox_models, flax_models, other_models
from tests.contract.own_models.own_model import OwnModel, lines_for_outlay, row_of_guide
from tests.contract.placed_as_planned import assert_placed_as_planned

MAKERS = [*equinox_models.MODELS, *flax_models.MODELS, *other_models.MODELS]
MOST_LINES = 5
GUIDE = Path(__file__).parents[2] / "docs" / "guides" / "lay_out_your_own_model.md"
NUM_STEPS = 3


@pytest.fixture(autouse=True)
def as_users_write_it() -> Any:
    """Users add biases by rank promotion, and read dtypes as NumPy has them; the tests of this library refuse both."""
    with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
        yield


@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_few_lines_lay_it_out_and_it_trains_as_alone(make: Callable[[], OwnModel]) -> None:
    assert 1 <= len(lines_for_outlay(make)) <= MOST_LINES, lines_for_outlay(make)
    model = make()
    program, key = model.program, jax.random.key(3)
    assert any(leaf.is_split for leaf in program.plan.state)

    state, outputs = program.init(key), None
    parts, alone = model.init(key), None
    for _ in range(NUM_STEPS):
        state, outputs = program(state, model.batch)
        *parts, alone = model.train(*parts, model.batch)
    assert_placed_as_planned(state, program.plan)
    assert_same(model.parts_of(state), list(parts), model.tolerance)
    assert_same(outputs, alone, model.tolerance)


def test_the_guide_has_the_table_of_them() -> None:
    table = "\n".join(row_of_guide(make) for make in MAKERS)
    assert table in GUIDE.read_text(encoding="utf-8"), f"the table is now:\n{table}"


def assert_same(ours: Any, theirs: Any, tolerance: float) -> None:
    for one, other in zip(arrays(ours), arrays(theirs), strict=True):
        np.testing.assert_allclose(one, other, rtol=10 * tolerance, atol=tolerance)


def arrays(tree: Any) -> list[np.ndarray]:
    """The arrays of a tree, of keys their bits."""
    leaves = jax.tree.leaves(eqx.filter(tree, eqx.is_array))
    return [
        np.asarray(jax.random.key_data(leaf) if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key) else leaf)
        for leaf in leaves
    ]
