"""Every kind of page at the width of a phone and in the dark: nothing scrolls sideways, and what counts is in sight."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.chromium import Browser
from tests.unit.search.pretend import compiled, price, screened
from tests.unit.train.run_folders import folder_of_run

import outlay
from outlay.render.pictures import Image
from outlay.report.run_page import run_page
from outlay.search.search import ranked
from outlay.search.selection import Selection
from outlay.train.run_record import RunRecord

pytestmark = [pytest.mark.processes, pytest.mark.compiles]

LONG = "a_block_of_a_transformer_with_a_long_name"
WHITE = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR4nGP4////fwAJ+wP9KobjigAAAABJRU5ErkJggg=="


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    """The pages of one small program, and of what is made by hand."""

    def init(key):
        return {"params": {LONG: {"kernel": jax.random.normal(key, (16, 64))}}, "mu": jnp.ones((64, 16))}

    def step(state, batch):
        def loss(params):
            return jnp.mean((jnp.tanh(batch @ params[LONG]["kernel"]) @ state["mu"]) ** 2)

        value, gradients = jax.value_and_grad(loss)(state["params"])
        return {**state, "params": jax.tree.map(jnp.subtract, state["params"], gradients)}, value

    def program(layout):
        batch = np.ones((16, 16), np.float32)
        return outlay.program(step, init, batch, layout=layout, mesh=outlay.mesh(data=4, model=2))

    split = program(outlay.fsdp("data", min_size=1) + outlay.data_parallel())
    considered = ranked(
        [
            compiled(screened("fsdp"), price(1, peak=30), was_kept=True),
            compiled(screened("dp"), price(1.01, peak=30.2)),
            compiled(screened("zero1"), price(5, peak=60)),
        ]
    )
    record = RunRecord(folder_of_run(tmp_path_factory.mktemp("run") / "run", command="outlay run " + "x" * 200))
    pages = {
        "show": outlay.show(split),
        "explain": outlay.explain(split),
        "priced": outlay.explain(split, target="h100:1x8"),
        "explore": outlay.explore(split),
        "estimate": outlay.estimate(split),
        "plan diff": split.plan.diff(program(outlay.data_parallel()).plan),
        "verify": outlay.verify(split, batches=[np.eye(16, dtype=np.float32)] * 3),
        "choose": Selection("lm", (), "h100:32x8", tuple(considered), None, 3.0),
    }
    picture = Image("Spikes", WHITE)
    table = [{"population": "A", "module": "Neuron" * 9, "neurons": "9", "rate (Hz)": "4"}]
    run = run_page(
        "A run", {"ran": "x" * 100}, split.plan, record, table=table, numbers=["neurons"], pictures=[picture]
    )
    return {**{name: facts.to_html() for name, facts in pages.items()}, "run": run}


@pytest.fixture(scope="module")
def browser():
    started = Browser()
    yield started
    started.close()


@pytest.fixture
def opened(browser, pages, tmp_path):
    def open_page(name, **how):
        path = tmp_path / "page.html"
        path.write_text(pages[name], encoding="utf-8")
        browser.open(path.as_uri(), **how)
        return browser

    yield open_page
    assert browser.problems == []


def test_no_page_scrolls_sideways(opened, pages):
    for name in pages:
        assert opened(name, width=400).run("document.scrollingElement.scrollWidth") == 400, name


def test_all_dots_are_in_sight(opened):
    box = "document.querySelector('.scroll:has(> .plot)')"
    assert opened("choose", width=400).run(f"{box}.scrollWidth === {box}.clientWidth")


def in_sight(browser, selector):
    """The texts of the cells that are wholly within a table's visible part, by head, without scrolling it."""
    script = f"""[...document.querySelector("{selector}").querySelectorAll('thead th')].filter((head) => {{
        const [box, frame] = [head, head.closest('.scroll')].map((node) => node.getBoundingClientRect());
        return box.left >= frame.left - 1 && box.right <= frame.right + 1;
    }}).map((head) => head.innerText)"""
    return browser.run(script)


def test_what_people_come_for_is_in_sight_at_400_pixels(opened):
    assert {"Kind", "What"} <= set(in_sight(opened("explain", width=400), "[aria-label=Collectives] table"))
    assert {"Array", ""} <= set(in_sight(opened("verify", width=400), "[aria-label=Arrays] table"))
    assert {"Layout", "A step"} <= set(in_sight(opened("choose", width=400), "[aria-label='What was compiled'] table"))
    assert {"device", "in all"} <= set(in_sight(opened("show", width=400), "table.heat"))
    assert {"Population", "Rate (Hz)"} <= set(in_sight(opened("run", width=400), "[aria-label=Result] table"))


def test_the_first_column_stays_when_a_table_is_scrolled(opened):
    browser = opened("explain", width=400)
    left = "document.querySelector('[aria-label=Collectives] td').getBoundingClientRect().left"
    before = browser.run(left)
    scroll = "document.querySelector('[aria-label=Collectives] .scroll')"
    assert browser.run(f"({scroll}.scrollLeft = 150, {scroll}.scrollLeft)") == 150
    assert browser.run(left) == before


def test_pictures_are_dark_in_the_dark(opened):
    style = "getComputedStyle(document.querySelector('figure img')).filter"
    filters = {dark: opened("run", dark=dark).run(style) for dark in (False, True)}
    assert filters == {False: "none", True: "invert(1) hue-rotate(180deg)"}


def test_bars_that_compare_have_one_scale_and_numbers_do_not_cover_one_another(opened):
    browser = opened("choose")
    width = "[...bar.children].reduce((sum, part) => sum + part.getBoundingClientRect().width, 0)"
    lengths = browser.run(f"[...document.querySelectorAll('.parts')].map((bar) => {width})")
    assert lengths[2] / lengths[0] == pytest.approx(5, rel=0.1)
    place = "[dot.cx.baseVal.value, dot.cy.baseVal.value]"
    places = browser.run(f"[...document.querySelectorAll('.plot g > circle[r=\"9\"]')].map((dot) => {place})")
    assert len(places) == 3
    assert all(np.hypot(a[0] - b[0], a[1] - b[1]) >= 19 for a in places for b in places if a is not b)
    assert "Options" not in in_sight(browser, "[aria-label='What was compiled'] table")


@pytest.mark.thorough
def test_cards_beside_each_other_fill_their_row(opened):
    browser = opened("explain", width=1200)
    top = "document.querySelector(`[aria-label='${name}']`).getBoundingClientRect().top"
    tops = browser.run(f"['By module', 'Sums'].map((name) => {top})")
    assert tops[0] == tops[1]
