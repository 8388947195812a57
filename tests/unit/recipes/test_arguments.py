"""A recipe's own options: read by their annotations, all mistakes listed at once."""

from typing import Literal

import pytest

from outlay.core.error_types import RecipeError
from outlay.recipes.arguments import recipe_arguments


def recipe(
    size: Literal["tiny", "1b"] = "tiny", batch_size: int | None = None, rate: float = 0.1, remat: bool = True, note=""
):
    return size, batch_size, rate, remat, note


@pytest.mark.parametrize(
    ("words", "arguments"),
    [
        ([], {}),
        (["--size", "1b"], {"size": "1b"}),
        (["--size=1b", "--batch-size", "8"], {"size": "1b", "batch_size": 8}),
        (["--batch_size", "8"], {"batch_size": 8}),
        (["--remat"], {"remat": True}),
        (["--no-remat", "--rate", "1e-3"], {"remat": False, "rate": 1e-3}),
        (["--remat=false"], {"remat": False}),
        (["--rate", "-0.5"], {"rate": -0.5}),
        (["--note", "3"], {"note": "3"}),
    ],
)
def test_words_become_arguments(words, arguments):
    assert recipe_arguments(recipe, "lm", words) == arguments


def test_all_mistakes_are_listed_with_what_was_expected():
    words = ["--size", "2b", "--bach-size", "8", "--rate", "fast", "--batch-size", "stray"]
    with pytest.raises(RecipeError) as failure:
        recipe_arguments(recipe, "lm", [*words, "--note"])
    assert str(failure.value).splitlines() == [
        "lm: 5 options cannot be used",
        "  --size 2b: expected one of tiny, 1b",
        "  there is no option --bach-size: did you mean '--batch-size'?",
        "  --rate fast: expected a number",
        "  --batch-size stray: expected a whole number",
        "  --note needs a value: --note a text",
    ]


def test_a_mistyped_option_of_the_command_is_recognised():
    with pytest.raises(RecipeError, match=r"no option --layuot: did you mean '--layout'\?"):
        recipe_arguments(recipe, "lm", ["--layuot", "dp"], ["--layout", "--mesh"])


def test_dashes_make_no_two_options_alike():
    def recipe(tied: bool = False, width: int = 8): ...

    with pytest.raises(RecipeError, match=r"there is no option --size: known: '--tied', '--width'"):
        recipe_arguments(recipe, "lm", ["--size", "tiny"])


def test_a_stray_word_is_refused():
    with pytest.raises(RecipeError, match=r"'tiny' is not an option: write --name value"):
        recipe_arguments(recipe, "lm", ["tiny"])


def test_an_option_that_may_be_repeated():
    def recipe(record: list[str] | None = None, stride: int = 1): ...

    words = ["--record", "*:spikes", "--stride", "2", "--record=**.soma.*"]
    assert recipe_arguments(recipe, "brain", words) == {"record": ["*:spikes", "**.soma.*"], "stride": 2}
    assert recipe_arguments(recipe, "brain", []) == {}
    with pytest.raises(RecipeError, match="--record needs a value: --record a text"):
        recipe_arguments(recipe, "brain", ["--record"])
