"""Every page is executed: those with cells when the site is built, and the Python of others as a script.

The pages that take longest are in the thorough run, and in the site that CI builds of every change.
"""

import html
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import psutil
import pytest
from tests import forks
from tests.docs import snippets

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
# What the page of mistakes shows is refused; a test of its own compares it with what Outlay says.
PAGES = [ROOT / "README.md", *sorted(set(DOCS.rglob("*.md")) - {DOCS / "caught_mistakes.md"})]
WITH_PYTHON = [page for page in PAGES if snippets.blocks(page.read_text(encoding="utf-8"), "python")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of one process that has imported JAX, of which kernels, commands and scripts are forks."""
    folder = forks.write_commands(tmp_path_factory.mktemp("forks"))
    with forks.start(folder, forks.OF_PAGES, env=variables(folder)) as server:
        yield folder
        server.stdin.close()


def variables(folder):
    return {**os.environ, "JUPYTER_PATH": str(folder)}


def script(folder, page):
    command = [*forks.command(folder), snippets.__file__, str(page), "python"]
    return subprocess.run(command, env=variables(folder), capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def site(folder, tmp_path_factory):
    """The folder of the site, built without warnings, in which all but the long pages are executed."""
    return built(folder, tmp_path_factory.mktemp("site"), OUTLAY_LONG_PAGES="off")


def built(folder, site, **changes):
    options = ["--quiet", "--fail-on-warning", "-j", "auto", "-b", "html"]
    command = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(site)]
    environment = variables(folder) | changes
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return site


def text_of(site, page):
    return html.unescape(re.sub(r"<.*?>", "", (site / page).with_suffix(".html").read_text(encoding="utf-8")))


@pytest.mark.timeout(900)
def test_the_site_builds_without_warnings_and_executes_its_pages(site):
    # In a notebook a plan prints as the text that it is: the table stands between the mesh and the totals.
    plan = r"mesh data=4, model=2 \(8 simulated devices\)\npath +shape +local"
    assert re.search(plan, text_of(site, "tutorials/getting_started"))
    # The gallery is made by a command of its own, and a link goes only to what is there.
    assert ("Open the gallery" in text_of(site, "concepts/gallery")) == (DOCS / "_gallery").is_dir()


@pytest.mark.thorough
@pytest.mark.timeout(900)
def test_the_long_pages_are_executed_too(folder, tmp_path):
    whole = built(folder, tmp_path / "site")
    assert re.search(r"peak [\d.]+ of [\d.]+ GiB, fits: (True|False)", text_of(whole, "guides/will_it_fit"))
    for page in ("closed_loop", "write_your_own_module"):
        assert_shows_its_pictures(whole, page)


@pytest.mark.timeout(900)
def test_the_long_pages_show_no_output_where_they_are_not_executed(site):
    names = re.findall(r'^    "(\w+/\w+)\.\w+",$', (DOCS / "conf.py").read_text(encoding="utf-8"), re.MULTILINE)
    assert "guides/will_it_fit" in names
    for name in names:
        assert "cell_output" not in (site / name).with_suffix(".html").read_text(encoding="utf-8"), name


@pytest.mark.timeout(900)
def test_a_page_shows_its_pictures(site):
    assert_shows_its_pictures(site, "a_brain_from_a_file")


def assert_shows_its_pictures(site, page):
    text = (site / "tutorials" / page).with_suffix(".html").read_text(encoding="utf-8")
    assert re.search(r'<img alt="[^"]*"[^>]*src="[^"]*_images/', text)
    assert "&lt;matplotlib." not in text


@pytest.mark.timeout(900)
def test_the_three_ways_side_by_side(site):
    page = text_of(site, "tutorials/three_ways")
    rows = re.findall(r"^(\S.*?) +\[(.*)\]  (\{.*\})  time [\d.]+$", page, re.MULTILINE)
    rows_by_name = {name: (np.array(values.split(), float), collectives) for name, values, collectives in rows}
    assert list(rows_by_name) == ["plain", "automatic", "with constraints", "by hand", "by hand, one device"]
    for name, (values, collectives) in rows_by_name.items():
        np.testing.assert_allclose(values, [0.02138916, 0.8931118, 0.5989196, 0.9774251], rtol=1e-5)
        assert collectives == ("{}" if name == "plain" else "{'all-reduce': 1}")


@pytest.mark.timeout(900)
def test_sharding_over_two_dims_holds_and_moves_fewer_bytes(site):
    rows = re.findall(r"^(data=\d,model=\d) .* ([\d,]+)$", text_of(site, "guides/choose_a_mesh"), re.MULTILINE)
    sizes = ["data=8,model=1", "data=4,model=2", "data=2,model=4", "data=1,model=8"]
    assert [name for name, _ in rows] == 2 * sizes
    for table in rows[:4], rows[4:]:
        num_bytes = {name: int(text.replace(",", "")) for name, text in table}
        one_axis = [num_bytes["data=8,model=1"], num_bytes["data=1,model=8"]]
        assert num_bytes["data=4,model=2"] < min(one_axis)


@pytest.mark.parametrize("tutorial", TUTORIALS, ids=[tutorial.stem for tutorial in TUTORIALS])
def test_a_tutorial_is_plain_python_and_listed_for_the_reader(tutorial):
    compile(tutorial.read_text(encoding="utf-8"), tutorial, "exec")
    index = (DOCS / "index.md").read_text(encoding="utf-8")
    assert f"\ntutorials/{tutorial.stem}\n" in index
    assert f"(tutorials/{tutorial.name})" in index


@pytest.mark.parametrize("page", WITH_PYTHON, ids=[page.relative_to(ROOT).as_posix() for page in WITH_PYTHON])
def test_the_python_of_a_page_runs(page, folder):
    done = script(folder, page)
    assert done.returncode == 0, done.stderr
    texts = [body for _, body in snippets.blocks(page.read_text(encoding="utf-8"), "text")]
    plans = [text for text in texts if text.startswith("mesh ")]
    assert len(plans) == (page.name == "README.md")
    assert all(plan.strip() in done.stdout for plan in plans)


def test_the_readme_shows_what_outlay_says_to_a_wrong_rule(folder, tmp_path):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (shown,) = (body for _, body in snippets.blocks(readme, "text") if body.startswith("LayoutError"))
    wrong = tmp_path / "wrong.md"
    wrong.write_text(readme.replace('[("up", P(', '[("upp", P('), encoding="utf-8")
    assert shown.strip() in script(folder, wrong).stderr


def test_there_are_pages_with_python():
    assert {page.name for page in WITH_PYTHON} >= {"README.md", "the_line.md"}


def test_a_failing_snippet_fails_at_its_line_of_the_page(folder, tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Page\n\n```python\nx = 1\n```\n\nWords.\n\n```python\nassert x == 2\n```\n", encoding="utf-8")
    done = script(folder, page)
    assert done.returncode != 0
    assert f'{page}", line 10' in done.stderr


@pytest.mark.parametrize(
    ("arguments", "changes"),
    [
        (["show", "digits", "--target", "tpu-v5e:2x4"], {}),  # the compiler looks for a TPU if what JAX set is lost
        (["show", "digitz"], {"JAX_ENABLE_X64": "1"}),  # is read at import, so it is no fork
    ],
    ids=["in a fork", "with what JAX reads at import"],
)
def test_a_command_does_what_it_does_as_a_process(arguments, changes, folder, tmp_path):
    done, expected = (
        subprocess.run(
            [program, *arguments],
            env=variables(folder) | changes,
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        for program in (folder / "outlay", Path(sys.executable).with_name("outlay"))
    )
    assert (done.returncode, done.stdout, done.stderr) == (expected.returncode, expected.stdout, expected.stderr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_fork_ends_when_who_waits_for_it_is_ended(number, folder, tmp_path):
    program = tmp_path / "sleep.py"
    program.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(100)\n", encoding="utf-8")
    with subprocess.Popen(
        [*forks.command(folder), str(program)], env=variables(folder), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as caller:
        fork = psutil.Process(int(caller.stdout.readline()))
        caller.send_signal(number)
        assert caller.wait(timeout=280) == -number
        fork.wait(timeout=280)
