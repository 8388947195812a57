"""The page in a real browser: its script draws the table and the picture of the leaf that the address names."""

import html
import os
import re
import shutil
import subprocess
from urllib.parse import quote

import numpy as np
import pytest
from tests.unit.report.arrays import mesh_of, pod, put, shape_on

from outlay.report.show import show

pytestmark = pytest.mark.processes

QUIET = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def browser():
    """Path of Chromium. Without it CI fails; elsewhere the tests are skipped and say what to install."""
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if not executable:
        missing = "no Chromium found: install Debian's package `chromium`"
        pytest.fail(missing) if os.environ.get("CI") else pytest.skip(missing)
    return executable


@pytest.fixture
def dom(browser, tmp_path):
    """The page's document after its script ran, for an address that ends in a fragment."""

    def load(shown, fragment="", frame=False):
        page = tmp_path / "page.html"
        page.write_text(shown._repr_html_() if frame else shown.to_html(), encoding="utf-8")
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        command = [browser, *QUIET, profile, "--dump-dom", f"{page.as_uri()}#{fragment}"]
        return subprocess.run(command, capture_output=True, encoding="utf-8", timeout=280, check=True).stdout

    return load


def rows(document):
    return [html.unescape(path) for path in re.findall(r'<tr class="leaf[^"]*" data-path="([^"]*)"', document)]


def picked(document):
    return html.unescape(re.search(r'data-leaf="([^"]*)"', document).group(1))


def blocks(document):
    """The devices of every drawn block, in reading order."""
    return [tuple(map(int, ids.split())) for ids in re.findall(r'data-devices="([\d ]*)"', document)]


def labels(document):
    return re.findall(r'<span class="label [^"]*">([^<]*)</span>', document)


@pytest.fixture
def state():
    mesh = mesh_of(x=2, y=4)
    return {
        "params": {
            "dense": {"kernel": put((4, 8), mesh, "x", "y"), "bias": put((8,), mesh, "y")},
            "a<b>&": {"w": put((16, 16), mesh)},
        },
        "step": np.int32(3),
    }


def test_the_table_and_the_largest_array_are_drawn(dom, state):
    document = dom(show(state))
    assert rows(document) == ["params.a<b>&.w", "params.dense.bias", "params.dense.kernel", "step"]
    assert picked(document) == "params.a<b>&.w"
    assert blocks(document) == [tuple(range(8))]
    assert 'data-module="params.dense"' in document


def test_the_address_picks_a_leaf(dom, state):
    document = dom(show(state), "leaf=params.dense.kernel")
    assert picked(document) == "params.dense.kernel"
    assert blocks(document) == [(i,) for i in range(8)]
    assert labels(document) == ["", "0:2", "2:4", "4:6", "6:8", "0:2", "2:4"]
    assert re.search(r'data-path="params.dense.kernel" aria-current="true"', document)


def test_the_address_filters(dom, state):
    document = dom(show(state), "filter=dense%20p('y')&leaf=params.dense.bias")
    assert rows(document) == ["params.dense.bias"]
    assert blocks(document) == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert '<span id="count" class="muted" role="status">1 of 4</span>' in document


def test_a_filter_that_finds_nothing_says_so(dom, state):
    assert "No array matches the filter." in dom(show(state), "filter=nowhere-to-be-found")


def test_the_address_sorts(dom, state):
    document = dom(show(state), "sort=bytes%20down")
    assert rows(document) == ["params.a<b>&.w", "params.dense.kernel", "params.dense.bias", "step"]
    assert 'aria-sort="descending"' in document


def test_a_large_tree_opens_folded_but_for_the_leaf_asked_for(dom):
    mesh = pod(data=32, model=8)
    layer = {name: shape_on((512, 512), mesh, "data", "model") for name in "qkvo"}
    tree = {"layers": [layer for _ in range(75)], "embed": shape_on((1024, 512), mesh, "model")}
    path = "layers.40.q"
    document = dom(show(tree), f"leaf={quote(path)}")
    assert picked(document) == path
    assert path in rows(document)
    assert len(rows(document)) < 40
    assert blocks(document) == [(i,) for i in range(256)]


def test_one_array_is_drawn_without_a_table(dom):
    document = dom(show(put((4, 8, 8, 2), mesh_of(a=2, b=2, c=2), "a", "b", "c")))
    assert blocks(document) == [(i,) for i in range(8)]
    assert "[2:4, :, :, :]" in document
    assert 'id="leaves"' not in document


@pytest.mark.parametrize("thing", [{}, np.ones(3)])
def test_pages_without_any_device(dom, thing):
    document = dom(show(thing))
    assert "No arrays." in document or "on the host only" in document


def test_the_frame_of_a_notebook_runs_the_script(dom, state):
    # The frame grows to its page's height only if the script inside it ran to its end.
    document = dom(show(state), frame=True)
    height = re.search(r"<iframe[^>]*height: ?(\d+)px", document).group(1)
    assert height != "720"


def test_layers_that_are_alike_are_one_row(dom):
    mesh = pod(data=32, model=8)
    layer = {name: shape_on((512, 512), mesh, "data", "model") for name in "qkvo"}
    document = dom(show({"layers": [layer for _ in range(75)], "embed": shape_on((1024, 512), mesh, "model")}))
    assert "{0..74} x75" in document
    assert rows(document) == ["embed", "layers.0.k", "layers.0.o", "layers.0.q", "layers.0.v"]
    assert 'data-module="layers.1"' not in document
