"""Copies, bytes and layers that a layout would leave whole, or split, without having been asked."""

import jax
import optax
import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.layout.abstract import abstract, shape

import outlay
from outlay.layout.optimizer_state import find_copies
from outlay.layout.suggested_patterns import globs

MESH = abstract(data=4, model=2)
ADAM = optax.adam(1e-3)
DP = outlay.data_parallel()


def layout(*rules):
    return outlay.Layout(rules)


def kinds(rules, state, *, mesh=MESH, batch=None):
    with pytest.raises(outlay.errors.LayoutError) as error:
        rules.plan(state, mesh, batch=batch)
    return [problem.kind for problem in error.value.problems], str(error.value)


# --- copies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rest", [DP, outlay.replicate()])
@pytest.mark.parametrize("name", ["slots", "anything"])
def test_a_copy_of_split_parameters_left_to_a_rule_for_all_is_refused_with_the_bytes(name, rest):
    params = {"up": shape(8, 16), "down": shape(16, 8)}
    problem_kinds, message = kinds(layout(("params.**", P("data"))) + rest, {"params": params, name: {"mu": params}})
    assert problem_kinds == ["copy left whole"]
    assert "2 leaves (1.0 KiB) are whole on each of 8 devices by rule 2" in message or "by rule 3" in message
    assert f'add ("{name}.**", outlay.layout.follow("params")) as the first rule' in message


@pytest.mark.parametrize("name", ["momentum", "opt", "ema", "polyak", "opt_state"])
@pytest.mark.parametrize("within", ["", "gen."])
def test_copies_under_names_of_copies_follow_without_being_told_wherever_they_stand(name, within):
    params = {"up": shape(8, 16), "down": shape(16, 8)}
    network = {"params": params, name: {"mu": params, "count": shape()}}
    state = {"gen": network, "disc": {"params": params}} if within else network
    plan = (layout(("**.up", P("data")), ("**.down", P(None, "data"))) + outlay.replicate()).plan(state, MESH)
    assert plan[f"{within}{name}.mu.up"].reason == f"follows {within}params.up"
    assert plan[f"{within}{name}.mu.down"].spec == P(None, "data")


@pytest.mark.parametrize(
    ("rule", "spec"),
    [
        (("ema.**", P(None, "model")), P(None, "model")),
        (("**.ema.**", P(None, "model")), P(None, "model")),
        (("ema.**", outlay.replicate()), P()),
        (("ema.**", outlay.fsdp("model", min_size=1).rules[0].placement), P("model", None)),
    ],
)
def test_a_rule_that_means_a_copy_comes_before_following(rule, spec):
    params = {"up": shape(16, 8), "down": shape(16, 8)}
    state = {"ema": params, "params": params}
    assert (layout(("params.**", P("data")), rule) + DP).plan(state, MESH)["ema.up"].spec == spec


def test_a_copy_of_whole_parameters_is_left_to_the_rules():
    params = {"up": shape(16, 8), "down": shape(16, 8)}
    rules = layout(("params.**", P()), ("**", P("data")))
    assert rules.plan({"ema": params, "params": params}, MESH)["ema.up"].spec == P("data", None)


def test_of_two_networks_alike_of_which_one_is_split_a_whole_target_is_a_copy_of_that_one():
    net = {"up": shape(16, 8), "down": shape(16, 8)}
    state = {"params": {"actor": net, "critic": net}, "target": net}
    problem_kinds, message = kinds(layout(("params.critic.**", P("data"))) + DP, state)
    assert problem_kinds == ["copy left whole"]
    assert 'add ("target.**", outlay.layout.follow("params.critic")) as the first rule' in message


def test_a_part_of_the_parameters_is_followed_and_named_where_the_whole_cannot_be():
    networks = {"actor": {"w": shape(16, 8)}, "critic": {"w": shape(16, 8)}}
    state = {"params": networks, "target": {"w": shape(16, 8)}}
    rules = layout(("params.actor.**", P("model")), ("params.critic.**", P("data")))
    with_rule = rules + layout(("target.**", outlay.layout.follow("params.critic")))
    assert with_rule.plan(state, MESH)["target.w"].spec == P("data", None)
    problem_kinds, message = kinds(rules + layout(("target.**", outlay.layout.follow("params"))), state)
    assert "follows nothing" in problem_kinds
    assert 'write outlay.layout.follow("params.actor") or outlay.layout.follow("params.critic")' in message


def test_what_follows_a_follower_lives_there_too_whatever_the_order():
    state = {name: {"w": shape(8, 16)} for name in ("a", "b", "c")}
    rules = layout(("a.**", outlay.layout.follow("b")), ("b.**", outlay.layout.follow("c")), ("c.**", P("data")))
    assert {leaf.spec for leaf in rules.plan(state, MESH)} == {P("data", None)}


@pytest.mark.parametrize(
    "state",
    [
        {"linear": {"w": shape(8, 8), "b": shape(8)}, "linear_1": {"w": shape(8, 8), "b": shape(8)}},
        {"params": {"q": {"kernel": shape(8, 8)}, "k": {"kernel": shape(8, 8)}, "target": {"kernel": shape(8, 8)}}},
        {"params": {"enc": {"kernel": shape(8, 8)}}, "whitening": {"kernel": shape(8, 8)}},
        {"params": {"bn": {"scale": shape(8)}}, "batch_stats": {"bn": {"mean": shape(8)}}},
        {"gen": {"params": {"w": shape(8, 8)}}, "disc": {"params": {"w": shape(8, 8)}}},
    ],
)
def test_layers_and_networks_that_only_look_alike_are_no_copies(state):
    paths = [jax.tree_util.keystr(path, simple=True, separator=".") for path, _ in jax.tree.leaves_with_path(state)]
    shapes = dict(zip(paths, (leaf.shape for leaf in jax.tree.leaves(state)), strict=True))
    assert find_copies(shapes, paths) == []
    (layout((paths[0], P("data"))) + DP).plan(state, MESH)


def test_copies_that_were_meant_to_be_whole_or_split_otherwise_are_left_alone():
    state = {"params": {"w": shape(8, 16)}, "ema": {"w": shape(8, 16)}}
    for rule in [("ema.**", outlay.replicate()), ("ema.w", P())]:
        assert not (layout(("params.w", P("data")), rule) + DP).plan(state, MESH)["ema.w"].is_split
    split_average = layout(("ema.**", P("data"))) + DP  # ZeRO for the average: the parameters are not a copy of it
    assert not split_average.plan(state, MESH)["params.w"].is_split


def test_copies_that_are_split_less_than_their_originals_are_noted_with_the_bytes():
    state = {"params": {"w": shape(64, 64)}, "slots": {"w": shape(64, 64)}}
    plan = (layout(("params.w", P(None, "model"))) + outlay.fsdp(min_size=1) + DP).plan(state, MESH)
    assert any("1 leaf under slots takes 2.0 KiB of a device more" in note for note in plan.notes)


# --- bytes in all, axes of one device -------------------------------------------------------------------------------


def test_many_leaves_that_are_small_one_by_one_are_counted_together():
    state = {f"a{i}": shape(1024, 256) for i in range(70)}
    problem_kinds, message = kinds(layout(("a0", P("data"))) + DP, state)
    assert problem_kinds == ["many leaves left whole"]
    assert "69.0 MiB in 69 leaves are left whole on each of 8 devices while 1 other leaf is split" in message
    few = {f"a{i}": shape(1024, 256) for i in range(60)}
    (layout(("a0", P("data"))) + DP).plan(few, MESH)


def test_leaves_that_a_strategy_found_too_small_one_by_one_are_noted_when_they_are_many():
    state = {"w": shape(1024, 1024), **{f"a{i}": shape(1024, 128) for i in range(140)}}
    plan = (outlay.fsdp() + DP).plan(state, MESH)
    assert any("140 leaves (70.0 MiB) are whole on each of 8 devices" in note for note in plan.notes)


def test_an_axis_of_one_device_splits_nothing_and_hides_nothing():
    mesh = abstract(data=8, model=1)
    state = {"w": shape(4096, 4096), "v": shape(4096, 4096)}
    problem_kinds, message = kinds(layout(("w", P("data")), ("*", P("model"))) + DP, state, mesh=mesh)
    assert problem_kinds == ["big leaf left whole"]
    assert "whole, because model has one device" in message
    plan = (layout(("*", P("model"))) + DP).plan(state, mesh, batch=shape(8))
    assert not plan["w"].is_split
    assert any("axis 'model' has one device, so 2 leaves (128.0 MiB)" in note for note in plan.notes)


# --- stacked layers -------------------------------------------------------------------------------------------------

STACK = {"q": {"kernel": shape(8, 64, 64), "bias": shape(8, 64)}, "down": {"kernel": shape(8, 256, 64)}}


@pytest.mark.parametrize(
    ("rules", "fix"),
    [
        (
            layout(("layers.down.kernel", P("model", None))),
            'write, in its place, ("layers.down.kernel", P(None, "model", None))',
        ),
        (layout(("layers.q.bias", P("model"))), 'write, in its place, ("layers.q.bias", P(None, "model"))'),
        (
            outlay.tensor_parallel(columns=["layers.**"], outputs=0),
            'write, in its place, ("layers.**", P(None, "model"))',
        ),
        (
            outlay.tensor_parallel(columns=[], rows=["layers.q.*"]),
            "dim 0 of layers.q.bias (8, 64) counts 8 stacked layers",
        ),
    ],
)
def test_a_rule_for_one_layer_does_not_split_stacked_layers_by_layer(rules, fix):
    problem_kinds, message = kinds(rules + DP, {"layers": STACK})
    assert problem_kinds == ["layer dim split"]
    assert fix in message


@pytest.mark.parametrize(
    ("state", "rules"),
    [
        ({"layers": STACK}, layout(("layers.down.kernel", P("model", None, None)))),
        ({"layers": STACK}, layout(("layers.**", P("pipe")))),
        ({"layers": STACK}, outlay.tensor_parallel(columns=["layers.q.*"], rows=["layers.down.kernel"])),
        ({"layers": STACK}, outlay.fsdp(min_size=1)),
        ({"experts": STACK}, layout(("experts.**", P("model")))),
        ({"layers": {"moe": {"experts": STACK}}}, layout(("**.kernel", P("model", None)))),
        ({"layers": [{"w": shape(64, 64), "b": shape(64)}] * 2}, layout(("layers.*.w", P("model", None)))),
        ({"blocks": {"a": shape(4, 4, 8, 8), "b": shape(4, 4, 8, 8)}}, layout(("blocks.a", P("model", None)))),
    ],
)
def test_layers_split_by_layer_on_purpose_and_what_is_no_stack_raise_nothing(state, rules):
    plan = (rules + DP).plan(state, abstract(data=2, model=2, pipe=2))
    assert any(leaf.is_split for leaf in plan)
    assert not any("by layer" in note for note in plan.notes)


def test_a_whole_stack_split_by_layer_over_an_axis_that_does_not_say_so_is_noted():
    plan = (layout(("layers.**", P("data"))) + DP).plan({"layers": STACK}, MESH)
    assert any("splits 3 stacked leaves by layer" in note for note in plan.notes)


# --- globs ----------------------------------------------------------------------------------------------------------


def test_globs_reach_what_was_chosen_and_nothing_else():
    tree = [f"layers.{i}.{name}.{leaf}" for i in range(12) for name in ("q", "up") for leaf in ("kernel", "bias")]
    assert globs([path for path in tree if ".up." in path], tree) == ["layers.*.up.*"]
    assert globs([path for path in tree if path.endswith("kernel")], tree) == ["layers.*.*.kernel"]
    assert globs(["a.'x.y'"], ["a.z"]) == ["a.'x.y'"]
    assert globs(["a.b", "a.c.d"], ["a.e"]) == ["a.b", "a.c.d"]
