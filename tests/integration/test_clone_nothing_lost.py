"""Work that a capsule's private repository holds in unusual places is work all the same."""

from __future__ import annotations

import os
import subprocess

import pytest

from atoll.engine.projects import open_project
from atoll.model.errors import StateError


@pytest.fixture(params=["clone", "sandbox"])
def project(request, repo, atoll_home, monkeypatch):
    monkeypatch.setenv("ATOLL_LEVEL", request.param)
    return open_project(repo, background=False, warn=lambda _: None)


HIDDEN = {
    "on a branch of its own": "git switch -qc wip; echo w > w; git add w; git commit -qm w; "
    "git switch -q atoll/x",
    "under a tag": "git switch -q --detach; echo w > w; git add w; git commit -qm w; "
    "git tag kept; git switch -q atoll/x",
    "under an annotated tag": "git switch -q --detach; echo w > w; git add w; git commit -qm w; "
    "git tag -a -m kept kept; git switch -q atoll/x",
    "in an older stash": "echo w > README.md; git stash -q; echo v > app.py; git stash -q",
    "on a detached HEAD": "git switch -q --detach; echo w > w; git add w; git commit -qm w",
}


@pytest.mark.parametrize("where", HIDDEN)
def test_commits_are_found_and_kept(where, project, repo, git):
    capsule = project.new("x")
    assert capsule.run(["sh", "-c", HIDDEN[where]]).exit_code == 0
    with pytest.raises(StateError, match="exists nowhere else"):
        capsule.remove()
    point = capsule.remove(force=True)
    assert point is not None
    held = git("log", "--format=%s", point.ref, cwd=repo)
    assert "w\n" in held or "WIP" in held
    if "stash" in where:
        assert held.count("WIP on") == 2


def test_commits_are_found_among_many_branches(project, repo, git):
    head = git("rev-parse", "HEAD", cwd=repo).strip()
    refs = "".join(f"create refs/heads/many/{number} {head}\n" for number in range(1100))
    subprocess.run(["git", "update-ref", "--stdin"], cwd=repo, input=refs, text=True, check=True)
    capsule = project.new("x")
    capsule.run(["sh", "-c", HIDDEN["on a branch of its own"]])
    with pytest.raises(StateError, match="exists nowhere else"):
        capsule.remove()
    assert capsule.remove(force=True) is not None


def test_recorded_submodule_commit_is_kept(project, repo, make_repo, git):
    library = make_repo({"lib.py": "pass\n"}, name="library")
    allow = ("-c", "protocol.file.allow=always")
    git(*allow, "submodule", "add", "--quiet", str(library), "lib", cwd=repo)
    git("commit", "--quiet", "--message", "submodule", cwd=repo)
    capsule = project.new("x")
    script = (
        "cd lib && echo more > more.py && git add -A && git commit -qm more && "
        "cd .. && git add lib && git commit -qm bump"
    )
    assert capsule.run(["sh", "-c", script]).exit_code == 0
    git("merge", "--quiet", "atoll/x", cwd=repo)
    with pytest.raises(StateError, match="`lib`"):
        capsule.remove()
    point = capsule.remove(force=True)
    assert point is not None
    assert point.files is not None
    names = [name for _, _, names in os.walk(point.files) for name in names]
    assert "more.py" in names


@pytest.mark.parametrize("driver", ["overlay", "copy"])
def test_nothing_is_written_through_a_link(driver, project, tmp_path, monkeypatch):
    monkeypatch.setenv("ATOLL_WORKSPACE", driver)
    outside = tmp_path / "outside"
    outside.write_text("mine\n")
    capsule = project.new("x")
    script = (
        f"rm -f .git/config .git/HEAD $HOME/.gitconfig; ln -s {outside} .git/config; "
        f"ln -s {outside} .git/HEAD; ln -s {outside} $HOME/.gitconfig"
    )
    capsule.run(["sh", "-c", script])
    point = capsule.snapshot("linked")
    capsule.rollback(point)
    capsule.run(["true"])
    assert outside.read_text() == "mine\n"
    capsule.remove(force=True)
    assert outside.read_text() == "mine\n"
