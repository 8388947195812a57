"""Rules that match nothing, or less or more than meant: each is told what it says and what to write."""

from string import ascii_letters

import pytest
from jax.sharding import PartitionSpec as P
from tests.unit.layout.abstract import abstract, shape

import outlay
from outlay.layout import suggested_patterns

MESH = abstract(data=4, model=2)
DP = outlay.data_parallel()
LAYER = {name: {"kernel": shape(8, 8), "bias": shape(8)} for name in ("q", "up", "down")}
STATE = {"params": {"embed": shape(8, 8), "layers": [LAYER, LAYER]}}


def fix(pattern, state=STATE, placement=None):
    with pytest.raises(outlay.errors.LayoutError) as error:
        (outlay.Layout([(pattern, placement or P("model"))]) + DP).plan(state, MESH, batch=shape(8))
    (problem,) = error.value.problems
    return f"{problem.what}\n{problem.fix}"


@pytest.mark.parametrize(
    ("regex", "glob"),
    [
        ("params.*kernel", '"params.layers.*.*.kernel"'),
        ("params/layers/.*/kernel", '"params.layers.*.*.kernel"'),
        (r"params.layers.\d+.up.kernel", '"params.layers.*.up.kernel"'),
        ("params.layers.[0-9].up.kernel", '"params.layers.*.up.kernel"'),
        ("params.layers.?.up.kernel", '"params.layers.*.up.kernel"'),
        ("params.layers.*.(up|q).kernel", '"params.layers.*.q.kernel", "params.layers.*.up.kernel", a rule each'),
        ("params.layers.*.{up,q}.kernel", '"params.layers.*.q.kernel", "params.layers.*.up.kernel", a rule each'),
        ("^params.embed$", '"params.embed"'),
        ("(a+)+x", "known: "),
    ],
)
def test_a_regular_expression_is_told_that_patterns_are_globs_and_which(regex, glob):
    assert f"patterns are globs, not regular expressions: write {glob}" in fix(regex) or glob in fix(regex)
    assert "patterns are globs" in fix(regex)


@pytest.mark.parametrize("pattern", ["['params']['embed']", r"^params\..*\.kernel$"])
def test_what_cannot_even_be_a_pattern_is_told_so_when_it_is_written(pattern):
    with pytest.raises(
        outlay.errors.LayoutError, match=r'globs over dotted paths.*write "params\.(embed|\*\*\.kernel)"'
    ):
        outlay.Rule(pattern, P())


@pytest.mark.parametrize("pattern", ["params/layers/0/up/kernel", "params.layers[0].up.kernel"])
def test_paths_as_others_write_them_are_shown_dotted(pattern):
    assert 'paths are dotted, list positions too: write "params.layers.0.up.kernel"' in fix(pattern)


def test_a_rule_for_what_is_none_is_told_that_it_is_none():
    state = {"params": {"w": shape(8), "b": None}}
    assert "params.b is None, so there is no array to place\ndelete the rule" in fix("params.b", state)


def test_what_a_leading_wildcard_does_not_reach_is_not_proposed_for_it():
    with pytest.raises(outlay.errors.LayoutError) as error:
        (outlay.tensor_parallel(columns=["**.gate.*"]) + DP).plan(STATE, MESH, batch={"x": {"y": shape(8)}})
    (problem,) = error.value.problems
    assert "did you mean '**.q.*' or '**.up.*'?" in problem.fix
    assert problem.where.endswith("of tensor_parallel")


def test_a_scalar_and_an_array_without_numbers_give_the_right_reasons():
    with pytest.raises(outlay.errors.LayoutError, match=r"a scalar has no dim to split: settle it by a rule before"):
        outlay.Layout([("s", P("data"))]).plan({"s": shape()}, MESH)
    plan = (outlay.fsdp(min_size=0) + DP).plan({"w": shape(0, 8)}, MESH)
    assert plan["w"].reason == "it has no elements: nothing to split"


def test_an_axis_without_a_name_is_refused():
    with pytest.raises(outlay.errors.LayoutError, match=r"not a spec: w\n.*names no mesh axis"):
        outlay.Rule("w", P(("", "model")))


@pytest.mark.parametrize("outputs", [1, 7, -2, True, "last"])
def test_outputs_of_tensor_parallelism_are_the_last_dim_or_the_first(outputs):
    with pytest.raises(
        outlay.errors.LayoutError, match=r"(?s)not an outputs dim.*outputs=-1 for kernels.*outputs=0 for"
    ):
        outlay.tensor_parallel(outputs=outputs)


# --- rules that get less, or reach more -----------------------------------------------------------------------------


def test_a_particular_rule_after_a_general_one_that_took_most_of_it_is_refused_with_the_counts():
    state = {"a": {"kernel": shape(16, 8)}, "b": {"kernel": shape(8, 16)}, "c": {"kernel": shape(16, 8)}}
    rules = outlay.fsdp(min_size=1) + outlay.Layout([("*.kernel", P(None, "data"))])
    with pytest.raises(outlay.errors.LayoutError) as error:
        (rules + outlay.Layout([("d", P())]) + DP).plan({**state, "d": shape(16)}, MESH)
    (problem,) = error.value.problems
    assert problem.kind == "partly shadowed rule"
    assert "it applies to 1 of the 3 leaves it matches; rule 1" in problem.what
    assert "already uses the dim or the axis of a.kernel, c.kernel" in problem.what
    assert problem.fix.startswith("move it before rule 1")


def test_exceptions_before_the_general_rule_are_how_layouts_are_written():
    exception_first = outlay.Layout([("a.kernel", P("data")), ("*.kernel", P(None, "data"))])
    state = {"a": {"kernel": shape(16, 8)}, "b": {"kernel": shape(8, 16)}}
    assert exception_first.plan(state, MESH)["a.kernel"].spec == P("data", None)
    megatron = outlay.tensor_parallel(columns=["**"]) + outlay.fsdp(min_size=1)  # biases are taken, and that is right
    assert megatron.plan({"w": shape(8, 8), "b": shape(8)}, MESH)["b"].spec == P("model")


@pytest.mark.parametrize(("pattern", "names"), [("layers.1*.w", "'10', '11'"), ("layers.0.head*", "'head_norm'")])
def test_a_star_inside_a_part_that_reaches_other_names_is_noted(pattern, names):
    state = {"layers": [{"w": shape(8), "head": shape(8), "head_norm": shape(8), "head_1": shape(8)}] * 12}
    plan = (outlay.Layout([(pattern, P("model"))]) + DP).plan(state, MESH)
    assert any(names in note and "`*` stands for any letters" in note for note in plan.notes)


def test_names_that_are_numbered_are_what_a_star_is_for():
    plan = (outlay.Layout([("linear*", P("model"))]) + DP).plan({"linear": shape(8), "linear_1": shape(8)}, MESH)
    assert not any("any letters" in note for note in plan.notes)


# --- batches --------------------------------------------------------------------------------------------------------


def test_an_uneven_batch_gets_fixes_for_batches():
    with pytest.raises(outlay.errors.LayoutError) as error:
        DP.plan({"w": shape(8)}, MESH, batch={"x": shape(30, 8)})
    (problem,) = error.value.problems
    for hint in ("make batches of 32 or 28 samples", "--batch 32", "drop the 2 samples", '"weight" 0', "data=2"):
        assert hint in problem.fix
    assert "in the model" not in problem.fix


def test_first_dims_of_a_batch_that_differ_are_noted_unless_a_rule_names_them():
    batch = {"x": shape(32, 8), "y": shape(32), "mask": shape(128, 32), "weights": shape(16)}
    (note,) = (note for note in DP.plan({"w": shape(8)}, MESH, batch=batch).notes if "first dims" in note)
    assert "32 of x" in note.replace("batch.", "")
    assert '("batch.mask", P(None, "data")), ("batch.weights", outlay.replicate())' in note
    rules = outlay.Layout([("batch.mask", P(None, "data")), ("batch.weights", outlay.replicate())])
    assert not any("first dims" in note for note in (rules + DP).plan({"w": shape(8)}, MESH, batch=batch).notes)


# --- many offenders -------------------------------------------------------------------------------------------------


def test_a_message_of_many_problems_shows_each_kind_and_says_how_to_see_all():
    names = [f"{first}{second}" for first in ascii_letters for second in ascii_letters][:300]
    state = {"params": {name: {"kernel": shape(8, 8), "bias": shape(7)} for name in names}}
    with pytest.raises(outlay.errors.LayoutError) as error:
        outlay.Layout([("params.*.bias", P("data"))]).plan(state, MESH)
    text, details = str(error.value), error.value.details
    assert len(text) < 2000
    assert len(error.value.problems) == 600
    for kind in ("indivisible dim", "uncovered leaf"):
        assert f"\n  {kind}: params." in text
        assert f" more of {kind}\n" in text
        assert details.count(f"\n  {kind}: params.") == 300
    assert text.endswith("all of it: error.details in Python, or outlay --traceback COMMAND")


@pytest.mark.parametrize(
    "pattern", ["params.(a|a)*b", "params.(a|aa)+$b", "params.a?a?a?a?a?a?a?a?[b]" + "a?" * 60, "params.[[a]*"]
)
@pytest.mark.filterwarnings("error")
def test_a_regular_expression_that_would_run_for_ever_is_not_tried_and_python_says_nothing_of_others(pattern):
    assert "params" in fix(pattern, {"params": {"a" * 200: shape(8, 8)}})


def test_what_is_wrong_with_equal_layers_alike_is_told_once():
    state = {"params": {f"w{i}": {"kernel": shape(8, 8), "bias": shape(7)} for i in range(300)}}
    with pytest.raises(outlay.errors.LayoutError) as error:
        outlay.Layout([("params.*.bias", P("data"))]).plan(state, MESH)
    assert len(error.value.problems) == 600
    text = str(error.value)
    assert "600 problems\n  indivisible dim: params.w{0..299}.bias, 300 alike\n" in text
    assert "uncovered leaf: params.w{0..299}.kernel, 300 alike\n    no rule covers (8, 8) float32 (256 B)\n" in text
    assert text.endswith(
        'fix: add ("params.w*.kernel", P("data")), or + outlay.replicate() to keep all that is left whole'
    )


def test_what_was_meant_is_looked_for_as_often_as_a_message_shows_it(monkeypatch):
    looked = []
    monkeypatch.setattr(
        suggested_patterns, "similar_patterns", lambda pattern, paths: looked.append(pattern) or "did you mean it?"
    )
    rules = [(f"params.layer{number}.kernal", P("data")) for number in range(100)]
    tree = {"params": {f"layer{number}": {"kernel": shape(8)} for number in range(100)}}
    with pytest.raises(outlay.errors.LayoutError, match="100 problems") as error:
        (outlay.Layout(rules) + outlay.data_parallel()).plan(tree, abstract(data=8))
    assert looked == [f"params.layer{number}.kernal" for number in range(40)]
    assert "or delete the rule" in error.value.problems[0].fix
    assert error.value.problems[-1].fix.startswith("delete the rule")
