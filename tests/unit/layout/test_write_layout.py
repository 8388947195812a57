import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

import outlay
from outlay.layout.hybrid import hsdp
from outlay.layout.placement import LeafView
from outlay.layout.read_layout import read_layout_file
from outlay.layout.strategies import data_parallel, fsdp, tensor_parallel, zero1, zero2
from outlay.layout.write_layout import write_layout
from outlay.models.transformer.published import MODELS
from outlay.recipes.lm import lm_layouts
from outlay.recipes.recipe import training_layouts

OURS = {**training_layouts(), **lm_layouts(MODELS["mpt-7b"].config)[0]}


@pytest.fixture(scope="module")
def again(tmp_path_factory):
    """A layout written and read back."""
    file = tmp_path_factory.mktemp("layouts") / "layout.toml"

    def through_a_file(layout: outlay.Layout, **more):
        file.write_text(write_layout(layout, **more), encoding="utf-8")
        return read_layout_file(file)

    return through_a_file


@pytest.mark.parametrize("name", OURS)
def test_layouts_of_our_recipes_come_back_equal(again, name):
    assert again(OURS[name]).layout == OURS[name]


PATTERNS = st.sampled_from(["**", "params.**.kernel", "batch.**", 'params.é"\\.w', "grads.**"])
OTHERWISE = st.sampled_from(["error", "replicate", "another_dim"])
SPECS = st.sampled_from([P(), P(None, "model"), P(("data", "model")), P("data", None, "model")])
PLACEMENTS = st.one_of(
    SPECS,
    st.just(outlay.replicate()),
    st.just(outlay.layout.on([2, 3])),
    st.just(outlay.layout.follow("params")),
    st.builds(
        lambda repeats, cut: outlay.layout.pipeline("model", microbatches=2, repeats=repeats, cut=cut),
        st.integers(1, 2),
        st.sampled_from(["equal", "balanced", (3, 1)]),
    ),
)
RULES = st.builds(outlay.Rule, PATTERNS, PLACEMENTS, OTHERWISE, st.booleans())
AXES = st.sampled_from(["data", "model"])
STRATEGIES = st.one_of(
    st.builds(data_parallel, AXES),
    st.builds(
        hsdp,
        st.sampled_from(["fsdp", "data"]),
        st.just("model"),
        min_size=st.integers(0, 9),
        pattern=PATTERNS,
        otherwise=OTHERWISE,
    ),
    st.builds(
        lambda strategy, *args, **keys: strategy(*args, **keys),
        st.sampled_from([fsdp, zero1, zero2]),
        AXES | st.just(("data", "model")),
        min_size=st.integers(0, 9),
        pattern=PATTERNS,
        otherwise=OTHERWISE,
    ),
    st.builds(
        tensor_parallel,
        AXES,
        columns=st.lists(PATTERNS, max_size=2),
        rows=st.lists(PATTERNS, max_size=2),
        outputs=st.sampled_from([-1, 0]),
        otherwise=OTHERWISE,
    ),
)
LAYOUTS = st.lists(st.one_of(RULES.map(lambda rule: outlay.Layout([rule])), STRATEGIES), min_size=1, max_size=5)


@pytest.mark.compiles
@given(LAYOUTS.map(lambda parts: sum(parts, outlay.Layout())).filter(len))
def test_any_layout_that_a_file_can_say_comes_back_equal(again, layout):
    assert again(layout).layout == layout


def test_the_mesh_comes_back_and_comments_are_none_of_it(again):
    read = again(fsdp("data"), mesh="data=4,model=2@host", comment='made by "me"\n\nmesh = "x=1"')
    assert read.mesh == "data=4,model=2@host"
    assert read.layout == fsdp("data")


def test_a_policy_of_the_users_own_is_refused_with_its_rule():
    def widest(leaf: LeafView):
        return P()

    with pytest.raises(outlay.errors.LayoutError, match=r"1 rule cannot be written.*\n  policy: params.\*\*\n.*widest"):
        write_layout(outlay.Layout([("params.**", widest)]) + data_parallel())


def test_rules_of_hsdp_alone_are_refused_since_a_file_would_lose_that_they_stay_inside_a_host():
    for number in (0, 1):
        with pytest.raises(
            outlay.errors.LayoutError, match=r"(?s)one of the three rules of outlay\.layout\.hsdp.*together"
        ):
            outlay.layout.write_layout(outlay.Layout([hsdp().rules[number]]))
