"""What `make test` leaves to the thorough run: CONTRIBUTING.md says what and why."""

import pytest


def marks_of(request):
    return {mark.name for mark in request.node.iter_markers()}


@pytest.mark.some_cases(3, newest=1)
@pytest.mark.parametrize("other", ["x", "y"])
@pytest.mark.parametrize("one", [0, 1, 2])
def test_of_its_cases_those_run_that_hold_the_most_values(one, other, request):
    chosen = [(0, "x"), (1, "y"), (2, "x")]
    assert ("thorough" in marks_of(request)) == ((one, other) not in chosen)
    assert ("any_jax" in marks_of(request)) == ((one, other) not in chosen[:1])


@pytest.mark.some_cases(2)
@pytest.mark.parametrize(("one", "other"), [(0, "x"), (1, "x"), (2, "y")])
def test_values_that_stand_together_count_one_by_one(one, other, request):
    assert ("thorough" in marks_of(request)) == ((one, other) == (1, "x"))


@pytest.mark.some_cases(1)
@pytest.mark.parametrize("one", [0, 1])
def test_a_case_that_is_left_out_is_left_out_with_every_jax(one, request):
    assert marks_of(request).isdisjoint({"thorough", "any_jax"}) == (one == 0)
