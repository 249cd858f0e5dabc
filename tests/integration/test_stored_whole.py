"""A recovery point holds all work, or says what it lacks; `recover` restores all of it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from atoll.engine.projects import CapsuleSpec, open_project
from atoll.host import process
from atoll.testing.remains import keepers_of

ATTEMPTS = 3
WORK = (
    "echo changed > README.md; rm app.py; echo new > new; chmod +x new; ln -s new link; "
    "rm -r src; mkdir src; echo 3 > src/three; "
    "echo c > committed; git add committed; git commit -qm committed; rm committed; "
    "echo v1 > staged; git add staged; echo v2 > staged"
)
LOOK = (
    "git status --porcelain --untracked-files=all; cat README.md new; readlink link; "
    "find . -path ./.git -prune -o -print | sort; ls -l new | cut -c1-10; git log --format=%s"
)


@pytest.fixture(params=["overlay", "copy"])
def workspace(request):
    return request.param


@pytest.fixture
def project(repo, atoll_home, monkeypatch):
    monkeypatch.setenv("ATOLL_LEVEL", "clone")
    return open_project(repo, background=False, warn=lambda _: None)


@pytest.fixture
def make(project, workspace):
    def make(name="x", **given):
        spec = CapsuleSpec(level="clone", workspace=workspace, **given)
        return project.make([project.plan(name, spec)])[0]

    return make


@pytest.fixture
def kill(monkeypatch):
    """`kill(lambda number, argv: …)`: what of the gits on the host is killed, really."""

    def use(chooses):
        spawn = process._spawn
        count = iter(range(1, 10_000))
        killed = []

        def started(start, *args, **kwargs):
            if kwargs.get("within") is None and chooses(next(count), start.argv):
                killed.append(start.argv)
                start = start._replace(argv=("sh", "-c", "kill -9 $$"), executable="/bin/sh")
            return spawn(start, *args, **kwargs)

        monkeypatch.setattr(process, "_spawn", started)
        return killed

    return use


def look(capsule):
    done = capsule.run(["sh", "-c", LOOK])
    assert done.exit_code == 0, done.stderr
    return done.stdout.decode()


@pytest.mark.parametrize("verb", ["cat-file", "unpack-objects"])
def test_a_git_that_is_killed_once_costs_nothing(verb, make, project, kill):
    capsule = make()
    assert capsule.run(["sh", "-c", WORK]).exit_code == 0
    before = look(capsule)
    killed: list[tuple[str, ...]] = kill(lambda _, argv: verb in argv and not killed)
    point = capsule.remove(force=True)
    assert len(killed) == 1
    assert point is not None
    assert (point.files, point.lacks) == (None, "")
    assert look(project.recover(point, "x")) == before


@pytest.mark.parametrize("number", [1, 3, 5, 7, 9])
def test_whichever_git_is_killed(number, project, kill, git, repo):
    capsule = project.new("x")
    assert capsule.run(["sh", "-c", WORK]).exit_code == 0
    kill(lambda now, _: now == number)
    point = capsule.remove(force=True)
    assert point is not None
    assert (point.files, point.lacks) == (None, "")
    held = git("ls-tree", "-r", "--name-only", point.commit, cwd=repo).split()
    assert {"new", "link", "staged", "src/three"} <= set(held)
    assert not {"app.py", "committed"} & set(held)


def test_files_are_kept_and_restored_when_git_cannot_store_them(make, project, kill, atoll_home):
    capsule = make()
    assert capsule.run(["sh", "-c", WORK]).exit_code == 0
    before = look(capsule)
    # In every attempt to store them; the last resort needs one as well.
    killed: list[tuple[str, ...]] = kill(
        lambda _, argv: "cat-file" in argv and len(killed) < ATTEMPTS
    )
    point = capsule.remove(force=True)
    assert point is not None
    assert point.files is not None
    assert "`git` ended" in point.lacks
    assert Path(point.files).is_relative_to(atoll_home)
    # As another process reads it.
    [listed] = project.recovery_points()
    assert listed == point
    restored = look(project.recover(listed, "x"))
    # What was staged is in the files as well; that it was staged is lost.
    assert restored.replace("?? staged\n", "") == before.replace("AM staged\n", "")


def test_repositories_in_a_workspace_are_restored(make, project):
    capsule = make()
    script = "git init -q inner; cd inner; echo i > i; git add i; git commit -qm inner"
    assert capsule.run(["sh", "-c", f"{WORK}; {script}"]).exit_code == 0
    before = look(capsule)
    point = capsule.remove(force=True)
    assert point is not None
    assert point.files is not None
    assert point.lacks == ""
    again = project.recover(point, "x")
    assert look(again) == before
    assert again.run(["git", "-C", "inner", "log", "--format=%s"]).stdout == b"inner\n"
    assert again.run(["git", "-C", "inner", "status", "--porcelain"]).stdout == b""


def test_kept_files_hold_what_dirty_brought(project, repo, git):
    """Also when the owner has it no more, and git cannot store the workspace."""
    (repo / "README.md").write_text("brought\n")
    capsule = project.new("x", dirty=True)
    git("checkout", "--quiet", "README.md", cwd=repo)
    assert capsule.run(["git", "init", "-q", "inner"]).exit_code == 0
    point = capsule.remove(force=True)
    assert point is not None
    assert point.files is not None
    assert Path(point.files, "changes/workspace/README.md").read_text() == "brought\n"


def test_a_copy_that_was_interrupted_is_made_again(project, atoll_home):
    capsule = project.new("x")
    assert capsule.run(["sh", "-c", "git init -q inner; echo i > inner/i"]).exit_code == 0
    part = Path(atoll_home, "recovered/x", f".{capsule.record.id}")
    part.mkdir(parents=True)
    point = capsule.remove(force=True)
    assert point is not None
    assert point.files is not None
    assert Path(point.files, "changes/workspace/inner/i").read_text() == "i\n"


def test_keepers_that_are_killed_take_nothing_along(atoll, repo, git, atoll_home):
    """Whatever they leave behind is ended before anything is read."""
    for level in ("clone", "sandbox"):
        atoll("new", "x", "--level", level, cwd=repo)
        atoll("run", "x", "--", "sh", "-c", "echo work > work", cwd=repo)
        script = "while :; do echo again > busy; done"
        atoll("run", "x", "--detach", "--", "sh", "-c", script, cwd=repo)
        for keeper in keepers_of(atoll_home):
            os.kill(keeper.pid, signal.SIGKILL)
        said = atoll("rm", "x", "--force", cwd=repo).stderr
        assert said.startswith("stored the work of `x`\nhint:")
        [ref] = git("for-each-ref", "--format=%(refname)", "refs/atoll/recovery", cwd=repo).split()
        assert "work" in git("ls-tree", "--name-only", ref, cwd=repo).split()
        atoll("recover", "x", "--drop", cwd=repo)
