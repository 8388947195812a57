from typing import Literal

from hypothesis import given
from hypothesis import strategies as st

from outlay.recipes.arguments import recipe_arguments
from outlay.search.candidate import Candidate, candidates, words_of


def recipe(size: Literal["1b", "3b"] = "1b", remat: bool = False, num_heads: int = 1): ...


@given(st.fixed_dictionaries({}, optional={"size": st.sampled_from(["1b", "3b"]), "remat": st.booleans()}))
def test_options_as_words_mean_the_same_options(options):
    assert recipe_arguments(recipe, "lm", words_of({**options, "num_heads": 3})) == {**options, "num_heads": 3}


def test_every_layout_meets_its_meshes_and_every_set_of_options():
    remat = (("remat", True),)
    combinations = list(candidates({"dp": ["data=8"], "tp": ["data=4,model=2", "data=2,model=4"]}, [(), remat]))
    assert len(combinations) == len(set(combinations)) == 6
    assert Candidate("tp", "data=2,model=4", remat) in combinations
