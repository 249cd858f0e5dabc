"""Capsules whose repository was deleted, moved or replaced: nothing is lost or noisy."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from pathlib import Path

import pytest

WORK = (
    "echo c > committed; git add committed; git commit -qm committed; echo s > staged; "
    "git add staged; echo changed > README.md; rm app.py; echo u > untracked"
)
LOOK = ("git", "status", "--porcelain", "--untracked-files=all")
FILTER = """\
[filter "lfs"]
    clean = git-lfs clean -- %f
    smudge = git-lfs smudge -- %f
    process = git-lfs filter-process
    required = true
"""
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
    assert "the repository of `x` was deleted\nhint: atoll gc --gone stores" in said
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
    # One without a `.git`, which a commit can hold: git runs what its settings say.
    bare = (
        "git init -q --bare bare/x; cd bare/x; touch objects/o refs/r; "
        "for s in 'bare false' 'worktree ..' 'fsmonitor touch ran;false'; do "
        'git config -f config core.${s%% *} "${s#* }"; done; git status || true; rm ../ran'
    )
    atoll("run", "x", "--", "sh", "-ec", bare, cwd=repo)
    atoll("run", "x", "--", "sh", "-c", script, cwd=repo)
    shutil.rmtree(repo)
    atoll("gc", "--gone", cwd=lost)
    back = tmp_path / "back"
    said = atoll("recover", "--gone", "x", "--to", back, cwd=lost).stderr
    assert "not restored: `bare/x/HEAD`: with it git takes the directory for a repo" in said
    assert (back / "bare/x/config").is_file()
    git("status", cwd=back / "bare/x")
    assert not (back / "bare/ran").exists()
    shutil.rmtree(back / "bare")
    planted = [
        p
        for p in back.rglob("*")
        if "fsmonitor" in ((p.is_file() and p.read_text("latin-1")) or "")
    ]
    assert planted == []
    assert (back / "untracked").read_text() == "u\n"
    assert git("rev-parse", "--show-toplevel", cwd=back).strip() == str(back)


@pytest.fixture
def large(make_repo, atoll_home):
    if shutil.which("git-lfs") is None:
        pytest.skip("git-lfs is not installed")
    with Path(os.environ["GIT_CONFIG_GLOBAL"]).open("a", encoding="utf-8") as config:
        config.write(FILTER)
    content = {".gitattributes": "*.bin filter=lfs\n", "old.bin": b"old\0" * 999}
    return make_repo(content, name="large")


def test_git_lfs_files_come_back_with_their_content(lost, large, atoll, atoll_home, git, tmp_path):
    atoll("new", "y", cwd=large)
    script = (
        "seq 9 > v.bin; git add .; git commit -qm 1; seq 8 > v.bin; git commit -qam 2; echo > w"
    )
    atoll("run", "y", "--", "sh", "-ec", script, cwd=large)
    shutil.rmtree(large)
    atoll("gc", "--gone", cwd=lost)
    atoll("gc", "--all", cwd=lost)
    back = tmp_path / "back"
    said = atoll("recover", "--gone", "y", "--to", back, cwd=lost).stderr
    assert "warning" not in said
    assert (back / "old.bin").read_bytes() == b"old\0" * 999
    assert git("status", "--porcelain", cwd=back) == "?? w\n"
    git("checkout", "--quiet", "HEAD~1", "--", "v.bin", cwd=back)
    assert (back / "v.bin").read_text().endswith("9\n")
    # Into another project, and with what is missing named.
    [standin] = atoll_home.glob("standins/large-*.git")
    oid = hashlib.sha256(b"old\0" * 999).hexdigest()
    (standin / "lfs/objects" / oid[:2] / oid[2:4] / oid).unlink()
    said = atoll("recover", "y", cwd=lost).stderr
    assert "belongs to a project whose repository was deleted" in said
    assert "`old.bin`: Git LFS pointers whose objects" in said
    assert atoll("run", "y", "--", "tail", "-n1", "v.bin", cwd=lost).stdout == "8\n"
    atoll("recover", "--gone", "y", "--drop", cwd=lost)
    assert not standin.exists()


BUMP = "cd lib; echo 2 > lib.py; git commit -qam g; cd ..; git commit -qam bump; echo > w"


@pytest.mark.parametrize(("script", "content"), [("echo > w", "1\n"), (BUMP, "2\n")])
def test_commits_of_submodules_come_back(script, content, lost, make_repo, atoll, git, tmp_path):
    allow = ("-c", "protocol.file.allow=always")
    library = make_repo({"lib.py": "1\n"}, name="library")
    root = make_repo(name="project-with-submodule")
    git(*allow, "submodule", "--quiet", "add", library, "lib", cwd=root)
    git("commit", "--quiet", "--message", "submodule", cwd=root)
    atoll("new", "y", cwd=root)
    atoll("run", "y", "--", "sh", "-ec", script, cwd=root)
    shutil.rmtree(root)
    shutil.rmtree(library)
    atoll("gc", "--gone", cwd=lost)
    atoll("gc", "--all", cwd=lost)
    back = tmp_path / "back"
    atoll("recover", "--gone", "y", "--to", back, cwd=lost)
    git(*allow, "submodule", "--quiet", "update", "--init", cwd=back)
    assert (back / "lib/lib.py").read_text() == content
    assert git("status", "--porcelain", cwd=back) == "?? w\n"
    atoll("recover", "y", cwd=lost)
    assert (lost / ".git/modules/lib/HEAD").is_file()
