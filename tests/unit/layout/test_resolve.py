import collections
import dataclasses

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.layout.abstract import abstract, shape

import outlay
from outlay.layout.rule import Rule

MESH = abstract(data=4, model=2)


def plan(state, *rules, mesh=MESH, **options):
    return outlay.Layout(rules).plan(state, mesh, **options)


# --- a dim that does not divide -------------------------------------------------------------------------------------


def test_an_indivisible_dim_shows_the_arithmetic_and_every_way_out_with_its_cost():
    with pytest.raises(outlay.errors.LayoutError) as error:
        plan({"w": shape(10, 16)}, ("w", P("data", None)))
    (problem,) = error.value.problems
    assert (problem.kind, problem.where) == ("indivisible dim", "w")
    assert "dim 0 of (10, 16) float32 has size 10, which is not divisible by data=4 (10 = 2 x 4 + 2)" in problem.what
    assert problem.fix.splitlines() == [
        'split dim 1 (size 16) with otherwise="another_dim": 160 B a device',
        "or pad dim 0 to 12 in the model (+2, 128 B in all)",
        'or keep the dim whole with otherwise="replicate": 640 B a device (+480 B a device)',
    ]


def test_a_dim_over_two_axes_may_be_split_over_one_of_them():
    with pytest.raises(
        outlay.errors.LayoutError,
        match=r"(?s)data=4 x model=2 = 8 \(12 = 1 x 8 \+ 4\).*over data only\n.*over model only",
    ):
        plan({"w": shape(12)}, ("w", P(("data", "model"))))


def test_otherwise_replicate_keeps_the_dim_whole_and_says_what_it_costs():
    leaf = plan({"w": shape(10, 16)}, outlay.Rule("w", P("data", "model"), otherwise="replicate"))["w"]
    assert leaf.spec == P(None, "model")
    assert "dim 0 (10) is not divisible by data=4: kept whole as rule 1 allows, +" in leaf.reason


def test_otherwise_another_dim_takes_the_largest_free_one_that_divides():
    leaf = plan({"w": shape(10, 8, 16)}, outlay.Rule("w", P("data"), otherwise="another_dim"))["w"]
    assert leaf.spec == P(None, None, "data")
    assert "split dim 2 instead, as rule 1 allows" in leaf.reason


def test_otherwise_another_dim_with_none_left_is_still_an_error():
    with pytest.raises(outlay.errors.LayoutError, match="indivisible dim: w"):
        plan({"w": shape(10, 9)}, outlay.Rule("w", P("data"), otherwise="another_dim"))


# --- rules that do nothing, leaves that nobody covers --------------------------------------------------------------


def test_a_leading_wildcard_that_was_meant_for_the_batch_is_told_how_to_reach_it():
    with pytest.raises(
        outlay.errors.LayoutError, match=r'a leading wildcard reaches the state only; write "batch\.\*\*" for batch\.x'
    ):
        plan({"w": shape(8)}, ("w", P()), ("batch.**", P("data")), ("**.x", P("data")), batch={"x": shape(8)})


def test_an_unanchored_pattern_for_the_batch_is_told_to_begin_with_its_name():
    with pytest.raises(
        outlay.errors.LayoutError, match=r'anchored at both ends; write "batch\.\*\*\.x" \(it matches batch\.x\)'
    ):
        plan({"w": shape(8)}, ("w", P()), ("x", P("data")), ("batch.*", P()), batch={"x": shape(8)})


def test_a_pattern_that_forgets_the_end_is_told_to_go_on():
    with pytest.raises(
        outlay.errors.LayoutError, match=r'write "params\.enc\.\*\*" \(it matches params\.enc\.b and 1 more\)'
    ):
        plan({"params": {"enc": {"w": shape(8), "b": shape(8)}}}, ("params.enc", P("data")), outlay.replicate())


def test_an_optional_rule_may_match_nothing_and_stand_in_a_shadow():
    state = {"w": shape(8)}
    rules = [("w", P("data")), outlay.Rule("v", P("data"), optional=True), outlay.Rule("w", P("model"), optional=True)]
    assert plan(state, *rules)["w"].spec == P("data")


def test_rules_for_the_batch_are_not_checked_when_only_the_state_is_asked_for():
    layout = outlay.Layout([("w", P("data"))]) + outlay.data_parallel()
    assert [leaf.path for leaf in layout.plan({"w": shape(8)}, MESH)] == ["w"]


def test_replicate_closes_a_leaf_to_later_rules():
    with pytest.raises(outlay.errors.LayoutError, match=r"shadowed rule: rule 2 .*\n.*it matches 1 leaf.*rule 1"):
        plan({"w": shape(8)}, ("w", outlay.replicate()), ("w", P("data")))
    resolved = plan({"w": shape(8), "v": shape(8)}, ("w", outlay.replicate()), ("*", P("data")))
    assert (resolved["w"].spec, resolved["v"].spec) == (P(), P("data"))


def test_a_leaf_settled_before_a_spec_of_too_many_dims_is_no_offender():
    resolved = plan({"w": shape(8, 8), "b": shape(8)}, ("b", outlay.replicate()), ("*", P(None, "data")))
    assert (resolved["w"].spec, resolved["b"].spec) == (P(None, "data"), P())


def test_replicate_at_the_end_may_find_nothing_left():
    assert plan({"w": shape(8)}, ("w", P("data")), outlay.replicate())["w"].spec == P("data")


def test_rules_fill_what_earlier_ones_left_free():
    leaf = plan({"w": shape(8, 8)}, ("w", P("data")), ("*", P(None, "model")))["w"]
    assert leaf.spec == P("data", "model")
    assert leaf.rule == "1. w; 2. *"


def test_an_axis_that_is_taken_is_not_used_twice():
    leaf = plan({"w": shape(8, 8), "v": shape(8, 8)}, ("w", P("data")), ("*", P(None, "data")))["w"]
    assert leaf.spec == P("data", None)
    assert "rule 2 asks for dim 1 over data: already taken" in leaf.reason


def test_unknown_axes_of_all_rules_are_listed_before_anything_else():
    with pytest.raises(outlay.errors.LayoutError, match=r"names 2 axes") as error:
        plan({"w": shape(7)}, ("w", P("dat")), ("nowhere", P("modle")), outlay.fsdp("data").rules[0])
    assert [p.where.split(" (")[0] for p in error.value.problems] == ["rule 1", "rule 2"]
    assert "did you mean 'data'?" in error.value.problems[0].fix


# --- on, by_module --------------------------------------------------------------------------------------------------


def test_modules_live_whole_on_the_positions_they_are_given():
    state = {"a": {"w": shape(7, 3)}, "b": {"w": shape(8)}}
    resolved = outlay.by_module({"a": 2, "b": [4, 5]}).plan(state, MESH)
    assert (resolved["a.w"].device_ids, resolved["a.w"].local_shape, resolved["a.w"].num_copies) == ((2,), (7, 3), 1)
    assert (resolved["b.w"].device_ids, resolved["b.w"].num_copies) == ((4, 5), 2)
    assert resolved.bytes_per_device == {0: 0, 1: 0, 2: 84, 3: 0, 4: 32, 5: 32, 6: 0, 7: 0}
    assert resolved["a.w"].reason == "rule 1 puts it on position 2"


def test_a_position_that_the_mesh_lacks_is_refused_with_those_it_has():
    for position in (8, -1):
        with pytest.raises(
            outlay.errors.LayoutError, match=rf'no such device: rule 1 \("a\.\*\*".*\n.*position {position}.*0 to 7'
        ) as error:
            outlay.by_module({"a": position}).plan({"a": {"w": shape(8), "b": shape(8)}}, MESH)
        assert len(error.value.problems) == 1


def test_positions_are_places_in_the_mesh_and_not_device_ids():
    devices = jax.devices()[::-1]
    mesh = jax.sharding.Mesh(devices, ("data",), axis_types=(jax.sharding.AxisType.Auto,))
    resolved = outlay.by_module({"a": 0}).plan({"a": {"w": shape(8)}}, mesh)
    assert resolved["a.w"].device_ids == (devices[0].id,)


# --- big leaves left whole ------------------------------------------------------------------------------------------

BIG = {"a": shape(16, 16), "b": shape(16, 16)}


def test_a_big_leaf_left_whole_while_others_are_split_is_refused():
    with pytest.raises(
        outlay.errors.LayoutError,
        match=r"big leaf left whole: b\n.*1\.0 KiB are left whole on each of 8 devices while 1 other leaf is split "
        r'\(limit 1\.0 KiB\).*\n.*\("b", outlay\.replicate\(\)\) if it is meant',
    ):
        plan(BIG, ("a", P("data")), ("b", P()), max_whole_bytes=1024)


def test_a_big_leaf_is_left_whole_where_the_limit_or_a_rule_allows_it_or_nothing_is_split():
    assert plan(BIG, ("a", P("data")), ("b", P()), max_whole_bytes=1025)["b"].spec == P()
    assert plan(BIG, ("a", P("data")), ("b", outlay.replicate()), max_whole_bytes=1)["b"].spec == P()
    assert plan(BIG, ("*", P()), max_whole_bytes=1)["b"].spec == P()


def test_whole_parameters_beside_split_moments_are_what_zero1_means():
    state = {"params": {"w": shape(16, 16)}, "opt_state": {"mu": {"w": shape(16, 16)}}}
    layout = outlay.zero1(min_size=1) + outlay.data_parallel()
    assert layout.plan(state, MESH, max_whole_bytes=1)["params.w"].spec == P()


# --- any tree -------------------------------------------------------------------------------------------------------


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Neuron:
    potential: jax.ShapeDtypeStruct
    current: jax.ShapeDtypeStruct


def test_lists_dataclasses_and_keys_that_are_no_strings_are_matched_by_path():
    state = {
        "layers": [{"w": shape(8)}, {"w": shape(8)}],
        "soma": Neuron(shape(8), shape(8)),
        "areas": {0: shape(8), 17: shape(8)},
    }
    resolved = plan(
        state, ("layers.1.*", P("data")), ("soma.potential", P("model")), ("areas.17", P("data")), outlay.replicate()
    )
    assert [leaf.path for leaf in resolved if leaf.is_split] == ["areas.17", "layers.1.w", "soma.potential"]


def test_typed_keys_are_arrays_of_their_own_dtype():
    resolved = plan({"rng": jax.random.key(0), "keys": jax.random.split(jax.random.key(0), 8)}, ("keys", P("data")))
    assert (resolved["keys"].dtype, resolved["keys"].local_shape, resolved["keys"].bytes_per_device) == (
        "key<fry>",
        (2,),
        16,
    )
    assert resolved["rng"].bytes_per_device == 8


def test_scalars_of_python_and_of_one_element_need_no_rule():
    resolved = plan({"lr": 0.1, "step": 3, "on": True, "one": jnp.ones((1, 1))})
    assert [(leaf.path, leaf.shape, leaf.num_copies) for leaf in resolved] == [
        ("lr", (), 8),
        ("on", (), 8),
        ("one", (1, 1), 8),
        ("step", (), 8),
    ]


def test_a_scalar_under_a_policy_for_everything_stays_whole():
    resolved = (outlay.fsdp(min_size=0) + outlay.data_parallel()).plan({"step": 3, "w": shape(8)}, MESH)
    assert (resolved["step"].spec, resolved["step"].reason) == (P(), "a scalar is whole everywhere")


@pytest.mark.parametrize("state", [{}, [], None, {"params": {}}])
def test_an_empty_tree_has_an_empty_plan(state):
    layout = outlay.fsdp() + outlay.data_parallel()
    assert len(layout.plan(state, MESH)) == 0
    assert layout.plan(state, MESH).replication == 1.0
    assert "0 leaves" in str(layout.plan(state, MESH))


def test_a_bare_array_is_a_tree_of_one_leaf_without_a_name():
    (leaf,) = plan(shape(8, 8), ("**", P("data")))
    assert (leaf.path, leaf.spec) == ("", P("data", None))


def test_an_array_with_an_empty_dim_can_be_laid_out():
    leaf = plan({"w": shape(0, 8)}, ("w", P("data", "model")))["w"]
    assert (leaf.local_shape, leaf.bytes_total) == ((0, 4), 0)


def test_leaves_that_are_no_arrays_are_refused_all_at_once():
    with pytest.raises(outlay.errors.LayoutError, match=r"2 leaves of the tree are not arrays") as error:
        plan({"name": "adam", "act": collections.OrderedDict(f=jnp.tanh), "w": shape(8)}, outlay.replicate())
    assert [(p.kind, p.where) for p in error.value.problems] == [("not an array", "act.f"), ("not an array", "name")]
    assert "eqx.partition" in str(error.value)


def test_intermediates_need_no_rule_and_are_reached_by_their_name_alone():
    resolved = plan(
        {"w": shape(8)},
        ("**", P("data")),
        ("grads.**", P("model")),
        intermediates={"grads": {"w": shape(8)}, "acts": shape(8)},
    )
    assert (resolved["grads.w"].kind, resolved["grads.w"].spec) == ("intermediate", P("model"))
    assert "acts" not in {leaf.path for leaf in resolved}, "no rule speaks of it, so the compiler places it"


def test_a_rule_for_the_state_of_an_optimizer_without_any_says_so():
    with pytest.raises(outlay.errors.LayoutError, match=r"this optimizer keeps no state .*: delete the rule"):
        plan({"params": {"w": shape(8)}}, ("params.**", P("data")), ("opt_state.**", P("data")))


def test_a_layout_with_a_rule_for_each_leaf_asks_each_rule_once(monkeypatch):
    asked = []
    matches = Rule.matches
    monkeypatch.setattr(Rule, "matches", lambda rule, path, kind: asked.append(path) or matches(rule, path, kind))
    names = [f"layer{number}" for number in range(50)] + ["'a.b'"]
    rules = [(f"params.{name}", P("data")) for name in names]
    tree = {"params": {name.strip("'"): jnp.zeros(8) for name in names}}
    assert all(leaf.spec == P("data") for leaf in plan(tree, *rules, *outlay.data_parallel()))
    assert len(asked) < 6 * len(names)  # each rule once, and the rules of data_parallel each leaf
