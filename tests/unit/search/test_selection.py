import json
import re
from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import optax
import pytest
from tests.unit.search.pretend import compiled, price, screened

import outlay
from outlay.core.error_types import ChooseError
from outlay.devices.target import Target
from outlay.search.brief_selection import BriefSelection
from outlay.search.candidate import Candidate
from outlay.search.reasons import nothing_fits, nothing_to_compile
from outlay.search.search import ranked
from outlay.search.selection import Considered, Selection

TARGET = Target.parse("h100:32x8")


@pytest.fixture
def selection() -> Selection:
    outcomes = [
        compiled(screened("fsdp"), price(1), was_kept=True),
        compiled(screened("tp", mesh="data=4,model=2"), price(1.5)),
        compiled(screened("dp"), price(0.5, peak=90)),
    ]
    return Selection(
        recipe="lm",
        words=("--size", "3b"),
        target=str(TARGET),
        considered=(
            *ranked(outcomes),
            Considered(Candidate("zero1", "data=8"), "not compiled", "ranked below: ..."),
            *(Considered(Candidate("pp", f"data={n}"), "ruled out", "7 layers do not divide") for n in (2, 4)),
        ),
        toml=None,
        seconds=3.0,
    )


def test_the_text_names_the_chosen_one_the_losers_and_the_reasons(selection):
    text = str(selection)
    assert text.startswith("h100:32x8: fsdp data=8, about 500 ms to 2 s a step, 10.0 GiB of 80.0 GiB a device")
    assert "1.50x the time" in text
    assert "needs 90.0 GiB of 80.0 GiB a device" in text
    assert "1 candidate that the arithmetic ranks below, not compiled:\n  zero1 data=8: ranked below" in text
    assert "2 candidates that the arithmetic rules out:\n  2 x 7 layers do not divide" in text
    assert "note: the ranges of 1 slower one overlap that of the first" in text
    assert "note: 1 of 3 compiled programs were kept from an earlier search" in text


def test_small_candidates_on_a_large_device_are_drawn_apart():
    considered = ranked([compiled(screened("fsdp"), price(1, peak=1)), compiled(screened("dp"), price(0.9, peak=2))])
    page = Selection("lm", (), str(TARGET), tuple(considered), None, 1.0).to_html()
    assert "80.0 GiB a device, far to the right" in page
    across = sorted(float(x) for x in re.findall(r'<circle[^>]* cx="([0-9.]+)"', page))
    assert across[-1] - across[0] > 100


def test_the_front_holds_what_no_other_beats_in_time_and_memory():
    prices = {
        "dp": price(0.9, peak=60),
        "fsdp": price(1, peak=10),
        "zero1": price(1.2, peak=30),
        "tp": price(2, peak=5),
    }
    too_big = compiled(screened("whole"), price(0.1, peak=90))
    considered = ranked([too_big, *(compiled(screened(layout), its) for layout, its in prices.items())])
    selection = Selection("lm", (), str(TARGET), tuple(considered), None, 1.0)
    assert [each.candidate.layout for each in selection.pareto] == ["tp", "fsdp", "dp"]
    assert selection.to_dict()["pareto"] == ["tp data=8", "fsdp data=8", "dp data=8"]


def test_the_page_shows_every_candidate_and_why_it_lost(selection):
    page = selection.to_html()
    assert page.count("<circle") == 3
    assert page.count('<g class="beyond">') == 1
    assert "tp data=4,model=2: 1.5 s a step, 10.0 GiB" in page
    assert "2 x 7 layers do not divide" in page
    assert "1 candidate that the arithmetic ranks below, not compiled" in page
    legend = (
        page.partition('aria-label="What was compiled"')[2].partition('<ul class="legend">')[2].partition("</ul>")[0]
    )
    assert re.findall(r'<i class="(s\d)"></i><span>(\w+)</span>', legend) == [
        ("s0", "products"),
        ("s2", "communication"),
    ]
    assert selection.commands()[0] in page


def test_the_page_explains_the_chosen_one_too(selection):
    """What was priced, the timeline, what if, evidence: as on the page of `outlay explain`."""
    made = []

    def explanation():
        made.append(1)
        optimizer = optax.adam(0.1)
        program = outlay.program(
            outlay.train_step(lambda params, batch, keys: ((batch @ params["w"]) ** 2, {}), optimizer),
            outlay.init_state(lambda key: {"w": jnp.ones(4)}, optimizer),
            np.ones((8, 4), np.float32),
            layout=outlay.data_parallel(),
            mesh=outlay.mesh(data=8),
        )
        return outlay.explain(program, target="h100:1x8", cache=False)

    explained = replace(selection, find_explanation=explanation)
    assert (str(explained), explained.to_dict(), made) == (str(selection), selection.to_dict(), [])
    page = explained.to_html()
    sections = ("priced: 4 parameters, 8 samples a step", "A step in the order of execution", "What if", "Evidence")
    assert [part in page for part in sections] == [True] * 4
    assert page.index(selection.commands()[0]) < page.index("Memory against time") < page.index("Evidence")
    assert made == [1], "explained once"


def test_as_data_it_is_json_with_every_candidate(selection):
    data = json.loads(json.dumps(selection.to_dict()))
    assert data["chosen"]["layout"] == "fsdp"
    assert [each["verdict"] for each in data["considered"]] == [each.verdict for each in selection]
    assert data["considered"][1]["price"]["seconds"] == 1.5


def test_the_commands_go_on_with_the_chosen_one(selection):
    assert selection.commands() == (
        "outlay explain lm --size 3b --layout fsdp --mesh data=8 --target h100:32x8",
        "outlay run lm --size 3b --layout fsdp --mesh data=8",
    )
    assert selection.commands("my file.toml")[1] == "outlay run lm --size 3b --layout 'my file.toml'"


def test_the_commands_say_which_options_of_the_compiler(selection):
    given = replace(selection, compiler_options="mine.txt")
    assert given.commands()[1] == "outlay run lm --size 3b --compiler-options mine.txt --layout fsdp --mesh data=8"
    first, *others = given.considered
    without = replace(first, candidate=replace(first.candidate, compiler_options="none"))
    given = replace(given, considered=(without, *others))
    assert given.commands()[1] == "outlay run lm --size 3b --compiler-options none --layout fsdp --mesh data=8"


def test_in_brief_the_best_are_shown_and_the_others_counted(selection):
    chosen, *others = selection.considered
    slower = ranked([compiled(screened(f"l{number}"), price(2 + number)) for number in range(40)])
    reasons = [Considered(Candidate("pp", f"data={n}"), "ruled out", f"{n} layers do not divide") for n in range(50)]
    long = replace(
        selection, considered=(chosen, *(replace(one, verdict="slower") for one in slower), *others, *reasons)
    )
    assert len(str(long).splitlines()) > 60
    brief = str(BriefSelection(long)).splitlines()
    assert len(brief) <= 60
    assert brief[0] == str(long).splitlines()[0]
    assert any("and 37 more" in line for line in brief)
    assert brief[-1] == "all candidates and reasons: --all, or --html FILE"


def test_the_fraction_of_the_memory_that_the_chosen_one_needs_is_said_and_set(selection):
    first, *others = selection.considered
    assert "XLA_PYTHON_CLIENT_MEM_FRACTION" not in f"{selection}{selection.commands()}"
    big = replace(first, price=replace(first.price, mem_fraction=0.9))
    given = replace(selection, considered=(big, *others))
    setting = "XLA_PYTHON_CLIENT_MEM_FRACTION=0.90"
    assert given.commands()[1] == f"{setting} outlay run lm --size 3b --layout fsdp --mesh data=8"
    assert given.commands()[0].startswith("outlay explain")
    assert "needs 90% of the memory, more than JAX takes by itself" in re.sub(r"\s+", " ", str(given))


def test_where_nothing_fits_the_nearest_is_named_with_what_is_missing():
    tried = ranked([compiled(screened("dp"), price(peak=300)), compiled(screened("fsdp"), price(peak=96))])
    message = str(nothing_fits(TARGET, tried, num_left=5))
    assert message.startswith("none of the 2 candidates that were compiled can run on h100:32x8 (79.1 GiB a device)")
    assert "nearest: fsdp data=8, 16.0 GiB a device too much" in message
    assert "dp data=8: does not fit: needs 300.0 GiB of 80.0 GiB a device" in message
    assert "more devices than 256" in message
    known = str(nothing_fits(TARGET, tried, num_left=0, ways=["about 9 GiB: outlay explain lm --batch 8"]))
    assert "  fix: what should fit, by arithmetic: about 9 GiB: outlay explain lm --batch 8" in known
    assert "more devices" not in known
    assert "--num-candidates 7" in message


def test_where_everything_failed_or_was_late_the_fixes_are_others():
    tried = ranked(
        [compiled(screened("dp"), None, "ValueError: x\nmore"), compiled(screened("tp"), None, "late", timed_out=True)]
    )
    message = str(nothing_fits(TARGET, tried, num_left=0))
    assert "dp data=8: failed: ValueError: x\n    more" in message
    assert "--timeout" in message
    assert "outlay explain" in message
    assert "more devices" not in message


def test_where_arithmetic_rules_out_all_the_reasons_are_counted():
    ruled_out = [Considered(Candidate("dp", f"data={n}"), "ruled out", "too big") for n in (2, 4)]
    error = nothing_to_compile(TARGET, [*ruled_out, Considered(Candidate("tp", "model=8"), "ruled out", "7 heads")])
    assert isinstance(error, ChooseError)
    assert "none of 3 candidates" in str(error)
    assert "  2 x too big\n    such as dp data=2\n  1 x 7 heads" in str(error)
    assert "no mesh" in str(nothing_to_compile(TARGET, []))


def test_where_batches_differ_the_times_are_those_of_an_example(selection):
    outcomes = [
        compiled(screened("small", num_samples=8), price(1, peak=20)),
        compiled(screened("large", num_samples=32), price(2, peak=40)),
    ]
    result = replace(selection, considered=tuple(ranked(outcomes)))
    assert [each.candidate.layout for each in result.pareto] == ["small", "large"]
    text, page = str(result), result.to_html()
    assert "an example" in text
    assert "62.5 ms" in text
    assert "note: batches differ, so times of an example are compared" in text
    assert "large data=8: 62.5 ms an example, 40.0 GiB" in page
    assert "an example" not in str(selection) + selection.to_html()
