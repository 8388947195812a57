import itertools
import re
from fnmatch import fnmatchcase

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from outlay.core.paths import first_part, join_parts, matches, pattern_problem

NAME = st.text(alphabet="ab", min_size=1, max_size=3)
PATTERN_PART = st.sampled_from(["*", "**", "a", "b", "ab", "a*", "*b", "a*b", "*a*", "**"])


def naive(pattern: tuple[str, ...], path: tuple[str, ...]) -> bool:
    """Every way to replace each `**` by some number of `*`, compared part by part."""
    stars = pattern.count("**")
    for counts in itertools.product(range(len(path) + 1), repeat=stars):
        num_stars = iter(counts)
        parts = [one for part in pattern for one in (["*"] * next(num_stars) if part == "**" else [part])]
        if len(parts) == len(path) and all(map(fnmatchcase, path, parts)):
            return True
    return False


@given(st.lists(PATTERN_PART, min_size=1, max_size=4), st.lists(NAME, min_size=1, max_size=5))
@example(["**", "b"], ["b"])
@example(["a", "**", "**", "b"], ["a", "b"])
def test_matching_agrees_with_trying_every_expansion(pattern, path):
    assert matches(".".join(pattern), join_parts(tuple(path))) == naive(tuple(pattern), tuple(path))


@given(st.lists(st.text(max_size=5), min_size=1, max_size=4).map(tuple), st.text(max_size=3))
@example(("a.b", "*", "it's"), "x")
@example(("a**b",), "x")
def test_a_path_as_its_own_pattern_matches_it_and_nothing_longer(parts, extra):
    path = join_parts(parts)
    assert pattern_problem(path) is None
    assert matches(path, path)
    assert not matches(path, join_parts((*parts, extra)))
    assert not matches(path, join_parts((extra, *parts)))


@given(
    st.text(alphabet="ab*", min_size=1, max_size=6).filter(lambda t: "**" not in t), st.text(alphabet="ab", max_size=8)
)
def test_stars_in_a_part_agree_with_fnmatch(pattern, name):
    assert matches(f"p.{pattern}", join_parts(("p", name))) == fnmatchcase(name, pattern)


def test_repeated_wildcards_are_matched_without_trying_every_way():
    # By backtracking the first takes 2**100 attempts and the second as many: the time limit of the tests ends it.
    assert not matches(".".join(["**", "a"] * 40) + ".x", ".".join("a" * 200))
    assert not matches("params." + "*a" * 40 + "b", "params." + "a" * 5000)
    assert matches(".".join(["**", "a"] * 40), ".".join("a" * 200))


def test_stars_in_quotes_stand_for_themselves():
    assert matches("p.'*'", "p.'*'")
    assert not matches("p.'*'", "p.a")
    assert first_part("'a*b'.w") == "a*b"
    assert pattern_problem("'a**b'.w") is None


def test_dots_in_quotes_do_not_split_parts():
    assert matches("p.'a.b'.w", "p.'a.b'.w")
    assert not matches("p.a.b.w", "p.'a.b'.w")
    assert matches("p.*.w", "p.'a.b'.w")


def test_regular_expression_signs_stand_for_themselves():
    assert matches("p.(a+)[0]", "p.(a+)[0]")
    assert not matches("p.(a+)[0]", "p.aa0")


def test_newlines_in_a_part_are_reached_by_a_star():
    assert matches("p.*", join_parts(("p", "a\nb")))


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("", r"empty; `\*\*` matches every leaf"),
        (".w", "empty part"),
        ("w.", "empty part"),
        ("a..w", "empty part"),
        ("a.**b", r"cannot share a part: '\*\*b'"),
        ("***", r"cannot share a part"),
        ("'a", "quote whole parts"),
        ("a'b", "quote whole parts"),
        ("'a'b.w", "quote whole parts"),
        ("a.'b.w", "quote whole parts"),
    ],
)
def test_a_malformed_pattern_is_said_to_be_so(pattern, words):
    problem = pattern_problem(pattern)
    assert problem is not None
    assert re.search(words, problem)


@pytest.mark.parametrize("pattern", ["**", "*", "a", "a.**.b*", "'a.b'.*", "a.'..'.b", r"'it\'s'.w"])
def test_a_well_formed_pattern_has_no_problem(pattern):
    assert pattern_problem(pattern) is None
