"""What a shell completes: commands, options, recipes, layouts, targets, run folders and files."""

import shutil
import subprocess

import pytest
from tests.unit.cli.command import OUTLAY, command_here, environment

from outlay.recipes.find import LAYOUTS, RECIPES, find_recipe


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "mine.py").touch()
    (tmp_path / "mine.toml").touch()
    (tmp_path / "notes.txt").touch()
    (tmp_path / "runs" / "first").mkdir(parents=True)
    (tmp_path / "runs" / "first" / "outlay.txt").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("outlay ver", {"verify"}),
        ("outlay sl", {"slurm"}),
        ("outlay slurm r", {"run"}),
        ("outlay run d", {"digits"}),
        ("outlay run mine.p", {"mine.py"}),
        ("outlay run digits --layout f", {"fsdp", "fsdp+tp"}),
        ("outlay run lm --layout fsdp+tp+", {"fsdp+tp+sp", "fsdp+tp+cp"}),
        ("outlay run digits --layout mi", {"mine.toml"}),
        ("outlay run digits --mode ", {"auto", "manual", "placed"}),
        ("outlay explain lm --target h100:", {"h100:1x8"}),
        ("outlay explain lm --target tpu-v5e:", {"tpu-v5e:4x4"}),
        ("outlay run digits --run-folder runs/f", {"runs/first", "runs/first/"}),
        ("outlay checkpoint show runs/", {"runs/first", "runs/first/"}),
        ("outlay diff fs", {"fsdp", "fsdp+tp"}),
        ("outlay verify digits --ag", {"--against"}),
        ("outlay completion z", {"zsh"}),
        ("outlay run 'di", {"digits"}),
        ("outlay run nothing_like_it", set()),
        ("outlay launch -n 2 -- pyth", set()),
    ],
)
def test_the_last_word_is_completed_by_where_it_stands(folder, line, words):
    output = command_here("completion", "--line", line, cwd=folder)
    assert output.exit_code == 0, output.output
    assert set(output.stdout.split()) == words


@pytest.mark.some_cases(2)
@pytest.mark.parametrize("recipe", RECIPES)
def test_the_layouts_that_are_completed_are_those_of_the_recipe(recipe):
    assert set(LAYOUTS[recipe]) == set(find_recipe(recipe).layouts)


def test_a_shell_that_there_is_not_is_refused_with_those_there_are(tmp_path):
    output = command_here("completion", "bsh", cwd=tmp_path)
    assert output.exit_code == 2
    assert "did you mean 'bash'" in output.stderr


SHELLS = {
    # What each shell does when Tab is pressed behind the line.
    "bash": 'COMP_LINE="$1"; COMP_POINT=${#1}; _outlay_complete; printf "%s\\n" "${COMPREPLY[@]}"',
    "fish": 'complete --do-complete "$argv[1]"',
}


@pytest.mark.some_cases(2)
@pytest.mark.processes
@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize(
    ("line", "word"), [("outlay veri", "verify"), ("outlay explain lm --target h100:", "1x8")], ids=["word", "colon"]
)
def test_the_script_completes_in_the_shell_itself(shell, line, word, folder):
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    command = folder / "bin" / "outlay"
    command.parent.mkdir()
    command.write_text(f"#!/bin/sh\nexec {OUTLAY[0]} {OUTLAY[1]} '{OUTLAY[2]}' \"$@\"\n")
    command.chmod(0o755)
    script = command_here("completion", shell, cwd=folder).stdout
    given = ["-c", f"{script}\n{SHELLS[shell]}"] + (["shell", line] if shell == "bash" else [line])
    path = f"{command.parent}:/usr/bin:/bin"
    finished = subprocess.run(
        [shell, *given], cwd=folder, env=environment(PATH=path), capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr
    completed = {each.split("\t")[0].rpartition(":")[2] for each in finished.stdout.split()}
    assert word in completed
