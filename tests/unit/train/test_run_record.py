"""What a run folder tells of its run: finished, running, killed in the middle of a line, or from a stranger."""

import json
import os

import pytest
from tests.unit.train.run_folders import folder_of_run

from outlay.core.error_types import RunFolderError
from outlay.core.own_folder import OwnFolder
from outlay.train.run_record import RunRecord, runs_below


def test_a_finished_run(tmp_path):
    record = RunRecord(folder_of_run(tmp_path / "run"))
    assert (record.state, record.step, record.num_steps) == ("finished", 6, 6)
    assert record.curves.points["loss"] == [(step, 2.0 / step) for step in range(1, 7)]
    assert record.curves.points["evaluate.loss"] == [(3, 2.0 / 3 + 0.5), (6, 2.0 / 6 + 0.5)]
    assert record.rate == [(step, 2.0) for step in range(2, 7)]
    assert record.memory == [(1, 2**20), (6, 6 * 2**20), (6, 2**20)]
    assert record.goodput == pytest.approx(2.4 / 4.0)
    assert not record.refresh()


def test_what_was_added_is_read_once_and_half_a_line_waits_for_its_rest(tmp_path):
    path = folder_of_run(tmp_path / "run", steps=2, end="")
    record = RunRecord(path)
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 3, "lo')
        file.flush()
        assert not record.refresh()
        file.write('ss": 0.25, "seconds": 1.5}\n')
    assert record.refresh()
    assert record.curves.points["loss"][-1] == (3, 0.25)
    assert record.num_unread == 0


def test_a_killed_run_says_so_and_one_that_is_at_work_runs(tmp_path):
    path = folder_of_run(tmp_path / "run", steps=4, end="")
    with (path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 5, "loss"')
    record = RunRecord(path)
    assert (record.state, record.step, record.num_steps) == ("killed", 4, 6)
    own = OwnFolder(path, "run folder", RunFolderError, lambda: "")
    own.take()
    try:
        assert record.state == "running"
    finally:
        own.release()
    assert record.state == "killed"


def test_a_run_that_went_on_lost_the_steps_that_it_took_again(tmp_path):
    path = folder_of_run(tmp_path / "run", steps=5, end="")
    record = RunRecord(folder_of_run(path, steps=6, after=3))
    assert record.num_repeated == 2
    assert [(each.after, each.step, each.end) for each in record.sessions] == [(0, 5, ""), (3, 6, "finished")]
    # Three of the first five steps count, and the three after them.
    assert record.goodput == pytest.approx((0.4 * 3 + 0.4 * 3) / (2.5 + 1.0 + 1.5 + 1.0))


def test_a_folder_in_which_a_new_run_has_begun_is_read_from_its_start(tmp_path):
    path = folder_of_run(tmp_path / "run")
    record = RunRecord(path)
    for name in ("metrics.jsonl", "times.jsonl"):
        os.replace(path / name, path / f"old-{name}")  # the old file stays, so the new one has another number
    folder_of_run(path, steps=2, end="")
    assert record.refresh()
    assert record.step == 2
    assert [step for step, _ in record.curves.points["loss"]] == [1, 2]


STRANGE = [
    '{"step": 7, "loss": NaN, "seconds": 4}',
    '{"step": 8, "loss": 1e999, "seconds": 5}',
    '{"step": 9, "loss": null, "words": "\\ud800<script>", "flag": true, "seconds": "x"}',
    '{"step": 10, "loss": ' + "9" * 4000 + "}",
    '{"step": true, "loss": 5}',
    "[" * 100_000,
    "nonsense",
    "5",
    "",
]


def test_lines_from_anywhere_end_nothing(tmp_path):
    path = folder_of_run(tmp_path / "run")
    with (path / "metrics.jsonl").open("ab") as file:
        file.write("\n".join(STRANGE).encode() + b"\n\xff\xfe\n")
    with (path / "times.jsonl").open("a") as file:
        file.write('{"step": "x", "seconds": {"steps": -5, "input": "y"}, "memory": [], "end": {}}\n')
    record = RunRecord(path)
    assert record.curves.points["loss"][6:] == [(7, None), (8, None), (9, None), (10, None)]
    assert set(record.curves.points) == {"loss", "evaluate.loss"}
    assert record.num_unread == 5
    assert record.state == "finished"


@pytest.mark.parametrize("name", ["config.json", "metrics.jsonl", "times.jsonl", "plan.json"])
def test_no_link_is_followed(tmp_path, name):
    path = folder_of_run(tmp_path / "run")
    secret = tmp_path / "secret"
    secret.write_text(json.dumps({"step": 99, "loss": 42.0, "began": 5, "recipe": "secret", "num_steps": 99}) + "\n")
    (path / name).unlink(missing_ok=True)
    (path / name).symlink_to(secret)
    record = RunRecord(path)
    assert record.step in (0, 6)
    assert record.config.get("recipe") != "secret"
    assert record.plan is None


def test_a_pipe_is_not_waited_for(tmp_path):
    path = folder_of_run(tmp_path / "run")
    (path / "metrics.jsonl").unlink()
    os.mkfifo(path / "metrics.jsonl")
    assert RunRecord(path).curves.points == {}


def test_other_folders_are_no_runs(tmp_path):
    with pytest.raises(RunFolderError, match=r"no outlay.txt that says so\n  fix: .* such as runs/digits"):
        RunRecord(tmp_path)


def test_runs_are_found_below_a_folder_and_not_behind_links(tmp_path):
    for name in ("b", "a", "sweep/one", "sweep/two"):
        folder_of_run(tmp_path / "runs" / name)
    folder_of_run(tmp_path / "elsewhere")
    (tmp_path / "runs" / "link").symlink_to(tmp_path / "elsewhere")
    names = [str(path.relative_to(tmp_path / "runs")) for path in runs_below(tmp_path / "runs")]
    assert names == ["a", "b", "sweep/one", "sweep/two"]
    assert runs_below(tmp_path / "runs" / "a") == [tmp_path / "runs" / "a"]
    with pytest.raises(RunFolderError, match="there is no folder"):
        runs_below(tmp_path / "nowhere")


def test_a_long_run_keeps_what_stands_out(tmp_path):
    path = folder_of_run(tmp_path / "run", steps=20_000, of=20_000, loss=lambda step: 9.0 if step == 7777 else 1.0)
    points = RunRecord(path).curves.points
    assert len(points["loss"]) <= 4001
    assert (7777, 9.0) in points["loss"]
    assert points["loss"][-1] == (20_000, 1.0)
    assert [step for step, _ in points["loss"]] == sorted({step for step, _ in points["loss"]})
