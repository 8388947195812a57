import html
import json
import re

import numpy as np
from tests.unit.report.arrays import mesh_of, put

from outlay.report.show import show

NASTY = "</script><script>alert(1)</script>&<img src=x onerror=alert(1)>"


def embedded_facts(page):
    return json.loads(re.search(r'<script type="application/json" id="facts">(.*?)</script>', page, re.DOTALL).group(1))


def test_nothing_is_loaded_from_elsewhere():
    page = show({"a": put((8,), mesh_of(x=8), "x"), "b": np.ones(2)}).to_html()
    assert not re.findall(r"https?://|//[a-z]|@import|url\(|<link|<img", page.replace("// ", ""))
    assert page.count("<script") == 2


def test_paths_stay_text():
    page = show({NASTY: {"w": put((8,), mesh_of(x=8), "x")}, "b": np.ones(2)}).to_html()
    assert "<script>alert" not in page
    assert "<img src=x" not in page
    facts = embedded_facts(page)
    assert any("</script>" in leaf["path"] for leaf in facts["leaves"])


def test_the_page_says_that_devices_are_simulated():
    assert "simulated devices</span>" in show(put((8,), mesh_of(x=8), "x")).to_html()


def test_leaves_of_one_shape_and_place_share_their_picture():
    mesh = mesh_of(x=8)
    facts = embedded_facts(show({f"w{i}": put((8,), mesh, "x") for i in range(20)}).to_html())
    assert len(facts["pictures"]) == 1
    assert facts["pictures"][0]["panels"][0]["cells"][0][3] == {"devices": [3], "text": "3"}


def test_notebooks_get_the_page_in_a_frame():
    shown = show({"a": put((8,), mesh_of(x=8), "x")})
    frame = shown._repr_html_()
    assert frame.startswith("<iframe")
    inside = re.search(r'srcdoc="([^"]*)"', frame).group(1)
    assert html.unescape(inside) == shown.to_html()
