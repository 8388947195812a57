"""The timeline, and the step on other hardware, on the page of an explanation: in a real browser."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from tests.chromium import Browser

import outlay
from outlay.core.quantities import format_range, format_seconds

pytestmark = [pytest.mark.processes, pytest.mark.compiles]

NUM_LAYERS = 24


@pytest.fixture(scope="module")
def program():
    """A step of scanned layers, split over four devices."""

    def init(key):
        return {"layers": jax.random.normal(key, (NUM_LAYERS, 256, 256))}

    def step(state, batch):
        def loss(layers):
            return jnp.mean(jax.lax.scan(lambda x, layer: (jnp.tanh(x @ layer), None), batch, layers)[0])

        value, gradients = jax.value_and_grad(loss)(state["layers"])
        return {"layers": state["layers"] - gradients}, value

    batch = np.ones((64, 256), np.float32)
    layout = outlay.fsdp(min_size=1) + outlay.data_parallel()
    return outlay.program(step, init, batch, layout=layout, mesh=outlay.mesh(data=4, devices=jax.devices()[:4]))


@pytest.fixture(scope="module")
def explanation(program):
    return outlay.explain(program, target="h100:1x4")


@pytest.fixture(scope="module")
def browser():
    started = Browser()
    yield started
    started.close()


@pytest.fixture
def opened(browser, explanation, tmp_path):
    def open_page(facts=explanation, **how):
        path = tmp_path / "page.html"
        path.write_text(facts.to_html(), encoding="utf-8")
        browser.open(path.as_uri(), **how)
        return browser

    yield open_page
    assert browser.problems == []


def texts(browser):
    return browser.run("[...document.querySelectorAll('#timeline svg text')].map((text) => text.textContent)")


def shown(browser, name):
    return browser.run(f"document.getElementById('{name}').textContent")


def test_a_loop_is_folded_until_it_is_wide_enough(opened):
    page = opened(width=400)
    folded = "document.querySelectorAll('#timeline .frame').length"
    assert page.run(folded) == 2, "forward and backward"
    assert f"2 of {NUM_LAYERS}" not in texts(page)
    page.run("document.querySelector('[data-do=layer]').click()")
    assert page.run(folded) == 0
    assert f"2 of {NUM_LAYERS}" in texts(page)
    assert " from " in shown(page, "timeline-where")
    page.run("document.querySelector('[data-do=whole]').click()")
    assert shown(page, "timeline-where").startswith("a step of ")


def test_keys_move_and_zoom(opened):
    page = opened(width=1200)
    begins = []
    for key in ("+", "+", "ArrowRight", "-", "Home"):
        page.run(
            f"document.querySelector('#timeline svg').dispatchEvent(new KeyboardEvent('keydown', {{key: '{key}'}}))"
        )
        begins.append(shown(page, "timeline-where"))
    assert len(set(begins)) == len(begins)
    assert " from " in begins[0]
    assert " from " not in begins[-1]


def test_parts_have_their_colours_and_waiting_is_marked(opened, explanation):
    page = opened(width=1200)
    classes = set(page.run("[...document.querySelectorAll('#timeline rect')].map((box) => box.classList[0])"))
    assert {"memory", "communication", "waits"} <= classes
    assert explanation.estimate.parts["communication"] > 0


def test_the_page_prices_the_step_anew(opened, explanation):
    page = opened(width=1200)
    estimate = explanation.estimate
    neutral, span = format_seconds(estimate.seconds), format_range(estimate.seconds_low, estimate.seconds_high)
    assert shown(page, "what-if-step") == f"{neutral}{span}, as compiled"
    assert shown(page, "timeline-where") == f"a step of {neutral}"
    slow = "Object.assign(document.getElementById('what-if-links'), {value: -2}).dispatchEvent(new Event('input'))"
    page.run(slow)
    assert shown(page, "what-if-step").endswith(" %")
    assert span not in shown(page, "what-if-step")
    assert shown(page, "timeline-where") != f"a step of {neutral}"
    assert page.run("document.getElementById('what-if-links').getAttribute('aria-valuetext')").startswith("×0.25: ")
    page.run("document.getElementById('what-if-reset').click()")
    assert shown(page, "what-if-step") == f"{neutral}{span}, as compiled"


def test_it_scales_to_1024_hosts_and_has_a_dot_for_each_line_with_products(opened):
    page = opened(width=1200)
    assert page.run("document.querySelectorAll('#scaling circle.now').length") == 11
    dots = page.run("[...document.querySelectorAll('#roofline circle title')].map((title) => title.textContent)")
    assert dots
    assert all("test_schedule_page.py:" in dot and "FLOP/s" in dot for dot in dots)


def test_simulated_devices_have_no_hosts_to_add(opened, program):
    page = opened(outlay.explain(program, target="cpu:4"))
    sliders = page.run("[...document.querySelectorAll('#sliders input')].map((input) => input.id)")
    assert sliders == ["what-if-links", "what-if-memory", "what-if-clock"]
    assert page.run("document.getElementById('scaling').closest('section').hidden") is True


def test_all_of_it_is_in_the_page_and_has_names(opened, explanation):
    html = explanation.to_html()
    assert len(html) < 500_000
    assert "src=" not in html.replace('src="data:', "")
    assert "href=" not in html.partition("<script")[0]
    page = opened(width=400)
    unnamed = "[...document.querySelectorAll('#sliders input')].filter((input) => !input.labels.length).length"
    assert page.run(unnamed) == 0
    assert page.run("document.querySelector('#timeline svg').getAttribute('aria-label')").startswith("Timeline")


def test_without_a_target_there_is_no_timeline(explanation):
    page = outlay.explain(jax.jit(lambda x: x + 1).lower(jnp.ones(3)).compile().as_text()).to_html()
    assert "pricing" not in page
    assert 'id="timeline"' not in page


def test_text_does_not_make_what_only_the_page_draws(explanation, monkeypatch):
    made = []
    monkeypatch.setattr("outlay.report.explain.explain_schedule.timeline_blocks", lambda step: made.append(step) or ())
    assert "a step would take" in str(explanation)
    assert made == []
    explanation.to_html()
    assert len(made) == 1
