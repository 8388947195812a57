"""`outlay explain` as a user meets it: what it prints, and its exit codes."""

import gzip
import json

import pytest
from tests.unit.cli.command import LINE, ROOT, command_here, outlay_command
from tests.unit.search.pretend import compiled, price, screened

from outlay.search.selection import Selection

SAVED = f"{ROOT}/tests/golden/hlo/gpu-0.12.0.1-fsdp.hlo.gz"
LAID_OUT = (LINE, "--devices", "4", "--layout", "fsdp")
ON_EIGHT = (LINE, "--devices", "8", "--layout", "fsdp")  # those of this process


@pytest.fixture
def saved(tmp_path):
    path = tmp_path / "step.hlo"
    with gzip.open(SAVED) as packed:
        path.write_bytes(packed.read())
    return path.name


@pytest.mark.processes
def test_a_recipe_is_compiled_and_not_run(tmp_path):
    done = outlay_command("explain", *LAID_OUT, "--html", "step.html", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("step on mesh data=4 (4 simulated devices), target cpu:4")
    assert "collectives: " in done.stdout
    assert "gradient of params.w" in done.stdout
    assert "small.py:12" in done.stdout
    assert "memory of a device" in done.stdout
    assert (tmp_path / "step.html").read_text().startswith("<!doctype html>")
    assert done.stderr == "wrote step.html: open it in a browser\n"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step.html"]


def test_fix_follows_the_findings(tmp_path, saved):
    done = command_here("explain", *ON_EIGHT, "--fix", "--json", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    fixed = json.loads(done.stdout)["fix"]
    assert fixed["before"]["bytes a step"] >= fixed["after"]["bytes a step"]
    assert command_here("explain", saved, "--fix", cwd=tmp_path).exit_code == 2


def test_broken_limits_end_with_1_and_are_named(tmp_path):
    done = command_here(
        *("explain", *ON_EIGHT, "--json", "--max-bytes", "100", "--max-memory", "1kB"),
        *("--forbid", "all-reduce", "--forbid", "all-to-all"),
        cwd=tmp_path,
    )
    assert done.exit_code == 1, done.stderr
    facts = json.loads(done.stdout)
    assert facts["by_kind"]["all-reduce"]["bytes_per_step"] == facts["bytes_per_step"]
    broken = done.stderr.splitlines()
    assert len(broken) == 3
    assert all(line.startswith("over budget: ") for line in broken)
    assert "limit 100 B" in broken[0]
    assert "limit 1000 B" in broken[1]
    assert "all-reduce is forbidden, but runs once: gradient of params.w at " in broken[2]


def test_kept_limits_end_with_0(tmp_path):
    done = command_here(
        *("explain", *ON_EIGHT, "--max-bytes", "1GiB", "--max-memory", "1GiB", "--forbid", "collective-permute"),
        cwd=tmp_path,
    )
    assert (done.exit_code, done.stderr) == (0, "")


def test_a_saved_program(saved, tmp_path):
    done = command_here("explain", saved, "--mesh", "data=4,model=2", "--target", "h100:1x8", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "reduce-scatter  data" in done.stdout
    assert "note: the text has no memory figures" in done.stdout
    broken = command_here("explain", saved, "--forbid", "reduce-scatter", cwd=tmp_path)
    assert broken.exit_code == 1
    assert broken.stderr.startswith("over budget: reduce-scatter is forbidden")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("step.hlo",), "step.hlo cannot be read: No such file"),
        ((LINE, "--devices", "8", "--max-bytes", "lots"), "'lots' is not a size"),
        ((LINE, "--devices", "8", "--forbid", "gather"), "no kind of collective 'gather': did you mean 'all-gather'"),
        ((LINE, "--devices", "8", "--layout", "fdsp"), "did you mean 'fsdp'"),
        ((LINE, "--devices", "8", "--max-memroy", "1GB"), "no option --max-memroy: did you mean '--max-memory'"),
        (("digits", "--target", "h1000:1x8"), "did you mean 'h100'"),
    ],
)
def test_wrong_use(arguments, message, tmp_path):
    done = command_here("explain", *arguments, cwd=tmp_path)
    assert done.exit_code == 2, done.stdout
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_saved_program_has_no_recipes_options(saved, tmp_path):
    done = command_here("explain", saved, "--layout", "fsdp", cwd=tmp_path)
    assert done.exit_code == 2
    assert "is already compiled: --layout is for recipes only" in done.stderr


def test_a_program_stands_on_the_front_of_a_choice_about_it(saved, tmp_path):
    selection = Selection(LINE, (), "cpu:8", (compiled(screened("dp"), price(1, peak=3)),), None, 3.0)
    (tmp_path / "choice.json").write_text(json.dumps(selection.to_dict()))
    done = command_here("explain", *ON_EIGHT, "--front", "choice.json", cwd=tmp_path)
    assert done.exit_code == 0, done.stderr
    assert "you are on the front, " in done.stdout
    other = command_here("explain", LINE, "--devices", "4", "--front", "choice.json", cwd=tmp_path)
    assert "--target is cpu:8 there, and cpu:4 here" in other.stderr
    text = command_here("explain", saved, "--front", "choice.json", cwd=tmp_path)
    assert "is already compiled: choices are of recipes" in text.stderr


def test_what_does_not_fit_ends_with_commands_that_should(tmp_path, monkeypatch):
    (tmp_path / "targets.toml").write_text("[cpu]\nmemory_bytes = 72000\n")
    monkeypatch.setenv("OUTLAY_TARGETS", "targets.toml")
    recipe = f"{ROOT}/tests/unit/recipes/varied.py:varied"
    asked = ("explain", recipe, "--target", "cpu:8", "--layout", "dp")
    done = command_here(*asked, cwd=tmp_path)
    assert "does not fit: peak " in done.stdout, done.stderr
    head, way, last = done.stderr.splitlines()
    assert head == "what should fit, by arithmetic:"
    assert way.endswith(f": outlay explain {recipe} --target cpu:8 --layout fsdp --mesh data=8")
    assert last == f"what fits and is fastest, compiled: outlay choose {recipe} --target cpu:8"


def test_a_second_call_neither_compiles_nor_looks_for_ways_again_unless_asked_to(tmp_path, monkeypatch):
    (tmp_path / "targets.toml").write_text("[cpu]\nmemory_bytes = 72000\n")
    monkeypatch.setenv("OUTLAY_TARGETS", str(tmp_path / "targets.toml"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    asked = ("explain", f"{ROOT}/tests/unit/recipes/varied.py:varied", "--target", "cpu:8", "--layout", "dp", "--json")
    first = json.loads(command_here(*asked, cwd=tmp_path).stdout)
    entries = sorted((tmp_path / "cache" / "outlay" / "compiled").iterdir())
    assert len(entries) == 2
    with monkeypatch.context() as patch:
        patch.setattr("outlay.recipes.ways_to_fit.Changes.that_fit", lambda changes: pytest.fail("looked for again"))
        second = json.loads(command_here(*asked, cwd=tmp_path).stdout)
    assert (first["from_cache"], second["from_cache"]) == (False, True)
    assert first["ways_to_fit"] == second["ways_to_fit"] != []
    anew = json.loads(command_here(*asked, "--no-cache", cwd=tmp_path).stdout)
    assert not anew["from_cache"]
    assert anew["ways_to_fit"] == first["ways_to_fit"]
    assert sorted((tmp_path / "cache" / "outlay" / "compiled").iterdir()) == entries
