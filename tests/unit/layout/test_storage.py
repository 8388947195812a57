import json

import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.layout.abstract import shape

import outlay
from outlay.layout.placement import Storage
from outlay.layout.plan import Plan
from outlay.layout.write_layout import write_layout

MESH = outlay.mesh(data=8)
STATE = {"params": {"w": shape(16, 8)}, "opt_state": {"mu": {"w": shape(16, 8)}, "nu": {"w": shape(16, 8)}}}
VALUES = {"layer_input": shape(8, 4), "layers.0.up": shape(8, 16), "layers.1.up": shape(8, 16)}


def plan_of(*rules, intermediates=VALUES) -> Plan:
    layout = outlay.Layout(rules) + outlay.fsdp(min_size=8) + outlay.data_parallel()
    return layout.plan(STATE, MESH, batch={"x": shape(8, 4)}, intermediates=intermediates)


def test_optimizer_state_on_the_host_is_still_split_as_its_parameters():
    plan = plan_of(("opt_state.**", outlay.layout.on_host()))
    assert [(leaf.spec, leaf.stored) for leaf in plan.state] == [
        (P("data", None), "host"),
        (P("data", None), "host"),
        (P("data", None), ""),
    ]
    assert (plan.bytes_per_device[0], plan.host_bytes_per_device[0]) == (64, 128)
    assert "64 B a device and 128 B on its host" in str(plan)
    assert "kept on the host by rule 1; follows params.w" in plan["opt_state.mu.w"].reason


def test_a_spec_beside_the_storage_places_the_leaf_too():
    plan = plan_of(("opt_state.**", outlay.layout.on_host() + P(None, "data")))
    assert (plan["opt_state.nu.w"].spec, plan["opt_state.nu.w"].stored) == (P(None, "data"), "host")


def test_a_counter_beside_the_moments_goes_with_them():
    layout = outlay.Layout([("opt_state.**", outlay.layout.on_host() + P("data"))]) + outlay.replicate()
    plan = layout.plan({"opt_state": {"count": shape(), "mu": shape(16)}}, MESH)
    assert {leaf.path: (leaf.stored, leaf.spec) for leaf in plan.state} == {
        "opt_state.count": ("host", P()),
        "opt_state.mu": ("host", P("data")),
    }


def test_the_first_storage_wins_and_what_mirrors_a_leaf_follows_it_to_the_host():
    plan = plan_of(("opt_state.nu.**", outlay.layout.keep()), ("params.**", outlay.layout.on_host()))
    assert {leaf.path: leaf.stored for leaf in plan.state} == {
        "params.w": "host",
        "opt_state.mu.w": "host",
        "opt_state.nu.w": "device",
    }


def test_values_are_stored_by_their_names_and_parts_of_names_and_the_compiler_places_them():
    plan = plan_of(("layer_input", outlay.layout.keep()), ("layers.*.up", outlay.layout.recompute()))
    storage = {leaf.path: (leaf.stored, leaf.is_placed) for leaf in plan.of_kind("intermediate")}
    assert storage == {
        "layer_input": ("device", False),
        "layers.0.up": ("recomputed", False),
        "layers.1.up": ("recomputed", False),
    }


def test_a_rule_that_stores_covers_no_leaf():
    layout = outlay.Layout([("params.**", outlay.layout.on_host())])
    with pytest.raises(outlay.errors.LayoutError, match=r"uncovered leaf: params\.w"):
        layout.plan({"params": {"w": shape(16, 8)}}, MESH)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (
            ("layer_inputs", outlay.layout.keep()),
            r"matches none of the 4 leaves and 3 named values of the step\s+fix: did you mean 'layer_input'",
        ),
        (
            ("params.**", outlay.layout.recompute()),
            r"params\.w\s+the state is what a step keeps .* asked by rule \(\"params",
        ),
        (("batch.**", outlay.layout.on_host()), r"batch\.x\s+the batch is read by one step and not kept"),
    ],
)
def test_unsupported_storage_is_refused(rule, message):
    with pytest.raises(outlay.errors.LayoutError, match=message):
        plan_of(rule)


def test_a_value_named_as_a_leaf_is_refused():
    with pytest.raises(
        outlay.errors.LayoutError, match=r"same path twice: params\.w\n.*named value and a leaf of the state have"
    ):
        plan_of(intermediates={"params": {"w": shape(2)}})


def test_a_second_rule_for_the_same_values_is_shadowed():
    with pytest.raises(outlay.errors.LayoutError, match=r"shadowed rule: rule 2 \(\"layer_input\", recompute\(\)\)"):
        plan_of(("layer_input", outlay.layout.keep()), ("layer_input", outlay.layout.recompute()))


@pytest.mark.parametrize("other", [outlay.replicate(), outlay.layout.keep(), "data"])
def test_only_one_spec_can_be_added(other):
    with pytest.raises(outlay.errors.LayoutError, match=r"cannot be added to on_host\(\)"):
        outlay.layout.on_host() + other
    with pytest.raises(outlay.errors.LayoutError, match="cannot be added"):
        outlay.layout.on_host() + P("data") + P("data")


def test_a_plan_comes_back_from_json_with_its_storages_and_a_damaged_one_is_refused():
    plan = plan_of(("opt_state.**", outlay.layout.on_host()), ("layer_input", outlay.layout.keep()))
    assert Plan.from_json(plan.to_json()) == plan
    data = json.loads(plan.to_json())
    data["leaves"][0]["stored"] = "moon"
    with pytest.raises(outlay.errors.LayoutError, match="stored is 'moon'"):
        Plan.from_dict(data)


def test_a_diff_says_what_moved_to_the_host():
    diff = plan_of().diff(plan_of(("opt_state.mu.**", outlay.layout.on_host())))
    assert [(leaf.path, leaf.fields) for leaf in diff.leaves] == [("opt_state.mu.w", ("stored",))]
    assert "stored not set -> host" in str(diff)
    assert diff.bytes_per_device == (192, 128)


def test_files_say_the_same_as_python(tmp_path):
    layout = outlay.Layout(
        [
            ("opt_state.**", outlay.layout.on_host() + P("data")),
            ("layers.*.up", outlay.layout.recompute()),
            outlay.Rule("layer_input", outlay.layout.keep(), optional=True),
        ]
    )
    file = tmp_path / "layout.toml"
    file.write_text(write_layout(layout))
    assert outlay.layout.read_layout(file) == layout
    assert 'on_host = true\nspec = ["data"]' in file.read_text()


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("keep = true\nrecompute = true", "the rule has 2 placements: keep, recompute"),
        ("on_host = true\nreplicate = true", "the rule has 2 placements: on_host, replicate"),
        ("keep = 1", r"layout\.toml:3\s+keep = 1 is not valid for keep\s+fix: keep takes true"),
    ],
)
def test_files_that_store_in_two_ways_are_refused(tmp_path, lines, message):
    file = tmp_path / "layout.toml"
    file.write_text(f'[[rule]]\nmatch = "x"\n{lines}\n')
    with pytest.raises(outlay.errors.LayoutError, match=message):
        outlay.layout.read_layout(file)


def test_a_storage_for_every_leaf_needs_no_pattern():
    assert outlay.Layout([outlay.layout.on_host()]).rules[0] == outlay.Rule("**", Storage("host"))
