"""An explained program on the front of a choice: a sentence, a labelled dot, and refusals of other choices."""

import json

import jax
import pytest
from tests.unit.search.pretend import GIB, compiled, price, screened

from outlay.errors import ExplainError
from outlay.render.html import html_of_page
from outlay.render.page import Page
from outlay.report.explain.explain_front import check_choice, front_blocks, front_of, read_choice
from outlay.search.search import ranked
from outlay.search.selection import Selection

WORDS = ("--model", "100m", "--batch", "8,16")


def choice_of(*more):
    considered = [
        compiled(screened("fsdp"), price(1, peak=30)),
        compiled(screened("zero1"), price(2, peak=20)),
        compiled(screened("dp"), price(3, peak=60)),
        compiled(screened("tp"), price(0.5, peak=90)),
        *more,
    ]
    selection = Selection("lm", WORDS, "h100:1x8", tuple(ranked(considered)), None, 3.0)
    return json.loads(json.dumps(selection.to_dict())), selection


def batch_of(size):
    return {"tokens": jax.ShapeDtypeStruct((size, 4), "int32")}


def test_the_front_is_that_of_the_choice():
    choice, selection = choice_of()
    front = front_of(choice, 1.5, 25 * GIB, batch_of(8))
    assert {each.name for each in front.candidates if each.is_on_front} == {
        str(each.candidate) for each in selection.pareto
    }
    assert {each.name for each in front.candidates} == {str(each.candidate) for each in selection.compiled}


def test_what_no_candidate_beats_is_on_the_front():
    choice, _ = choice_of()
    front = front_of(choice, 1.5, 25 * GIB, batch_of(8))
    assert front.in_words.startswith("you are on the front, 1.5 s a step in 25.0 GiB: of 4 candidates")
    beaten = front_of(choice, 2.5, 40 * GIB, batch_of(8))
    assert [each.layout for each in beaten.better] == ["fsdp", "zero1"], "what does not fit beats nothing"
    assert (
        "of 4 candidates of outlay choose 2 need less of both, such as fsdp data=8: 1 s in 30.0 GiB" in beaten.in_words
    )


def test_times_are_of_an_example_where_batches_differ():
    choice, _ = choice_of(compiled(screened("hsdp", num_samples=16), price(1.6, peak=40)))
    front = front_of(choice, 1.5, 25 * GIB, batch_of(8))
    assert front.unit == "an example"
    assert front.seconds == pytest.approx(1.5 / 8)
    assert next(each.seconds for each in front.candidates if each.layout == "hsdp") == pytest.approx(0.1)
    assert front_of(choice_of()[0], 1.5, 25 * GIB, batch_of(16)).unit == "an example"


def test_the_dot_of_the_program_is_labelled():
    front = front_of(choice_of()[0], 1.5, 25 * GIB, batch_of(8))
    page = html_of_page(Page("a page", list(front_blocks(front))))
    assert page.count(">you are here<") == 1
    assert page.count("on the front</td>") == 1, "beside the chosen one"
    assert all(f">{number}</text>" in page for number in (1, 2, 3, 4))


def test_a_choice_that_compiled_nothing_has_no_front():
    choice, _ = choice_of()
    assert front_of({**choice, "considered": []}, 1.5, 25 * GIB, batch_of(8)) is None


def test_a_choice_about_something_else_is_refused(tmp_path):
    choice, _ = choice_of()
    path = tmp_path / "choice.json"
    check_choice(choice, "lm", ["--batch=16", "--model", "100m", "--remat", "full"], "h100:1x8", path)
    with pytest.raises(ExplainError) as error:
        check_choice(choice, "digits", ["--model", "1b"], "h100:2x8", path)
    for words in (
        "choice.json is about something else: recipe is lm there, and digits here",
        "--target is h100:1x8 there, and h100:2x8 here",
        "--model is 100m there, and 1b here",
        "--batch is 8,16 there, and nothing here",
        "fix: outlay choose digits --model 1b --target h100:2x8 --json",
    ):
        assert words in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{}", "lacks recipe, words, target, considered"), ("[", "cannot be read as a choice"), ("3", "is not a choice")],
)
def test_a_file_that_is_no_choice_is_refused(tmp_path, text, message):
    path = tmp_path / "choice.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ExplainError, match=message) as error:
        read_choice(path)
    assert "fix: outlay choose RECIPE --target T --json > choice.json" in str(error.value)
    with pytest.raises(ExplainError, match="cannot be read"):
        read_choice(tmp_path / "none.json")
