"""Capsules that a command makes for itself: fresh, hidden, gone at the end and after a kill."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import atoll
from atoll.engine.capsule.temporary import FreshSpec, Workbench
from atoll.engine.capsules import Capsule

KILLED = """
import os, signal
import atoll
from atoll.engine.capsule.temporary import FreshSpec, Workbench

project = atoll.open_project(".")
bench = Workbench(project.session, project.record, stem="check")
with bench.open():
    made = bench.make(FreshSpec(commit="HEAD"))
    print(made.name, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def committed(project, capsule, command):
    capsule.run(["sh", "-c", command])
    return capsule.commit("work")


def names(project):
    return [record.name for record in project.session.store.capsules(project.record.id)]


def test_fresh_capsule_has_the_exact_commit_and_nothing_else(project):
    capsule = project.new("x")
    commit = committed(project, capsule, "echo new > new.txt")
    capsule.run(["sh", "-c", "echo loose > loose.txt"])
    refs = project.session.ref_cache
    with Workbench(project.session, project.record, stem="check").open() as bench:
        spec = FreshSpec(commit=commit, base_commit=capsule.record.base_commit)
        made = Capsule(session=project.session, record=bench.make(spec))
        done = made.run(["sh", "-c", "cat new.txt; test ! -e loose.txt; git rev-parse HEAD"])
        assert done.exit_code == 0
        assert done.stdout.decode().split() == ["new", commit]
        assert made.record.base_commit == capsule.record.base_commit
        made.run(["sh", "-c", "echo y > y; git add y; git commit -qm y"])
        assert [c.name for c in project.capsules()] == ["x"]
        assert [s.capsule.name for s in project.summaries()] == ["x"]
    assert names(project) == ["x"]
    assert not any("check-" in ref for _, ref in refs.refs(project.record).pairs)


def test_visible_commits_can_be_merged_inside(project, git):
    capsule = project.new("x")
    commit = committed(project, capsule, "echo new > new.txt")
    (project.root / "other.txt").write_text("other\n")
    git("add", "-A", cwd=project.root)
    git("commit", "-qm", "moved on", cwd=project.root)
    tip = git("rev-parse", "HEAD", cwd=project.root).strip()
    with Workbench(project.session, project.record, stem="merge").open() as bench:
        made = bench.make(FreshSpec(commit=tip, visible=(commit,)))
        inside = Capsule(session=project.session, record=made)
        done = inside.run(["git", "merge", "-q", "-m", "merged", commit])
        assert done.exit_code == 0, done.stderr
        assert inside.run(["cat", "new.txt", "other.txt"]).stdout == b"new\nother\n"


def test_no_filter_of_the_owner_runs_on_the_commit_of_a_capsule(project, git):
    git("config", "--global", "filter.canary.smudge", "sed s/new/filtered/", cwd=project.root)
    capsule = project.new("x")
    planted = "echo '* filter=canary' > .gitattributes; echo new > new.txt"
    commit = committed(project, capsule, planted)
    with Workbench(project.session, project.record, stem="check").open() as bench:
        made = Capsule(session=project.session, record=bench.make(FreshSpec(commit=commit)))
        assert made.run(["cat", "new.txt"]).stdout == b"new\n"
    # The control: in a capsule that the owner starts from it, the filter runs as in a checkout.
    assert project.new("y", base=commit).run(["cat", "new.txt"]).stdout == b"filtered\n"


def test_capsules_of_a_killed_command_are_removed_by_the_next(project):
    done = subprocess.run(
        [sys.executable, "-c", KILLED],
        cwd=project.root, env=dict(os.environ), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert names(project) == [done.stdout.strip()]
    again = atoll.open_project(project.root)
    assert names(again) == []
    assert again.recovery_points() == []
    again.session.store.close()


def test_capsules_of_a_living_command_stay(project):
    with Workbench(project.session, project.record, stem="check").open() as bench:
        made = bench.make(FreshSpec(commit="HEAD"))
        other = atoll.open_project(project.root)
        assert names(other) == [made.name]
        other.session.store.close()
    assert names(project) == []
