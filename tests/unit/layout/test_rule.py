import pytest
from jax.sharding import PartitionSpec as P

import outlay


@pytest.mark.parametrize(
    ("pattern", "words"),
    [("", "the pattern is empty"), ("a..b", "empty part"), ("a.**b", "cannot share a part"), ("'a", "quote")],
)
def test_a_malformed_pattern_is_refused_when_the_rule_is_written(pattern, words):
    with pytest.raises(outlay.errors.LayoutError, match=rf"malformed pattern: .*\n.*{words}"):
        outlay.Rule(pattern, P())


@pytest.mark.parametrize("pattern", [None, 3, ("a", "b")])
def test_a_pattern_that_is_no_text_is_refused(pattern):
    with pytest.raises(outlay.errors.LayoutError, match="not a pattern"):
        outlay.Rule(pattern, P())


@pytest.mark.parametrize("spec", [P("data", "data"), P(("data", "data")), P("data", ("model", "data"))])
def test_one_axis_twice_is_refused_with_the_count(spec):
    with pytest.raises(
        outlay.errors.LayoutError, match=r"one axis twice: w\n.*'data' appears 2 times.*\n.*keep it for one dim"
    ):
        outlay.Rule("w", spec)


def test_a_spec_entry_that_names_no_axis_is_refused():
    with pytest.raises(
        outlay.errors.LayoutError, match=r"not a spec: w\n.*UNCONSTRAINED.*\n.*None for a dim left free"
    ):
        outlay.Rule("w", P(P.UNCONSTRAINED, "data"))


def test_a_spec_of_sums_that_are_half_taken_is_refused():
    with pytest.raises(
        outlay.errors.LayoutError, match=r"not a spec: w\n.*unreduced=\{'model'\}.*\n.*leave unreduced="
    ):
        outlay.Rule("w", P("data", unreduced={"model"}))


@pytest.mark.parametrize(
    ("placement", "fix"),
    [
        ("model", r"fix: P\('model'\); from jax\.sharding import PartitionSpec as P"),
        (["data"], r"fix: P\('data'\)"),
        (None, r"fix: P\(\) or outlay\.replicate\(\)"),
        (3, r"outlay\.replicate\(\), .* from outlay\.layout on\("),
    ],
)
def test_other_values_than_placements_are_refused_with_the_placement_to_write(placement, fix):
    with pytest.raises(outlay.errors.LayoutError, match=rf"(?s)not a placement: w.*{fix}"):
        outlay.Rule("w", placement)


def test_an_unknown_fallback_is_refused_with_those_there_are():
    with pytest.raises(
        outlay.errors.LayoutError, match=r"unknown fallback: w\n.*'pad'\n.*'error', 'replicate', 'another_dim'"
    ):
        outlay.Rule("w", P(), otherwise="pad")


def test_everything_wrong_with_one_rule_is_said_at_once():
    with pytest.raises(outlay.errors.LayoutError) as error:
        outlay.Rule("", P("a", "a"), otherwise="pad")
    assert [p.kind for p in error.value.problems] == ["malformed pattern", "one axis twice", "unknown fallback"]


@pytest.mark.parametrize("item", ["params.w", ("w",), ("w", P(), "error"), 3, (P(), "w")])
def test_an_item_of_a_layout_that_is_no_rule_is_refused(item):
    with pytest.raises(outlay.errors.LayoutError, match=r"not a rule: .*\n.*\n.*fix: .*\(.*, P\(None, .model.\)\)"):
        outlay.Layout([item])


def test_layouts_in_a_list_are_refused_with_how_they_are_added():
    with pytest.raises(outlay.errors.LayoutError, match=r"fix: add layouts, .*: outlay.fsdp\(\) \+ outlay."):
        outlay.Layout.of([outlay.fsdp(), outlay.data_parallel()])


def test_a_layout_adds_rules_layouts_lists_and_single_placements():
    base = outlay.Layout([("a", P("x"))])
    assert (base + ("b", P())).rules[1] == outlay.Rule("b", P())  # noqa: RUF005
    assert (base + [("b", P()), ("c", P())]).rules[2].pattern == "c"  # noqa: RUF005
    assert (base + outlay.replicate()).rules[1] == outlay.Rule("**", outlay.replicate())
    assert len(base + base) == 2


@pytest.mark.parametrize("devices", [[], [1, 1], [True], [1.0], 1.5])
def test_positions_that_are_no_different_whole_numbers_are_refused(devices):
    with pytest.raises(outlay.errors.LayoutError, match=r"not a placement.*\n.*position.*\n.*name each position once"):
        outlay.layout.on(devices)


def test_a_leading_wildcard_speaks_of_the_state_only():
    for pattern in ("**", "*.w", "**.w"):
        rule = outlay.Rule(pattern, P())
        assert rule.matches("params.w", "state")
        assert not rule.matches("batch.w", "batch")
    assert outlay.Rule("batch.**", P()).matches("batch.w", "batch")


def test_a_layout_prints_its_rules_in_order_with_their_options():
    layout = outlay.Layout([("params.w", P("data")), outlay.Rule("b", P(), otherwise="replicate", optional=True)])
    first, second = str(layout).splitlines()
    assert first.startswith("1. params.w  P('data'")
    assert second.startswith("2. b         P()")
    assert second.endswith("otherwise replicate (optional)")


def test_a_policy_function_is_printed_by_its_name():
    def by_hand(leaf):
        return P()

    assert str(outlay.Rule("w", by_hand)) == "w  policy by_hand"


def test_rules_stand_before_a_layout_too_and_what_is_no_rule_is_named():
    rules, batches = [("params.w", P("data"))], outlay.data_parallel()
    assert rules + batches == outlay.Layout(rules) + batches
    for wrong in (lambda: outlay.Layout(None), lambda: None + batches, lambda: 3 + batches):
        with pytest.raises(outlay.errors.LayoutError, match=r"not a rule: (None|3)"):
            wrong()
