"""What rounding explains: sums of bfloat16 in two orders are the same, and one addend less is not."""

import jax.numpy as jnp
import numpy as np

from outlay.analysis.verify.as_compiled.closeness import close, moved

ROWS = np.abs(np.random.default_rng(0).normal(size=(512, 256))).astype(jnp.bfloat16)
KEY = ("output", "outputs.sums")


def summed(rows):
    """Add up rows one after the other, as a scatter does, each sum rounded to bfloat16."""
    total = np.zeros(rows.shape[1:], jnp.bfloat16)
    for row in rows:
        total = (total.astype(np.float32) + row.astype(np.float32)).astype(jnp.bfloat16)
    return {KEY: total.astype(np.float32)}


def check(got, *, precise):
    others = [summed(moved(ROWS, float(jnp.finfo(jnp.bfloat16).eps) / 2, seed)) for seed in range(3)]
    exact = {KEY: ROWS.astype(np.float64).sum(axis=0)} if precise else None
    (one,) = close(1, {}, got, summed(ROWS), others, frozenset(), 1, precise=exact)
    return one


def of_eight_devices(rows):
    """Add up rows on each of eight devices, and what they have in float32."""
    return {KEY: np.sum([summed(part)[KEY] for part in np.split(rows, 8)], axis=0)}


def test_sums_of_bfloat16_in_another_order_are_the_same_once_float64_has_shown_how_far_one_device_is_off():
    got = of_eight_devices(ROWS)
    assert check(got, precise=False).fault, "moved numbers explain it alone: this test shows nothing"
    one = check(got, precise=True)
    assert one.fault == ""
    assert "in float64" in one.reason


def test_what_is_left_out_is_still_a_fault():
    assert check({KEY: np.zeros(256, np.float32)}, precise=True).fault
    assert check({KEY: 4 * of_eight_devices(ROWS)[KEY]}, precise=True).fault
