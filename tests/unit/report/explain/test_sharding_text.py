"""Shardings as both JAX versions' compilers wrote them for specs on a mesh x=4, y=2, and on y=2, x=4."""

import pytest

from outlay.analysis.findings.compiler_messages import read_sharding

MESH = (("x", 4), ("y", 2))


@pytest.mark.parametrize(
    ("text", "dims"),
    [
        ("{devices=[2,1,4]<=[4,2]T(1,0)}", (("y",), (), ("x",))),
        ("{devices=[1,8,1]<=[8]}", ((), ("x", "y"), ())),
        ("{devices=[4,1,1,2]<=[8] last_tile_dim_replicate}", (("x",), (), ())),
        ("{devices=[1,1,2,4]<=[4,2]T(1,0) last_tile_dim_replicate}", ((), (), ("y",))),
        ("{devices=[8,1,1]<=[4,2]T(1,0)}", (("y", "x"), (), ())),
        ("{devices=[4,2]<=[8]}", (("x",), ("y",))),
        ("{mesh['x'=4,'y'=2], [{'y'}, {}, {'x'}]}", (("y",), (), ("x",))),
        ("{mesh['x'=4,'y'=2], [{'y', 'x'}, {}, {}]}", (("y", "x"), (), ())),
        ("{replicated}", ()),
    ],
)
def test_shardings(text, dims):
    assert read_sharding(text, MESH) == dims


def test_axes_of_one_size_are_told_apart_by_their_order():
    square = (("a", 2), ("b", 2))
    assert read_sharding("{devices=[2,2]<=[4]}", square) == (("a",), ("b",))
    for not_understood in ("{devices=[2,2]<=x}", "{devices=[2,2]<=[2,"):
        assert read_sharding(not_understood, square) is None
    assert read_sharding("{devices=[2,2]<=[2,2]T(1,0)}", square) == (("b",), ("a",))
    assert read_sharding("{devices=[2,1,2]<=[2,2]T(1,0) last_tile_dim_replicate}", square) == (("b",), ())


@pytest.mark.parametrize("text", ["{maximal device=0}", "{manual}", "{devices=[3]<=[3]}", "nonsense", ""])
def test_other_text_than_a_sharding_is_no_spec(text):
    assert read_sharding(text, MESH) is None
