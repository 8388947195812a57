"""Batch scripts, as text and as bash runs them.

To write the golden scripts anew: `OUTLAY_UPDATE_GOLDEN=1 pytest tests/unit/slurm/test_slurm_script.py`, then read the
diff.
"""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from outlay.core.error_types import LaunchError
from outlay.slurm.slurm_preset import SHAPES, combined
from outlay.slurm.slurm_script import Script, render, site_template, submit

GOLDEN = Path(__file__).parents[2] / "golden/slurm"
REQUEUE = Script("digits", ("--checkpoint-every", "50"), requeue=True)
SCRIPTS = {
    "one_task_four_gpus": Script("digits", gpus_per_node=4, partition="v100", cpus_per_task=40),
    "two_nodes_eight_tasks": Script(
        "digits", ("--layout", "fsdp"), nodes=2, gpus_per_node=4, tasks_per_node=4, cpus_per_task=10, time="20:00:00"
    ),
    "everything": Script(
        "my models/lm.py:tiny",
        ("--steps", "1000", "--checkpoint-every=100", "--note", "it's $5"),
        nodes=4,
        gpus_per_node=8,
        tasks_per_node=4,
        cpus_per_task=16,
        partition="a100",
        time="1-12:00:00",
        account="abc@a100",
        constraint="a100&ib",
        qos="long",
        modules=("cuda/12.8", "nccl/2.27"),
        env={"DATA": "/data/my set", "XLA_FLAGS": "--a=1 --b='2'"},
        requeue=True,
    ),
    "cpus": Script("digits", nodes=3, tasks_per_node=2, cpus_per_task=8),
}


@pytest.fixture(autouse=True)
def no_site_template(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))


@pytest.mark.processes
@pytest.mark.parametrize("name", SCRIPTS)
def test_golden(name):
    text, golden = render(SCRIPTS[name]), GOLDEN / f"{name}.sh"
    if os.environ.get("OUTLAY_UPDATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")
    subprocess.run(["bash", "-n"], input=text, text=True, check=True)


def test_every_golden_script_has_its_test():
    assert {file.stem for file in GOLDEN.iterdir()} == set(SCRIPTS)


@pytest.mark.parametrize("name", SCRIPTS)
def test_directives_come_before_every_command(name):
    """What stands behind a command, `sbatch` ignores without a word."""
    lines = render(SCRIPTS[name]).splitlines()
    first = next(n for n, line in enumerate(lines) if line and not line.startswith("#"))
    assert len([line for line in lines[:first] if line.startswith("#SBATCH --")]) >= 5
    assert not [line for line in lines[first:] if line.startswith("#SBATCH")]


def with_commands(folder, **commands):
    """The environment in which these are found first."""
    for name, body in commands.items():
        (folder / name).write_text(f"#!/bin/bash\n{body}\n")
        (folder / name).chmod(0o755)
    return os.environ | {"PATH": f"{folder}:{os.environ['PATH']}", "SLURM_JOB_ID": "77"}


@pytest.mark.processes
def test_srun_gets_the_words_and_the_environment_as_they_were_given(tmp_path):
    script = SCRIPTS["everything"]
    commands = {"srun": 'printf "%s\\n" "$@" "$DATA" "$XLA_FLAGS" "$SRUN_CPUS_PER_TASK"', "module": 'echo "module $@"'}
    done = subprocess.run(
        ["bash"],
        input=render(script),
        env=with_commands(tmp_path, **commands),
        capture_output=True,
        text=True,
        check=True,
    )
    words = ["outlay", "run", script.recipe, *script.arguments, "--resume"]
    assert done.stdout.splitlines() == [
        "module purge", "module load cuda/12.8", "module load nccl/2.27", "--label", "--kill-on-bad-exit=1",
        *words, *script.env.values(), "16",
    ]  # fmt: skip


@pytest.mark.processes
@pytest.mark.parametrize("requeue", [False, True])
def test_the_job_fails_as_srun_fails(tmp_path, requeue):
    script = render(Script("digits", ("--checkpoint-every=1",), requeue=requeue))
    assert (
        subprocess.run(["bash"], input=script, env=with_commands(tmp_path, srun="exit 13"), text=True).returncode == 13
    )


@pytest.mark.processes
def test_a_module_that_is_not_there_ends_the_job(tmp_path):
    env = with_commands(tmp_path, srun="echo started", module='[ "$1" = purge ]')
    done = subprocess.run(
        ["bash"], input=render(Script("digits", modules=["cuda"])), env=env, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (1, "")


@pytest.mark.processes
@pytest.mark.parametrize(("code", "text"), [(75, "requeue 77\n"), (0, ""), (13, ""), (143, "")])
def test_a_run_that_was_stopped_and_saved_goes_back_into_the_queue(tmp_path, code, text):
    env = with_commands(tmp_path, srun=f"exit {code}", scontrol='echo "$@"')
    done = subprocess.run(["bash"], input=render(REQUEUE), env=env, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (code, text)


def test_processes_are_told_before_the_time_limit_where_they_save():
    directive = "#SBATCH --signal=USR1@120\n"
    assert directive in render(REQUEUE)
    assert directive in render(Script("digits", ("--checkpoint-every", "5")))
    assert directive not in render(Script("digits"))


def test_a_run_that_says_resume_says_it_once():
    script = Script("digits", ("--resume", "--checkpoint-every=5"), requeue=True)
    assert shlex.split(script.command).count("--resume") == 1
    assert "--resume" not in Script("digits").command


@pytest.mark.parametrize(
    ("recipe", "name"), [("digits", "digits"), ("a b/x.py:tiny", "tiny"), ("x.py:f\n#SBATCH", "f--SBATCH")]
)
def test_the_name_of_the_job(recipe, name):
    assert Script(recipe).job_name == name


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"nodes": 0}, "--nodes 0: the least is 1"),
        ({"gpus_per_node": -1}, "--gpus-per-node -1: the least is 0"),
        ({"cpus_per_task": 0}, "--cpus-per-task 0: the least is 1"),
        ({"gpus_per_node": 4, "tasks_per_node": 3}, r"4 GPUs .* among 3 tasks\n    fix: --tasks-per-node 1 or 2 or 4"),
        ({"gpus_per_node": 4, "tasks_per_node": 8}, "among 8 tasks"),
        ({"gpus_per_node": 4, "tasks_per_node": 0}, "--tasks-per-node 0: the least is 1$"),
        ({"partition": "a b"}, "--partition 'a b': it must be one word"),
        ({"account": "x\n#SBATCH --nodes=9"}, "--account .*: it must be one word"),
        ({"qos": ""}, "--qos '': it must be one word"),
        ({"time": "2h"}, "--time '2h' is not a time\n    fix: minutes, HH:MM:SS"),
        ({"modules": ["cuda nccl"]}, "--module 'cuda nccl': it must be one word; give --module once for each module"),
        ({"env": {"A-B": "1"}}, "--env 'A-B': a variable's name may only have letters"),
        ({"requeue": True}, "this run saves none\n    fix: --checkpoint-every 100"),
        ({"requeue": True, "arguments": ["--checkpoint-every=5", "--force"]}, "--requeue with --force"),
        ({"nodes": 0, "time": "soon"}, r"(?s)--nodes 0.*--time 'soon'"),
    ],
)
def test_impossible_jobs_are_refused(values, says):
    with pytest.raises(LaunchError, match=says):
        Script("digits", **values)


@pytest.mark.parametrize("text", ["90", "90:30", "20:00:00", "2-0", "1-12:30", "1-12:30:00"])
def test_times_as_slurm_writes_them(text):
    assert f"#SBATCH --time={text}\n" in render(Script("digits", time=text))


def test_presets_are_of_the_shapes_that_are_met_most():
    one, two = SHAPES["one-task"], SHAPES["two-nodes"]
    assert (one.nodes, one.tasks_per_node, one.gpus_per_node) == (1, 1, 4)
    assert (two.nodes, two.tasks_per_node, two.gpus_per_node) == (2, None, 4)
    assert combined(["two-nodes", "one-task"]).nodes == 1
    with pytest.raises(LaunchError, match="there is no preset 'two-node': did you mean 'two-nodes'"):
        combined(["two-node"])


def test_a_site_template_may_replace_one_block_of_ours(tmp_path):
    site = tmp_path / "config/outlay/slurm.sh.j2"
    site.parent.mkdir(parents=True)
    site.write_text('{% extends "slurm.sh.j2" %}\n{% block setup %}\nsource /site/{{ job_name }}.sh\n{% endblock %}\n')
    assert site_template(os.environ) == site
    text = render(Script("digits", nodes=2))
    assert "#SBATCH --nodes=2\n" in text
    assert "source /site/digits.sh\n" in text
    assert "PYTHONUNBUFFERED" not in text
    other = tmp_path / "other.j2"
    other.write_text("srun {{ command }}\n")
    assert render(Script("digits"), other) == "srun outlay run digits\n"


def test_without_xdg_the_site_template_is_in_the_home_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    assert site_template({}) is None
    (tmp_path / ".config/outlay").mkdir(parents=True)
    (tmp_path / ".config/outlay/slurm.sh.j2").write_text("")
    assert site_template({}) == tmp_path / ".config/outlay/slurm.sh.j2"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "{{ nodes }}\n{{ nodez }} {% if queue %}{% endif %}",
            r"(?s)^the template uses variables.*"
            r"own.j2:2: 'nodez'; did you mean 'nodes'\?.*own.j2:2: 'queue'; .*fix: use one of recipe, .*"
            r"give it a value there: \{% set nodez = ... %\}",
        ),
        ("ok\n{% if nodes %}", "own.j2:2 cannot be read: Unexpected end of template"),
        ('{% extends "slurm.sh" %}', r"own.j2:1 fails: TemplateNotFound: .*slurm.sh"),
        ("{{ nodes.most }}", "own.j2:1 fails: UndefinedError: 'int object' has no attribute 'most'"),
        ("{{ nodes + partition }}", "own.j2:1 fails: TypeError: unsupported operand"),
        ("ok\n{{ 1 // gpus_per_node }}", "own.j2:2 fails: ZeroDivisionError"),
        (
            '{{ cycler.__init__.__globals__.os.popen("id").read() }}',
            "own.j2:1 fails: SecurityError: access to attribute",
        ),
        ("{% for i in range(10**9) %}x{% endfor %}", "own.j2:1 fails: OverflowError: Range too big"),
    ],
)
def test_a_template_with_a_mistake_is_refused(tmp_path, text, says):
    (tmp_path / "own.j2").write_text(text)
    with pytest.raises(LaunchError, match=says):
        render(Script("digits"), tmp_path / "own.j2")


def test_a_template_that_cannot_be_read(tmp_path):
    with pytest.raises(LaunchError, match=r"none\.j2 cannot be read: No such file or directory"):
        render(Script("digits"), tmp_path / "none.j2")
    (tmp_path / "binary.j2").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(LaunchError, match=r"binary\.j2 cannot be read: it is not a text in UTF-8"):
        render(Script("digits"), tmp_path / "binary.j2")


@pytest.mark.processes
def test_what_is_submitted_is_the_script(tmp_path, monkeypatch):
    env = with_commands(tmp_path, sbatch=f'cat > "{tmp_path}/got"; echo Submitted batch job 12')
    monkeypatch.setenv("PATH", env["PATH"])
    assert submit("#!/bin/bash\n") == "Submitted batch job 12"
    assert (tmp_path / "got").read_text() == "#!/bin/bash\n"


@pytest.mark.processes
def test_an_error_of_sbatch_is_quoted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", with_commands(tmp_path, sbatch="echo no such partition >&2; exit 1")["PATH"])
    with pytest.raises(LaunchError, match="sbatch refused the script, exit code 1\n  no such partition"):
        submit("")


def test_without_sbatch_nothing_can_be_submitted(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(LaunchError, match="there is no sbatch on PATH\n  fix: run this on a login node"):
        submit("")
