"""The rule for products in FP8: what it takes, what it refuses and why, and how files write it."""

import numpy as np
import pytest

import outlay
from outlay.errors import LayoutError
from outlay.layout import fp8

KERNEL = {"dense": {"kernel": np.ones((16, 8), np.float32)}}


def test_a_file_writes_and_reads_it(tmp_path):
    layout = outlay.Layout(
        [
            ("**.kernel", fp8()),
            outlay.Rule("head", fp8("blockwise", "e5m2", "e4m3"), optional=True),
            ("up", fp8("delayed")),
        ]
    )
    text = outlay.layout.write_layout(layout)
    assert "fp8 = true" in text
    assert 'scaling = "blockwise"' in text
    assert 'scaling = "delayed"' in text
    (tmp_path / "layout.toml").write_text(text)
    assert outlay.layout.read_layout(tmp_path / "layout.toml") == layout


@pytest.mark.parametrize("value", ["false", '{ scaling = "row" }', '{ forward = "e3m4" }', "{ axis = 1 }"])
def test_a_file_with_another_value_says_what_it_takes(tmp_path, value):
    (tmp_path / "layout.toml").write_text(f'[[rule]]\nmatch = "**"\nfp8 = {value}\n')
    with pytest.raises(LayoutError, match=r"layout.toml:3(.|\n)*fp8 takes true, or a table such as"):
        outlay.layout.read_layout(tmp_path / "layout.toml")


def test_all_that_is_wrong_is_listed():
    with pytest.raises(LayoutError, match=r"'blockwise'(.|\n)*forward='e4m4'(.|\n)*backward='fp8'"):
        fp8("blokwise", "e4m4", "fp8")  # pyright: ignore[reportArgumentType]


@pytest.mark.parametrize("pattern", ["@Block.mlp", "@model.py:12"])
def test_a_value_inside_the_step_is_no_parameter(pattern):
    with pytest.raises(LayoutError, match="asked for by parameter"):
        outlay.Layout([(pattern, fp8())])


def test_a_batch_is_no_parameter():
    layout = outlay.Layout([("batch.x", fp8())]) + outlay.data_parallel()
    with pytest.raises(LayoutError, match=r"batch.x(.|\n)*it is a sample"):
        layout.plan(KERNEL, outlay.mesh(data=8), batch={"x": np.ones((8, 16), np.float32)})


def test_it_places_nothing_and_takes_nothing_from_other_rules():
    rules = outlay.Layout([("**.kernel", fp8())])
    with pytest.raises(LayoutError, match="no rule"):
        rules.plan(KERNEL, outlay.mesh(data=8))
    plan = (rules + outlay.fsdp(min_size=8)).plan(KERNEL, outlay.mesh(data=8))
    assert plan["dense.kernel"].local_shape == (2, 8)
    assert "products in FP8" in plan["dense.kernel"].reason


def test_a_pattern_that_matches_nothing_is_refused():
    layout = outlay.Layout([("**.kernels", fp8())]) + outlay.replicate()
    with pytest.raises(LayoutError, match=r"\*\*\.kernels"):
        layout.plan(KERNEL, outlay.mesh(data=8))
