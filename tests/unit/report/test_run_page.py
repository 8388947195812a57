"""The page of a run in a real browser: curves to read under the pointer, to zoom, in light and dark, at any width."""

import pytest
from tests.chromium import Browser
from tests.unit.train.run_folders import folder_of_run

from outlay.render.html import html_of_page
from outlay.report.run_page import page_so_far
from outlay.train.run_record import RunRecord

pytestmark = pytest.mark.processes


@pytest.fixture(scope="module")
def browser():
    started = Browser()
    yield started
    started.close()


@pytest.fixture
def opened(browser, tmp_path):
    """Open the page of a run folder; afterwards, nothing may have failed in it."""

    def open_page(folder, **how):
        page = tmp_path / "page.html"
        page.write_text(html_of_page(page_so_far(RunRecord(folder))), encoding="utf-8")
        browser.open(page.as_uri(), **how)
        return browser

    yield open_page
    assert browser.problems == []


def chart(title):
    return f"document.querySelector('figure[data-chart=\"{title}\"]')"


def place(browser, title, share):
    """A point of a chart: so far to the right, in the middle of its height."""
    box = browser.run(f"{chart(title)}.querySelector('svg').getBoundingClientRect().toJSON()")
    left, right = 62, 14
    return box["x"] + left + share * (box["width"] - left - right), box["y"] + box["height"] / 2


def test_memory_of_one_step_alone_is_no_curve(tmp_path):
    folder = folder_of_run(tmp_path / "run")
    record = RunRecord(folder)
    assert "Memory in use on the fullest device" in html_of_page(page_so_far(record))
    record.memory = [(record.step, value) for _, value in record.memory]
    assert "Memory in use on the fullest device" not in html_of_page(page_so_far(record))


def test_values_are_read_under_the_pointer(opened, tmp_path):
    browser = opened(folder_of_run(tmp_path / "run"))
    assert browser.run(f"{chart('loss')}.querySelectorAll('path.line').length") == 2
    browser.move(*place(browser, "loss", 0.4))
    shown = browser.run(f"{chart('loss')}.querySelector('.tip').innerText").split()
    assert shown == ["step", "3", "loss", "(3)", "0.6667", "evaluate.loss", "(3)", "1.167"]
    browser.move(1, 1)
    assert browser.run(f"{chart('loss')}.querySelector('.tip').hidden")


def test_charts_of_the_same_steps_zoom_together_and_back(opened, tmp_path):
    browser = opened(folder_of_run(tmp_path / "run", steps=100, of=100))
    browser.move(*place(browser, "loss", 0.5))
    browser.move(*place(browser, "loss", 0.5), "mousePressed", "left")
    browser.move(*place(browser, "loss", 0.75), "mouseMoved", "left")
    browser.move(*place(browser, "loss", 0.75), "mouseReleased", "left")
    for title in ("loss", "samples a second"):
        assert browser.run(f"{chart(title)}.chart.zoom") == pytest.approx([50.5, 75.25], abs=0.5)
    browser.run(f"{chart('loss')}.chart.whole.click()")
    assert browser.run(f"{chart('samples a second')}.chart.zoom") is None


def test_keys_do_what_the_pointer_does(opened, tmp_path):
    browser = opened(folder_of_run(tmp_path / "run"))
    browser.run(f"{chart('loss')}.querySelector('svg').focus()")
    for key in ("ArrowRight", "+"):
        browser.ask("Input.dispatchKeyEvent", type="keyDown", key=key)
    assert browser.run(f"{chart('loss')}.chart.zoom") is not None
    assert not browser.run(f"{chart('loss')}.querySelector('.tip').hidden")
    browser.ask("Input.dispatchKeyEvent", type="keyDown", key="Escape")
    assert browser.run(f"{chart('loss')}.chart.zoom") is None


def test_curves_follow_dark_mode_and_no_width_scrolls_sideways(opened, tmp_path):
    folder = folder_of_run(tmp_path / "run", command="outlay run " + "x" * 300, seed="<b>&")
    colours = set()
    for width in (400, 1200):
        for dark in (False, True):
            browser = opened(folder, width=width, dark=dark)
            assert browser.run("document.scrollingElement.scrollWidth") <= width
            colours.add(browser.run(f"getComputedStyle({chart('loss')}.querySelector('path.line')).stroke"))
            assert browser.run(f"{chart('loss')}.querySelector('svg').getBoundingClientRect().width") > width / 4
    assert len(colours) == 2
    assert "<b>&" in browser.run("document.body.innerText")


def test_what_is_not_finite_is_a_gap_with_a_mark(opened, tmp_path):
    browser = opened(folder_of_run(tmp_path / "run", loss=lambda step: float("nan") if step == 3 else 1.0 / step))
    assert browser.run(f"{chart('loss')}.querySelectorAll('path.not-finite').length") >= 1
    assert "loss is not finite in 1 step of those drawn, first in step 3" in browser.run("document.body.innerText")


def test_a_killed_run_says_after_which_step(opened, tmp_path):
    browser = opened(folder_of_run(tmp_path / "run", steps=4, end=""))
    text = browser.run("document.body.innerText")
    assert "the run was killed, or its machine went down, after step 4" in text
    assert "outlay run line" in text
    assert "2 taken again" not in text
