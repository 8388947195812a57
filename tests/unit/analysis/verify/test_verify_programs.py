"""No planted fault is called the same, in any dtype; no right program is called different."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import pytest
from tests.unit.analysis.verify import verify_programs as programs
from tests.unit.analysis.verify.verify_right_programs import RIGHT

import outlay

pytestmark = pytest.mark.compiles


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_planted_fault_is_called_the_same(dtype: Any) -> None:
    faults = {fault.__name__: fault for fault in programs.FAULTS}
    assert len(faults) == 24
    verification = outlay.verify(programs.program(faults, dtype), steps=1, batches=programs.batches(1))
    verdicts = programs.verdicts(verification, faults)
    assert [name for name, of in verdicts.items() if "different" not in of] == []
    assert not {check.path: check.fault for check in verification.checks if check.path == "key" and check.fault}


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_no_right_program_is_called_different(dtype: Any) -> None:
    assert len(RIGHT) == 30
    verification = outlay.verify(programs.program(RIGHT, dtype), steps=1, batches=programs.batches(1))
    verdicts = programs.verdicts(verification, RIGHT)
    assert {name: of for name, of in verdicts.items() if of != {"same"}} == {}, verification.reasons
    verification.raise_if_different()
