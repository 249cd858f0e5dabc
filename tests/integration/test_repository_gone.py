"""Capsules whose repository was deleted, moved or replaced: nothing is lost or noisy."""

from __future__ import annotations

import json
import shutil

import pytest

WORK = (
    "echo c > committed; git add committed; git commit -qm committed; echo s > staged; "
    "git add staged; echo changed > README.md; rm app.py; echo u > untracked"
)
LOOK = ("git", "status", "--porcelain", "--untracked-files=all")
STATUS = " M README.md\n D app.py\nA  staged\n?? untracked\n"


@pytest.fixture
def lost(atoll, repo, make_repo, monkeypatch):
    """A project with work, and another one in which the commands are given."""
    monkeypatch.setenv("ATOLL_LEVEL", "clone")
    atoll("new", "x", cwd=repo)
    atoll("run", "x", "--", "sh", "-c", WORK, cwd=repo)
    return make_repo({"other": "other\n"}, name="other")


def points(atoll, *words, cwd):
    return json.loads(atoll("recover", "--json", *words, cwd=cwd).stdout)["data"]


def test_a_deleted_repository(lost, atoll, repo, git, tmp_path):
    shutil.rmtree(repo)
    # Quiet elsewhere.
    assert "warning" not in atoll("ls", cwd=lost).stderr
    said = atoll("gc", cwd=lost).stderr
    assert "the repository of `x` is gone\nhint: atoll gc --gone stores" in said
    # Where it was, the hint leads on.
    repo.mkdir()
    failed = atoll("ls", cwd=repo, check=False)
    assert failed.returncode == 4
    assert "hint: atoll gc --gone" in failed.stderr
    atoll("gc", "--gone", cwd=repo)
    assert "nothing to remove" in atoll("gc", "--gone", cwd=lost).stderr
    assert points(atoll, cwd=lost) == []
    [point] = points(atoll, "--gone", cwd=repo)
    assert (point["capsule"], point["files"]) == ("x", None)
    back = tmp_path / "back"
    atoll("recover", "--gone", "x", "--to", back, cwd=repo)
    assert git(*LOOK[1:], cwd=back) == STATUS
    assert git("log", "--format=%s", cwd=back) == "committed\nsecond\nfirst\n"
    assert git("branch", "--format=%(refname)", cwd=back).split() == [
        "refs/heads/atoll/x",
        "refs/heads/main",
    ]
    again = atoll("recover", "--gone", "x", "--to", back, cwd=repo, check=False)
    assert "exists already" in again.stderr
    atoll("recover", "--gone", "x", "--drop", cwd=lost)
    assert points(atoll, "--gone", cwd=lost) == []


def test_a_moved_repository(lost, atoll, repo):
    moved = repo.rename(repo.with_name("moved"))
    atoll("gc", "--gone", cwd=lost)
    atoll("recover", "x", "--as", "y", cwd=moved)
    assert atoll("run", "y", "--", *LOOK, cwd=moved).stdout == STATUS


def test_a_repository_that_another_one_has_replaced(lost, atoll, repo, git):
    shutil.rmtree(repo)
    shutil.copytree(lost, repo)
    git("branch", "atoll/x", cwd=repo)
    refused = atoll("rm", "x", cwd=repo, check=False)
    assert refused.returncode == 4
    assert "cannot be compared" in refused.stderr
    assert "hint: atoll rm x --force" in refused.stderr
    said = atoll("rm", "x", "--force", cwd=repo).stderr
    assert "stored the work of `x`\nhint: atoll recover --gone x/" in said
    # The branch of that name is the other repository's.
    assert git("branch", "--list", "atoll/x", cwd=repo).strip() == "atoll/x"
    atoll("recover", "x", "--as", "y", cwd=repo)
    assert atoll("run", "y", "--", *LOOK, cwd=repo).stdout == STATUS


def test_a_removal_that_the_loss_interrupted(lost, atoll, repo, atoll_home):
    """The capsule is `removing`: `gc` finishes it, other commands say nothing."""
    from atoll.testing.faults import KILLED, kill_at  # noqa: PLC0415 - real kills

    assert kill_at("rm.announced", ["rm", "x", "--force"], cwd=repo).code == KILLED
    shutil.rmtree(repo)
    assert "x" not in atoll("ls", cwd=lost).stderr
    atoll("gc", cwd=lost)
    [point] = points(atoll, "--gone", cwd=lost)
    assert point["capsule"] == "x"
    assert not list(atoll_home.glob("projects/*/x"))


def test_a_worktree_keeps_its_files(atoll, repo, lost, tmp_path):
    """Its commits were in the repository itself."""
    atoll("new", "w", "--level", "worktree", cwd=repo)
    atoll("run", "w", "--", "sh", "-c", "echo w > w; git init -q inner; echo i > inner/i", cwd=repo)
    shutil.rmtree(repo)
    atoll("gc", "--gone", cwd=lost)
    back = tmp_path / "back"
    atoll("recover", "--gone", "w", "--to", back, cwd=lost)
    assert (back / "w").read_text() == "w\n"
    assert (back / "inner/i").read_text() == "i\n"
    # Settings of a repository that an agent has made could start programs here.
    assert not (back / "inner/.git").exists()


def test_planted_repositories_do_not_come_out(lost, atoll, repo, git, tmp_path):
    """No `.git` of the workspace, or of a directory in it, reaches a checkout of the owner."""
    evil = "[core]\\n\\tfsmonitor = touch /tmp/never\\n"
    script = (
        f"mkdir -p a/.git b/.GIT .git/modules/m; printf '{evil}' | tee a/.git/config b/.GIT/config "
        "> .git/modules/m/config; git init -q inner; rm -rf .git/hooks; echo x > .git/config"
    )
    atoll("run", "x", "--", "sh", "-c", script, cwd=repo)
    shutil.rmtree(repo)
    atoll("gc", "--gone", cwd=lost)
    back = tmp_path / "back"
    atoll("recover", "--gone", "x", "--to", back, cwd=lost)
    planted = [
        p
        for p in back.rglob("*")
        if "fsmonitor" in ((p.is_file() and p.read_text("latin-1")) or "")
    ]
    assert planted == []
    assert (back / "untracked").read_text() == "u\n"
    assert git("rev-parse", "--show-toplevel", cwd=back).strip() == str(back)
