"""The search with processes that answer at once what they are told to."""

import json
import sys
from dataclasses import replace

import pytest
from tests.unit.recipes.test_choose import TARGET, VARIED
from tests.unit.search.pretend import price

from outlay.core.error_types import ChooseError, TargetError
from outlay.devices.target import Target
from outlay.recipes.choose import ask
from outlay.search.search import search

pytestmark = pytest.mark.processes


def answering(**answers: object) -> tuple[str, ...]:
    """A command whose answer depends on the layout; without one it fails."""
    by_layout = {layout.replace("_", "+"): json.dumps(answer) for layout, answer in answers.items()}
    layout = "json.loads(sys.argv[1])['layout'].removesuffix('+host')"
    return (sys.executable, "-c", f"import json, sys; print({by_layout!r}[{layout}])")


def all_answering(answer: object) -> tuple[str, ...]:
    return answering(dp=answer, fsdp=answer, tp=answer)


def priced(seconds: float, **changes) -> dict[str, object]:
    return {"price": price(seconds, **changes).to_dict(), "was_kept": False}


def searched(command, *words: str, num_candidates: int = 12):
    question = replace(
        ask(VARIED, words, TARGET, layouts=["dp", "fsdp", "tp"], compiler_options="preset"), command=command
    )
    return search(question, num_candidates=num_candidates, num_processes=2, timeout=280)


ONE_EACH = ("--remat", "--accumulate", "1")


def test_the_fastest_that_fits_is_chosen_and_every_candidate_has_a_verdict():
    result = searched(answering(dp=priced(3), fsdp=priced(2), tp=priced(1, peak=99)), *ONE_EACH)
    assert [(each.candidate.layout, each.verdict) for each in result] == [
        ("fsdp", "chosen"),
        ("dp", "slower"),
        ("tp", "does not fit"),
    ]
    assert result.toml is not None
    assert 'mesh = "data=8"' in result.toml


def test_so_many_are_compiled_each_layout_first():
    result = searched(answering(dp=priced(3), fsdp=priced(2), tp=priced(1)), num_candidates=4)
    assert len(result.compiled) == 4
    assert {each.candidate.layout for each in result.compiled} == {"dp", "fsdp", "tp"}
    assert len(result.considered) == 24
    assert {each.verdict for each in result.considered[4:]} == {"not compiled", "ruled out"}


@pytest.mark.thorough
def test_the_last_turn_goes_to_the_best_without_the_preset_where_none_was_asked_for():
    command = answering(dp=priced(3), fsdp=priced(2), tp=priced(1))
    question = replace(ask(VARIED, (), TARGET), command=command)
    result = search(question, num_candidates=4, num_processes=1, timeout=280)
    alike = [each.candidate.compiler_options for each in result.compiled if each.candidate.layout == "tp"]
    assert sorted(alike, key=str) == [None, "none"]
    few = search(question, num_candidates=3, num_processes=1, timeout=280)
    assert {each.candidate.compiler_options for each in few} == {None}
    asked = replace(ask(VARIED, (), TARGET, compiler_options="preset"), command=command)
    assert {
        each.candidate.compiler_options for each in search(asked, num_candidates=4, num_processes=1, timeout=280)
    } == {None}


def test_one_that_fails_does_not_end_the_search():
    result = searched(answering(dp=priced(3), tp={"error": "ProgramError", "message": "no such thing"}), *ONE_EACH)
    assert result.chosen.candidate.layout == "dp"
    failed = {each.candidate.layout: each.why for each in result if each.verdict == "failed"}
    assert failed["tp"] == "no such thing"
    assert failed["fsdp"].startswith("KeyError: 'fsdp'")


def test_a_target_without_its_compiler_ends_it():
    with pytest.raises(TargetError, match="pip install"):
        searched(all_answering({"error": "TargetError", "message": "pip install"}))


def test_where_nothing_fits_there_is_no_choice():
    with pytest.raises(ChooseError, match=r"none of the 3 candidates .*h100:4x2"):
        searched(all_answering(priced(1, peak=81)), *ONE_EACH)


def test_where_nothing_fits_it_is_said_what_should():
    with pytest.raises(ChooseError) as caught:
        searched(all_answering(priced(1, peak=81)), *ONE_EACH)
    ways = [line for line in str(caught.value).splitlines() if "should fit, by arithmetic: about" in line]
    assert [way.partition(".py:varied ")[2] for way in ways] == [
        # No layout that was compiled, since none of them fits.
        "--remat --accumulate 1 --target h100:4x2 --layout fsdp+host --mesh data=8"
    ]


def test_where_arithmetic_rules_out_all_nothing_is_started(monkeypatch, tmp_path):
    (tmp_path / "targets.toml").write_text('[small]\nlike = "cpu"\nmemory_bytes = 100\n')
    monkeypatch.setenv("OUTLAY_TARGETS", str(tmp_path / "targets.toml"))
    question = replace(ask(VARIED, ONE_EACH, Target.parse("small:8")), command=("/no/such/command",))
    with pytest.raises(ChooseError, match="by arithmetic alone"):
        search(question, num_candidates=1, num_processes=1, timeout=1)
