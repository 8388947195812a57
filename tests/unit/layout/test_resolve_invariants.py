"""What holds of every plan, whatever the tree, the mesh and the rules; the only other outcome is a LayoutError."""

import math

import hypothesis
import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P
from tests.unit.layout.abstract import abstract, shape

import outlay
from outlay.layout.placement import is_optimizer

pytestmark = pytest.mark.compiles

MESHES = [
    abstract(data=8),
    abstract(data=4, model=2),
    abstract(data=2, model=2, pipe=2),
    abstract(data=3, model=2),
    abstract(data=1, model=4),
]
PATTERNS = ["**", "params.**", "**.w", "params.*.w", "**.b", "opt_state.**", "batch.**", "*.a.*", "nowhere"]
DIM = st.sampled_from([24, 8, 16, 48, 12, 4, 6, 3, 1, 0])  # most divide by most axes, so that plans come out
LEAF = st.builds(shape, DIM, DIM) | st.builds(shape, DIM, DIM, DIM) | st.builds(shape)
MODULE = st.dictionaries(st.sampled_from("wb"), LEAF, min_size=1, max_size=2)
TREE = st.dictionaries(st.sampled_from("abc"), MODULE, min_size=1, max_size=3)
STATE = st.builds(
    lambda params, other, copy: {"params": params, "opt_state": {"mu": params if copy else other}},
    TREE,
    TREE,
    st.booleans(),
)


@st.composite
def specs(draw, axes):
    """A spec that uses each axis at most once, some dims over several."""
    order = draw(st.permutations(axes))
    used = draw(st.integers(1, len(order)))
    dims: list[list[str]] = [[] for _ in range(2)]
    for axis in order[:used]:
        draw(st.sampled_from(dims)).append(axis)
    return P(*(None if not dim else dim[0] if len(dim) == 1 else tuple(dim) for dim in dims))


@st.composite
def rules(draw, axes):
    pattern = draw(st.sampled_from(PATTERNS))
    placement = draw(
        specs(axes)
        | specs(axes)
        | st.builds(outlay.replicate)
        | st.builds(outlay.layout.on, st.integers(0, 3))
        | st.sampled_from(axes).map(lambda axis: outlay.fsdp(axis, min_size=2).rules[0].placement)
        | st.just(outlay.layout.follow("params"))
    )
    return outlay.Rule(pattern, placement, draw(st.sampled_from(["replicate", "another_dim", "error"])), optional=True)


@st.composite
def problems(draw, max_rules=4):
    """A mesh, a state, a batch or none, and a list of rules."""
    mesh = draw(st.sampled_from(MESHES))
    drawn_rules = draw(st.lists(rules(list(mesh.axis_names)), min_size=1, max_size=max_rules))
    return mesh, draw(STATE), draw(st.none() | LEAF), drawn_rules


REST = outlay.Rule("**", P(), optional=True), outlay.Rule("batch.**", P(), optional=True)


def check_words(error):
    assert error.problems
    for problem in error.problems:
        assert all(part.strip() for part in (problem.kind, problem.where, problem.what, problem.fix))
        assert problem.text() in str(error)


def plan_or_errors(mesh, state, batch, drawn_rules):
    """The plan, or None after checking that the refusal names every problem in words."""
    try:
        return outlay.Layout([*drawn_rules, *REST]).plan(state, mesh, batch=batch)
    except outlay.errors.LayoutError as error:
        check_words(error)
        return None


def num_pieces(leaf, mesh):
    return [math.prod(mesh.shape[axis] for axis in axes) for axes in leaf.dims]


def check_pieces_copies_axes_and_bytes_and_that_jax_agrees(plan, mesh):
    for leaf in plan:
        pieces = num_pieces(leaf, mesh)
        assert tuple(n * k for n, k in zip(leaf.local_shape, pieces, strict=True)) == leaf.shape
        axes = [axis for axes in leaf.dims for axis in axes]
        assert len(axes) == len(set(axes))
        if len(leaf.device_ids) == mesh.size:
            assert NamedSharding(mesh, leaf.spec).shard_shape(leaf.shape) == leaf.local_shape
            assert 0 in leaf.shape or leaf.num_copies * math.prod(pieces) == mesh.size
        else:
            assert axes == []
            assert leaf.num_copies == len(leaf.device_ids)
        if 0 not in leaf.shape:
            assert leaf.bytes_per_device * len(leaf.device_ids) == leaf.bytes_total * leaf.num_copies
    held = sum(leaf.bytes_per_device * len(leaf.device_ids) for leaf in plan.state)
    assert sum(plan.bytes_per_device.values()) == held
    assert plan.bytes_total == sum(leaf.bytes_total for leaf in plan.state)
    assert plan.replication == (held / plan.bytes_total if plan.bytes_total else 1.0)


def check_every_leaf_is_planned_once_and_says_why(plan, state, batch):
    num_leaves = len(jax.tree.leaves((state, batch)))
    assert len({leaf.path for leaf in plan}) == len(plan) == num_leaves
    assert all(leaf.reason for leaf in plan)


def check_the_first_rule_gets_all_it_asks_for(plan, mesh, drawn_rules):
    for leaf in plan:
        matching = [rule for rule in drawn_rules if rule.matches(leaf.path, leaf.kind)]
        if not matching or is_optimizer(leaf.path) or not isinstance(matching[0].placement, P) or not leaf.is_split:
            continue
        for dim, axes in enumerate(matching[0].placement):
            asked = () if axes is None else (axes,) if isinstance(axes, str) else tuple(axes)
            if asked and leaf.shape[dim] % math.prod(mesh.shape[axis] for axis in asked) == 0:
                assert leaf.dims[dim] == asked


def test_of_every_plan_all_of_this_holds_and_the_random_rules_make_plans_as_well_as_errors():
    outcomes = {"split": 0, "placed": 0, "refused": 0}

    @hypothesis.settings(max_examples=200, database=None)
    @given(problems())
    def check(problem):
        mesh, state, batch, drawn_rules = problem
        plan = plan_or_errors(*problem)
        if plan is None:
            outcomes["refused"] += 1
            return
        outcomes["split"] += any(leaf.is_split for leaf in plan)
        outcomes["placed"] += any(len(leaf.device_ids) < mesh.size for leaf in plan)
        check_pieces_copies_axes_and_bytes_and_that_jax_agrees(plan, mesh)
        check_every_leaf_is_planned_once_and_says_why(plan, state, batch)
        check_the_first_rule_gets_all_it_asks_for(plan, mesh, drawn_rules)
        assert outlay.layout.Plan.from_json(plan.to_json()) == plan

    check()
    assert min(outcomes.values()) >= 10, outcomes


@given(problems(max_rules=5), st.integers(0, 5))
def test_rules_that_come_later_never_take_what_earlier_ones_claimed(problem, num_first):
    mesh, state, batch, drawn_rules = problem
    shorter, longer = plan_or_errors(mesh, state, batch, drawn_rules[:num_first]), plan_or_errors(*problem)
    if shorter is None or longer is None:
        return
    for leaf in shorter:
        if is_optimizer(leaf.path):  # it follows first, and rules that name it come before that
            continue
        now = longer[leaf.path]
        assert all(not axes or axes == later for axes, later in zip(leaf.dims, now.dims, strict=True))
        if len(leaf.device_ids) < mesh.size:
            assert now.device_ids == leaf.device_ids


@given(st.data(), st.sampled_from(MESHES))
def test_claims_on_one_leaf_are_those_of_a_naive_first_come_first_served(data, mesh):
    asked = data.draw(st.lists(specs(list(mesh.axis_names)), min_size=1, max_size=4))
    expected: list[tuple[str, ...]] = [(), ()]
    for spec in asked:
        for dim, entry in enumerate(spec):
            axes = () if entry is None else (entry,) if isinstance(entry, str) else tuple(entry)
            if not expected[dim] and not {axis for taken in expected for axis in taken} & set(axes):
                expected[dim] = axes
    layout = outlay.Layout([outlay.Rule("w", spec, optional=True) for spec in asked])
    leaf = layout.plan({"w": shape(48, 48)}, mesh)["w"]  # 48 is divisible by every product of these axes
    assert leaf.dims == tuple(expected)
    assert leaf.num_copies * math.prod(num_pieces(leaf, mesh)) == mesh.size


@given(st.data())
def test_composition_is_associative(data):
    drawn_rules = data.draw(st.lists(rules(["data", "model"]), max_size=6))
    i, j = sorted((data.draw(st.integers(0, len(drawn_rules))), data.draw(st.integers(0, len(drawn_rules)))))
    a, b, c = outlay.Layout(drawn_rules[:i]), outlay.Layout(drawn_rules[i:j]), outlay.Layout(drawn_rules[j:])
    assert (a + b) + c == a + (b + c) == outlay.Layout(drawn_rules)
    assert hash((a + b) + c) == hash(a + (b + c))


@pytest.mark.parametrize("num_bad", [1, 3])
def test_all_offenders_are_listed_at_once(num_bad):
    state = {f"w{i}": shape(7 if i < num_bad else 8) for i in range(5)}
    with pytest.raises(outlay.errors.LayoutError) as error:
        outlay.Layout([("*", P("data"))]).plan(state, abstract(data=8))
    assert [problem.where for problem in error.value.problems] == [f"w{i}" for i in range(num_bad)]
