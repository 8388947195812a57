"""The commit of a working tree, as its files have it."""

import pytest

from outlay.recipes.run_config import commit_of

HASH = "0123456789abcdef0123456789abcdef01234567"


def repository(path, head, **files):
    for name, text in {"HEAD": head, **files}.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text(text)
    return path


@pytest.mark.parametrize(
    ("head", "files"),
    [
        (f"{HASH}\n", {}),
        ("ref: refs/heads/a/b\n", {"refs/heads/a/b": f"{HASH}\n"}),
        (
            "ref: refs/heads/main\n",
            {"packed-refs": f"# pack-refs\n{'f' * 40} refs/heads/not-main\n{HASH} refs/heads/main\n"},
        ),
    ],
)
def test_the_commit_that_is_checked_out(tmp_path, head, files):
    repository(tmp_path / ".git", head, **files)
    (tmp_path / "deep/er").mkdir(parents=True)
    assert commit_of(tmp_path / "deep/er") == HASH


def test_a_working_tree_elsewhere(tmp_path):
    shared = repository(tmp_path / "main/.git", "ref: refs/heads/other\n", **{"refs/heads/mine": HASH})
    repository(shared / "worktrees/mine", "ref: refs/heads/mine\n", commondir="../..\n")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/.git").write_text(f"gitdir: {shared}/worktrees/mine\n")
    assert commit_of(tmp_path / "mine") == HASH


@pytest.mark.parametrize("head", ["ref: refs/heads/new\n", "", "nonsense", "\0"])
def test_no_commit(tmp_path, head):
    repository(tmp_path / ".git", head)
    assert commit_of(tmp_path) is None
    assert commit_of(tmp_path / "missing") is None
