"""The gallery is drawn from kept facts: forty configurations of ten models, an index that sorts, pages that price."""

import importlib
import sys
from pathlib import Path

import pytest
from tests.chromium import Browser

from outlay.render.html import html_of_page

SCRIPTS = Path(__file__).parents[3] / "benchmarks"
SOME = {"MPT-760m": ["mpt-760m-2048-8xa100_40gb-bf16-b384-192"], "MaxText 16B": ["maxtext-v5e-16b-2x256"]}


@pytest.fixture(scope="module")
def gallery():
    sys.path.insert(0, str(SCRIPTS))
    yield importlib.import_module("gallery")
    sys.path.remove(str(SCRIPTS))


@pytest.fixture(scope="module")
def shown(gallery):
    return gallery.exhibits(SOME)


def test_there_are_forty_configurations_of_ten_models_and_facts_of_each(gallery):
    known = gallery.known_facts()
    names = [name for names in gallery.MODELS.values() for name in names]
    assert (len(gallery.MODELS), len(set(names)), len(names)) == (10, 40, 40)
    rows = {row["id"]: row for row in gallery.read_rows(gallery.RUNS)}
    runs = [gallery.known_run(known, rows[name]) for name in names]
    assert [run.id for run in runs if "schedule" not in (gallery.facts_in(known, run) or {})] == []
    assert len({run.target for run in runs}) > 12
    assert len({run.layout.name for run in runs}) >= 6


def test_rows_without_facts_are_named_with_what_compiles_them(gallery, monkeypatch):
    monkeypatch.setattr(gallery, "known_facts", dict)
    with pytest.raises(
        SystemExit, match=r"no facts of 2 runs\n  fix: python benchmarks/published.py --keep --row mpt-760m"
    ):
        gallery.exhibits(SOME)


def test_a_page_has_the_step_its_price_and_its_source(gallery, shown):
    for one in shown:
        page = html_of_page(gallery.page_of(one))
        assert len(page) < 300_000
        for words in ('id="timeline"', 'id="roofline"', "MFU", one.run.row["framework"], one.run.layout.text):
            assert words in page
        assert "http" not in page.replace("http://www.w3.org/2000/svg", "")
    assert shown[0].step.throughput.mfu == pytest.approx(0.52, abs=0.1)


@pytest.mark.processes
def test_the_index_sorts_and_filters(gallery, shown, tmp_path):
    (tmp_path / "index.html").write_text(html_of_page(gallery.index_of(shown)), encoding="utf-8")
    browser = Browser()
    try:
        browser.open((tmp_path / "index.html").as_uri(), width=400)
        models = "[...document.querySelectorAll('tbody tr:not([hidden])')].map((row) => row.cells[0].textContent)"
        click = "[...document.querySelectorAll('th button')].find((one) => one.textContent === 'A step').click()"
        first = [one.model for one in sorted(shown, key=lambda one: one.estimate.seconds)]
        browser.run(click)
        assert browser.run(models) == first
        browser.run(click)
        assert browser.run(models) == first[::-1]
        assert browser.run("document.querySelector('th[aria-sort]').ariaSort") == "descending"
        filtered = (
            "Object.assign(document.querySelector('input'), {value: 'tpu hsdp'}).dispatchEvent(new Event('input'))"
        )
        browser.run(filtered)
        assert browser.run(models) == ["MaxText 16B"]
        assert browser.run("document.querySelector('[role=status]').textContent") == "1 of 2 rows"
        assert browser.run("document.querySelector('tbody tr:not([hidden]) a').getAttribute('href')").endswith(".html")
        assert browser.run("document.scrollingElement.scrollWidth") == 400
        assert browser.problems == []
    finally:
        browser.close()
