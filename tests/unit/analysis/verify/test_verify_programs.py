"""No planted fault is called the same, in any dtype; no right program is called different."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from tests.unit.analysis.verify import verify_programs as programs
from tests.unit.analysis.verify.verify_right_programs import RIGHT

import outlay

pytestmark = pytest.mark.compiles


@pytest.mark.thorough  # test_verify_faults.py has some of them
def test_no_planted_fault_is_called_the_same() -> None:
    """In bfloat16, which allows most rounding; `test_verify_faults.py` has faults in float32."""
    faults = {fault.__name__: fault for fault in programs.FAULTS}
    assert len(faults) == 24
    verification = outlay.verify(programs.program(faults, jnp.bfloat16), steps=1, batches=programs.batches(1))
    verdicts = programs.verdicts(verification, faults)
    assert [name for name, of in verdicts.items() if "different" not in of] == []
    assert not {check.path: check.fault for check in verification.checks if check.path == "key" and check.fault}


# The plain one, and nine whose rounding comes nearest to a fault; the others only in bfloat16, where most is rounded.
IN_FLOAT32 = (
    *("by_sgd", "with_gradients_in_bf16", "computed_in_bf16", "accumulated_in_bf16", "in_int8", "by_lion"),
    *("shifted_bias_of_a_softmax", "variance_by_squares", "difference_of_equal_sums", "ranked"),
)


@pytest.mark.thorough  # test_verify.py and contracts have right ones
@pytest.mark.parametrize(
    ("dtype", "names"),
    [(jnp.float32, IN_FLOAT32), pytest.param(jnp.bfloat16, tuple(RIGHT), marks=pytest.mark.thorough)],
)
def test_no_right_program_is_called_different(dtype: Any, names: tuple[str, ...]) -> None:
    assert len(RIGHT) == 30
    right = {name: RIGHT[name] for name in names}
    verification = outlay.verify(programs.program(right, dtype), steps=1, batches=programs.batches(1))
    verdicts = programs.verdicts(verification, right)
    assert {name: of for name, of in verdicts.items() if of != {"same"}} == {}, verification.reasons
    verification.raise_if_different()
