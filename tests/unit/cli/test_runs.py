"""`outlay runs`: what is listed, compared and written, from folders that may have come from anywhere."""

import json

import pytest
from tests.chromium import Browser
from tests.unit.cli.command import command_here
from tests.unit.train.run_folders import folder_of_run


@pytest.fixture
def folder(tmp_path):
    folder_of_run(tmp_path / "runs/first")
    folder_of_run(tmp_path / "runs/sweep/lr=2", steps=4, end="", layout="dp", seed=4)
    return tmp_path


def rows(text):
    return [line.split() for line in text.splitlines() if line.startswith("runs/")]


def test_runs_are_listed_with_their_state_and_what_differs(folder):
    listed = command_here("runs", cwd=folder)
    assert listed.exit_code == 0, listed.stderr
    assert rows(listed.stdout)[:2] == [
        ["runs/first", "finished", "6/6", "0.3333", "0.8333", "32", "samples/s", "60.0%", "fsdp"],
        ["runs/sweep/lr=2", "killed", "4/6", "0.5", "1.167", "32", "samples/s", "53.3%", "dp"],
    ]
    assert rows(listed.stdout)[2:] == [["runs/first", "fsdp", "3"], ["runs/sweep/lr=2", "dp", "4"]]
    assert "speeds of simulated devices are none" in listed.stdout


def test_as_json(folder):
    first, second = json.loads(command_here("runs", "--json", cwd=folder).stdout)["runs"]
    assert first["metrics"] == {"loss": pytest.approx(1 / 3), "evaluate.loss": pytest.approx(5 / 6)}
    assert (second["run"], second["state"], second["config"]["seed"]) == ("runs/sweep/lr=2", "killed", 4)


def test_some_runs_by_name_each_once(folder):
    listed = command_here("runs", "runs/sweep", "runs/sweep/lr=2", cwd=folder)
    assert listed.stdout.startswith("1 run\n")


def test_a_folder_without_runs(tmp_path):
    missing = command_here("runs", cwd=tmp_path)
    assert missing.exit_code == 2
    assert "there is no folder runs" in missing.stderr
    empty = command_here("runs", ".", cwd=tmp_path)
    assert (empty.exit_code, empty.stdout.splitlines()[0]) == (0, "0 runs")


@pytest.mark.processes
def test_one_page_compares_runs(folder):
    folder_of_run(folder / "runs/<b>", loss=lambda step: 3.0)
    written = command_here("runs", "--html", "compared.html", cwd=folder)
    assert written.exit_code == 0, written.stderr
    browser = Browser()
    try:
        for width in (400, 1200):
            browser.open((folder / "compared.html").as_uri(), width=width)
            assert browser.run("document.scrollingElement.scrollWidth") <= width
        loss = "document.querySelector('figure[data-chart=loss]')"
        assert browser.run(f"{loss}.querySelectorAll('path.line').length") == 3
        names = browser.run(f"[...{loss}.querySelectorAll('.keys button')].map((key) => key.innerText)")
        assert sorted(names) == ["runs/<b>", "runs/first", "runs/sweep/lr=2"]
        browser.run(f"{loss}.querySelector('.keys button').click()")
        assert browser.run(f"{loss}.querySelectorAll('path.line').length") == 2
        assert browser.problems == []
    finally:
        browser.close()
