"""The page of targets is true: its targets parse, its list is what is built in, and its file is one."""

import re
from pathlib import Path

import pytest
from tests.docs import snippets

from outlay.devices.hardware import known_hardware
from outlay.devices.hardware_file import _KEYS
from outlay.devices.target import Target

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "targets.md").read_text(encoding="utf-8")


def names_in(column, start, end):
    rows = [
        line.split("|")[column] for line in PAGE[PAGE.index(start) : PAGE.index(end)].splitlines() if line[:3] == "| `"
    ]
    return re.findall(r"`([^`]+)`", "".join(rows))


@pytest.fixture(autouse=True)
def file_of_the_page(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTLAY_TARGETS", str(tmp_path / "targets.toml"))
    (tmp_path / "targets.toml").touch()
    return tmp_path / "targets.toml"


def test_the_targets_of_the_page_are_targets():
    texts = names_in(1, "| target |", "| built in |")
    assert len(texts) == 5
    assert [str(Target.parse(text)) for text in texts] == texts


def test_the_page_lists_what_is_built_in():
    assert names_in(1, "| built in |", "## The compilers") == [*known_hardware()]


def test_the_page_lists_every_key():
    assert sorted(names_in(1, "| key | of |", "A file that says")) == sorted(_KEYS)


def test_the_file_of_the_page_can_be_used(file_of_the_page):
    ((_, body),) = snippets.blocks(PAGE, "toml")
    file_of_the_page.write_text(body, encoding="utf-8")
    known = known_hardware()
    assert known["h100"].scale_out_bandwidth == 25e9
    assert known["h100-500w"].clock_share ** 3 == pytest.approx(500 / 700)
    assert Target.parse("h100-96gb:1x8").hardware.memory_bandwidth == 2.4e12
