from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
from tests.unit.recipes.small import line
from tests.unit.recipes.varied import varied

from outlay.core.error_types import LayoutError, MeshError, RecipeError, TargetError
from outlay.devices.target import Target
from outlay.layout.layout import Layout
from outlay.recipes.choose import ask, choose
from outlay.recipes.find import find_recipe
from outlay.recipes.prepare import layout_of
from outlay.search.candidate import Candidate, base_name, words_of
from outlay.search.screening import screen

HERE = Path(__file__).parent
VARIED = f"{HERE / 'varied.py'}:varied"
TARGET = Target.parse("h100:4x2")
AS_IT_IS = ("--model", "tiny", "--remat", "none", "--accumulate", "1")


def asked(*words: str, **options):
    return ask(VARIED, words, TARGET, **options)


def test_candidates_are_layouts_on_their_meshes_with_the_options_that_are_varied():
    candidates = asked().candidates
    meshes = {"dp": "data=8", "fsdp": "data=8", "tp": "data=4,model=2"}
    assert Counter((each.layout, each.mesh) for each in candidates) == {
        (layout + host, mesh): 8 for layout, mesh in meshes.items() for host in ("", "+host")
    }
    assert {each.options for each in candidates if each.layout == "dp"} == {
        (*remat, *accumulate)
        for remat in ((), (("remat", True),))
        for accumulate in ((), *((("accumulate", n),) for n in (2, 4, 8)))
    }


def test_an_option_that_the_user_sets_is_not_varied():
    question = asked("--accumulate", "2", "--no-remat")
    assert {each.options for each in question.candidates} == {()}
    assert question.workload_of(question.candidates[0]).microbatches == 2


def test_batches_that_are_asked_for_are_candidates():
    words = ("--batch", "16,32", "--no-remat", "--accumulate=1,2", "--width", "64")
    question = asked(*words, layouts=["dp"])
    options = [dict(each.options) for each in question.candidates]
    assert options == [{"batch": batch, "accumulate": n} for batch in (16, 32) for n in (1, 2)]
    assert question.words == ("--no-remat", "--width", "64")
    assert words_of(question.several) == ("--batch", "16,32", "--accumulate", "1,2")
    assert [question.workload_of(each).num_samples for each in question.candidates] == [16, 16, 32, 32]


@pytest.mark.parametrize("words", [("--batch", "8,x"), ("--width", "32,64")])
def test_what_is_not_several_numbers_of_examples_is_refused(words):
    with pytest.raises(RecipeError, match=f"{words[0]} {words[1]}: expected a whole number"):
        asked(*words)


def test_a_recipe_without_such_options_is_tried_as_it_is():
    question = ask(f"{HERE / 'small.py'}:line", (), Target.parse("cpu:8"))
    assert [each.layout for each in question.candidates] == ["dp", "replicated", "zero1", "zero2", "fsdp"]


def test_layouts_and_meshes_can_be_named(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text('mesh = "data=2,model=4@hosts"\n[[rule]]\nstrategy = "data_parallel"\n')
    question = asked("--remat", "--accumulate", "1", layouts=["tp", str(file)])
    meshes = ["data=4,model=2@hosts", "data=2,model=4@hosts"]
    assert question.candidates == (
        Candidate("tp", "data=4,model=2"),
        *(Candidate(str(file), mesh) for mesh in meshes),
    )
    question = asked("--remat", "--accumulate", "1", layouts=["dp"], meshes=["data=-1", "data=8", "data=-1,model=2"])
    assert question.candidates == (Candidate("dp", "data=8"), Candidate("dp", "data=4,model=2"))


def test_pipelines_and_contexts_are_tried_with_their_numbers_inside_hosts_and_across_them():
    words, target = (
        ("--model", "tiny", "--remat", "none", "--accumulate", "1", "--batch", "32"),
        Target.parse("h100:2x4"),
    )
    question = ask("lm", words, target, layouts=["pp"])
    tried = {(each.layout, each.mesh) for each in question.candidates}
    assert {("pp", "stage=2,data=4"), ("pp", "stage=2@hosts,data=4")} <= tried
    assert {mesh for layout, mesh in tried if layout == "pp:microbatches=16"} == {
        *("stage=2,data=4", "stage=2@hosts,data=4", "stage=4,data=2", "stage=4@hosts,data=2"),
    }
    # Four layers: two stages go round twice, four stages once.
    assert {mesh for layout, mesh in tried if layout.startswith("pp:") and "repeats" in layout} == {
        *("stage=2,data=4", "stage=2@hosts,data=4"),
    }
    unasked = ask("lm", words, target)
    exchanges = {each.layout for each in unasked.candidates if each.layout.startswith("fsdp+cp")}
    assert {
        f"fsdp+cp{host}:exchange={each}" for host in ("", "+host") for each in ("ring", "gather", "all_to_all")
    } == (exchanges)
    numbers = {each.layout for each in unasked.candidates if each.layout.startswith("pp+fsdp+cp:")}
    assert {"pp+fsdp+cp:exchange=ring", "pp+fsdp+cp:microbatches=16,exchange=all_to_all"} <= numbers
    # Nobody needs to ask for pipelines.
    assert tried <= {(each.layout, each.mesh) for each in unasked.candidates}
    one_mesh = ask("lm", words, target, meshes=["stage=2,data=4"])
    assert {base_name(each.layout) for each in one_mesh.candidates if "stage" in each.mesh} >= {"pp", "dp"}
    assert not any(base_name(each.layout) == "cp" for each in one_mesh.candidates)


@pytest.mark.compiles
def test_what_cannot_be_exchanged_or_divided_is_ruled_out_in_words():
    words, target = (
        ("--model", "tiny", "--remat", "none", "--accumulate", "1", "--batch", "8"),
        Target.parse("h100:1x8"),
    )
    layouts = ["cp", "pp:microbatches=8"]
    question = ask(
        "lm", words, target, layouts=layouts, meshes=["stage=2,data=4,context=1", "data=1,context=8,stage=1"]
    )
    passed, ruled_out = screen(question.candidates, question.layouts, question.workload_of, target)
    reasons = {(each.candidate.layout, each.candidate.mesh): each.why for each in ruled_out}
    assert reasons["pp:microbatches=8", "stage=2,data=4,context=1"] == (
        "microbatches of 1 samples are not divisible over data=4"
    )
    # One trace is enough, since the model names no axes: each set of options is traced once, not once for each mesh;
    # once with the kernel of attention, and once for exchanges that have none.
    assert len({id(question.workload_of(each)) for each in question.candidates}) == 4
    assert "cp:exchange=ring" in {each.candidate.layout for each in passed}


def test_a_layout_file_is_tried_with_other_numbers_and_its_name_can_be_pasted(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(
        'mesh = "stage=2,data=-1"\n[[rule]]\nmatch = "params.layers.**"\n'
        'pipeline = { axis = "stage", microbatches = 2 }\n[[rule]]\nstrategy = "data_parallel"\n'
    )
    words, target = AS_IT_IS, Target.parse("h100:1x8")
    question = ask("lm", words, target, layouts=[str(file)])
    names = {each.layout for each in question.candidates}
    assert f"{file}:microbatches=8" in names
    made = find_recipe("lm", words)
    layout, mesh = layout_of(made, f"{file}:microbatches=8")
    assert isinstance(layout, Layout)
    assert [rule.placement.microbatches for rule in layout if hasattr(rule.placement, "microbatches")] == [8]
    assert mesh == "stage=2,data=-1"


def test_each_job_names_its_candidate_in_words():
    question = asked("--width", "64", layouts=["dp"])
    job = question.job_of(question.candidates[-1])
    assert job["words"] == ("--width", "64", "--remat", "--accumulate", "8")
    assert (job["recipe"], job["layout"], job["mesh"], job["target"]) == (VARIED, "dp", "data=8", "h100:4x2")


def test_the_job_of_another_set_of_compiler_options_says_so():
    question = asked("--remat", "--accumulate", "1", layouts=["dp"], compiler_options="mine.txt")
    (its,) = question.candidates
    assert [question.job_of(each)["compiler_options"] for each in (its, replace(its, compiler_options="none"))] == [
        "mine.txt",
        "none",
    ]


@pytest.mark.compiles
def test_the_arithmetic_sees_each_set_of_options():
    question = asked()
    passed, ruled_out = screen(question.candidates, question.layouts, question.workload_of, TARGET)
    assert len(passed) + len(ruled_out) == len(question.candidates)
    # 16 samples in microbatches of 4 do not reach 8 devices
    assert Counter(each.why for each in ruled_out if each.candidate.layout == "dp") == {
        "microbatches of 4 samples are not divisible over data=8": 2,
        "microbatches of 2 samples are not divisible over data=8": 2,
    }


def test_an_option_with_which_the_recipe_fails_is_ruled_out_with_its_reason(tmp_path):
    (tmp_path / "picky.py").write_text(
        "from tests.unit.recipes.small import line\n"
        "def picky(accumulate: int = 1):\n    assert accumulate < 4, 'too many'\n    return line()\n"
    )
    question = ask(f"{tmp_path}/picky.py:picky", (), Target.parse("cpu:8"), layouts=["dp"])
    _, ruled_out = screen(question.candidates, question.layouts, question.workload_of, question.target)
    assert [each.candidate.options for each in ruled_out] == [(("accumulate", 4),), (("accumulate", 8),)]
    assert "picky() raised an error" in ruled_out[0].why


def no_recipe():
    def inside() -> None: ...

    return inside


@pytest.mark.parametrize(
    ("recipe", "options", "error", "message"),
    [
        ("digit", {}, RecipeError, "did you mean 'digits'"),
        (VARIED, {"options": {"widht": 3}}, RecipeError, "there is no option --widht: did you mean"),
        (VARIED, {"layouts": ["fsd"]}, RecipeError, "has no layout 'fsd'"),
        (VARIED, {"layouts": ["none.toml"]}, LayoutError, "No such file"),
        (VARIED, {"meshes": ["data=3"]}, MeshError, "data=3, but h100:4x2 has 8 devices"),
        (VARIED, {"meshes": ["data:8"]}, MeshError, "has no size"),
        (VARIED, {"target": "h10:1x8"}, TargetError, "did you mean 'h100'"),
        (no_recipe(), {}, RecipeError, "is not at the top level of a file"),
    ],
)
def test_what_cannot_be_asked_is_refused_before_anything_is_compiled(recipe, options, error, message):
    with pytest.raises(error, match=message):
        choose(recipe, **{"target": "h100:4x2", **options})


def test_functions_of_a_file_are_found_by_name(monkeypatch):
    asked = []
    monkeypatch.setattr("outlay.recipes.choose.search", lambda question, **_: asked.append(question))
    choose(line, target="cpu:8")
    choose(varied, target="cpu:8", options={"width": 32, "remat": True})
    assert asked[0].recipe == f"{HERE / 'small.py'}:line"
    assert asked[1].recipe == VARIED
    assert asked[1].words == ("--width", "32", "--remat")
