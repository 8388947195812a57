import subprocess
import sys
from pathlib import Path

import pytest
from tests.docs import snippets

ROOT = Path(__file__).parents[2]
# What the page of mistakes shows is refused; a test of its own compares it with what Outlay says.
PAGES = [ROOT / "README.md", *sorted(set((ROOT / "docs").rglob("*.md")) - {ROOT / "docs" / "caught_mistakes.md"})]
WITH_PYTHON = [page for page in PAGES if snippets.blocks(page.read_text(encoding="utf-8"), "python")]


@pytest.mark.parametrize("page", WITH_PYTHON, ids=[page.relative_to(ROOT).as_posix() for page in WITH_PYTHON])
def test_the_python_of_a_page_runs(page):
    done = run(page, "python")
    assert done.returncode == 0, done.stderr
    texts = [body for _, body in snippets.blocks(page.read_text(encoding="utf-8"), "text")]
    plans = [text for text in texts if text.startswith("mesh ")]
    assert len(plans) == (page.name == "README.md")
    assert all(plan.strip() in done.stdout for plan in plans)


def test_the_readme_shows_what_outlay_says_to_a_wrong_rule(tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = (body for _, body in snippets.blocks(readme, "text") if body.startswith("LayoutError"))
    wrong = tmp_path / "wrong.md"
    wrong.write_text(readme.replace('[("up", P(', '[("upp", P('), encoding="utf-8")
    assert shown.strip() in run(wrong, "python").stderr


def test_there_are_pages_with_python():
    assert {page.name for page in WITH_PYTHON} >= {"README.md", "the_line.md"}


def test_a_failing_snippet_fails_at_its_line_of_the_page(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\nWords.\n\n```python\nassert x == 2\n```\n", encoding="utf-8")
    done = run(page, "python")
    assert done.returncode != 0
    assert f'{page}", line 10' in done.stderr


def test_s2_07_sharding_over_two_dims_holds_and_moves_fewer_bytes():
    done = run(ROOT / "docs/guides/choose_a_mesh.md", "{code-cell}")
    assert done.returncode == 0, done.stderr
    held, moved = (
        {row.split()[0]: int(row.split()[-1].replace(",", "")) for row in table.splitlines()[1:5]}
        for table in done.stdout.split("mesh  ")[1:]
    )
    assert list(held) == list(moved) == ["data=8,model=1", "data=4,model=2", "data=2,model=4", "data=1,model=8"]
    for bytes_by_mesh in (held, moved):
        one_axis = [bytes_by_mesh["data=8,model=1"], bytes_by_mesh["data=1,model=8"]]
        assert bytes_by_mesh["data=4,model=2"] < min(one_axis)


def run(page, language):
    command = [sys.executable, snippets.__file__, str(page), language]
    return subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
