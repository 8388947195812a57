from tests.unit.search.pretend import GIB

from outlay.search.analytic_cost import Expectation
from outlay.search.candidate import Candidate
from outlay.search.screening import Screened, promising

CAPACITY = 80 * GIB
SECONDS = {"dp": 3.0, "fsdp": 1.0, "tp": 2.0, "pp": 0.1}
GIBS = {"dp": 70, "fsdp": 10, "tp": 20, "pp": 100}


def made(num):
    """As many candidates of each layout on each mesh, of which the last is the fastest."""
    options = [{"accumulate": 2**number} for number in range(num)]
    return [
        Candidate(layout, mesh, options=tuple(each.items()))
        for layout in SECONDS
        for mesh in ("data=8", "data=16")
        for each in options
    ]


def looker(looked):
    def look(candidates):
        looked.extend(candidates)
        return [
            Screened(
                each,
                Expectation(
                    SECONDS[each.layout] * (2 if each.mesh == "data=16" else 1) / dict(each.options)["accumulate"],
                    GIBS[each.layout] * GIB,
                    1,
                ),
            )
            for each in candidates
            if each.layout != "dp" or each.mesh == "data=8"  # the others cannot run
        ]

    return look


def test_few_candidates_are_all_worth_a_look():
    looked = []
    assert promising(made(10), looker(looked), CAPACITY, most=80) == (made(10), [])
    assert not looked


def test_of_too_many_those_stay_of_which_a_few_promise_most():
    looked, every = [], made(30)
    stay, left_out = promising(every, looker(looked), CAPACITY, most=100)
    assert len(looked) == 6 * 8
    # The fastest that fit, in the order of all; `pp` is faster and does not fit.
    assert {(each.layout, each.mesh) for each in stay} == {("fsdp", "data=8"), ("tp", "data=8"), ("fsdp", "data=16")}
    assert stay == [each for each in every if each in stay]
    assert len(stay) + len(left_out) == len(every)
    assert {each.verdict for each in left_out} == {"ruled out"}
    assert "promise less" in left_out[0].why


def test_the_first_stays_however_many_it_has():
    stay, _ = promising(made(30), looker([]), CAPACITY, most=7)
    assert {(each.layout, each.mesh) for each in stay} == {("fsdp", "data=8")}
