"""Every page is executed: those with cells when the site is built, and the Python of others as a script.

CI builds the site of every change beside `make test`, so here that is for the thorough run, and so are most scripts.
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
from tests.unit.cli.command import environment

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIALS = sorted((DOCS / "tutorials").glob("*.py"))
# What the page of mistakes shows is refused; a test of its own compares it with what Outlay says.
PAGES = [ROOT / "README.md", *sorted(set(DOCS.rglob("*.md")) - {DOCS / "caught_mistakes.md"})]
READ_FIRST = {"README.md", "the_line.md", "placed.md", "from_plain_jax.md"}
"""Pages whose Python is executed with every change; those of others in the thorough run."""
WITH_PYTHON = [page for page in PAGES if snippets.blocks(page.read_text(encoding="utf-8"), "python")]


@pytest.fixture(scope="module")
def folder():
    """The folder of the process that has imported JAX, of which commands and scripts are forks."""
    return Path(forks.python()).parent


def script(folder, page):
    command = [*forks.command(folder), snippets.__file__, str(page), "python"]
    return subprocess.run(command, env=environment(), capture_output=True, text=True, timeout=280, check=False)


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The folder of the site, built without warnings; kernels are forks as well."""
    folder, site = forks.write_commands(tmp_path_factory.mktemp("forks")), tmp_path_factory.mktemp("site")
    variables = {**os.environ, "JUPYTER_PATH": str(folder)}
    options = ["--quiet", "--fail-on-warning", "-j", "auto", "-b", "html"]
    command = [sys.executable, "-m", "sphinx", *options, str(DOCS), str(site)]
    with forks.start(folder, forks.OF_PAGES, env=variables) as server:
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=880, check=False)
        server.stdin.close()
    assert done.returncode == 0, done.stdout + done.stderr
    return site


def of_the_site(test):
    return pytest.mark.thorough(pytest.mark.timeout(900)(test))


def text_of(site, page):
    return html.unescape(re.sub(r"<.*?>", "", (site / page).with_suffix(".html").read_text(encoding="utf-8")))


@of_the_site
def test_the_site_builds_without_warnings_and_executes_its_pages(site):
    # In a notebook a plan prints as the text that it is: the table stands between the mesh and the totals.
    plan = r"mesh data=4, model=2 \(8 simulated devices\)\npath +shape +local"
    assert re.search(plan, text_of(site, "tutorials/getting_started"))
    # The gallery is made by a command of its own, and a link goes only to what is there.
    assert ("Open the gallery" in text_of(site, "concepts/gallery")) == (DOCS / "_gallery").is_dir()


@of_the_site
def test_what_will_it_fit_says_is_computed(site):
    assert re.search(r"peak [\d.]+ of [\d.]+ GiB, fits: (True|False)", text_of(site, "guides/will_it_fit"))


@of_the_site
@pytest.mark.parametrize("page", ["a_brain_from_a_file", "closed_loop", "write_your_own_module"])
def test_a_page_shows_its_pictures(site, page):
    text = (site / "tutorials" / page).with_suffix(".html").read_text(encoding="utf-8")
    assert re.search(r'<img alt="[^"]*"[^>]*src="[^"]*_images/', text)
    assert "&lt;matplotlib." not in text


@of_the_site
def test_the_three_ways_side_by_side(site):
    page = text_of(site, "tutorials/three_ways")
    rows = re.findall(r"^(\S.*?) +\[(.*)\]  (\{.*\})  time [\d.]+$", page, re.MULTILINE)
    rows_by_name = {name: (np.array(values.split(), float), collectives) for name, values, collectives in rows}
    assert list(rows_by_name) == ["plain", "automatic", "with constraints", "by hand", "by hand, one device"]
    for name, (values, collectives) in rows_by_name.items():
        np.testing.assert_allclose(values, [0.02138916, 0.8931118, 0.5989196, 0.9774251], rtol=1e-5)
        assert collectives == ("{}" if name == "plain" else "{'all-reduce': 1}")


@of_the_site
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


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(
            page,
            id=page.relative_to(ROOT).as_posix(),
            marks=[] if page.name in READ_FIRST else pytest.mark.thorough,
        )
        for page in WITH_PYTHON
    ],
)
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
    assert {page.name for page in WITH_PYTHON} >= READ_FIRST


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
    outlay = str(Path(sys.executable).with_name("outlay"))
    done, expected = (
        subprocess.run(
            [*program, *arguments],
            env=environment(**changes),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        for program in ([*forks.command(folder), outlay], [outlay])
    )
    assert (done.returncode, done.stdout, done.stderr) == (expected.returncode, expected.stdout, expected.stderr)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_a_fork_ends_when_who_waits_for_it_is_ended(number, folder, tmp_path):
    program = tmp_path / "sleep.py"
    program.write_text("import os, time\nprint(os.getpid(), flush=True)\ntime.sleep(100)\n", encoding="utf-8")
    with subprocess.Popen(
        [*forks.command(folder), str(program)], env=environment(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as caller:
        fork = psutil.Process(int(caller.stdout.readline()))
        caller.send_signal(number)
        assert caller.wait(timeout=280) == -number
        fork.wait(timeout=280)
