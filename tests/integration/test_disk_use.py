"""Bases that no capsule needs go after a while, and disk use is reported without counting twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

import atoll
from atoll.drivers.layers.pool import Pool
from atoll.engine.capsule import disk_use, reaper
from atoll.engine.enclosure import views
from atoll.engine.history import upkeep

MEGABYTE = 1 << 20


@pytest.fixture
def project(repo, git, atoll_home, monkeypatch):
    del atoll_home
    monkeypatch.setenv("ATOLL_LEVEL", "clone")
    (repo / ".gitignore").write_text("deps/\n")
    git("add", "--all", cwd=repo)
    git("commit", "--quiet", "--message", "ignore", cwd=repo)
    (repo / "deps").mkdir()
    (repo / "deps" / "large").write_bytes(os.urandom(MEGABYTE))
    made = atoll.open_project(repo)
    made.session.background = False
    yield made
    for capsule in made.capsules():
        capsule.stop(grace_s=0)
        views.end_view(made.session, capsule.record)
    made.session.forkserver.close()
    made.session.store.close()


def pool_of(project) -> Pool:
    return Pool(project.session.pool(project.record.id))


def cli(*args, cwd) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, "-m", "atoll", *args]
    return subprocess.run(argv, cwd=cwd, check=True, capture_output=True, text=True)


def age(project, seconds):
    """As if nothing had happened in the pool for so long."""
    place = pool_of(project).layers
    status = os.stat(place)
    os.utime(place, (status.st_atime - seconds, status.st_mtime - seconds))


def test_base_goes_when_it_was_not_used_for_a_week(project):
    project.new("x").remove()
    upkeep.work(project.session)
    kept = pool_of(project).all()
    assert kept, "the next capsule starts from it"
    age(project, upkeep.KEEP_BASES_S + 60)
    told = reaper.collect(project.session, dry_run=True).files
    assert {os.path.basename(path) for path in told} >= set(kept)
    assert pool_of(project).all() == kept
    told = reaper.collect(project.session).files
    assert {f"layer {name}" for name in kept} <= set(told)
    assert pool_of(project).all() == []
    # It is frozen again when it is needed.
    again = project.new("y")
    assert again.run(["cat", "app.py"]).exit_code == 0
    assert again.run(["test", "-s", "deps/large"]).exit_code == 0


def test_base_of_a_capsule_stays(project):
    """Also what only a snapshot or a fork needs, whatever is asked for."""
    capsule = project.new("x")
    assert capsule.run(["sh", "-c", "echo one >new"]).exit_code == 0
    capsule.snapshot("one")
    fork = project.fork(capsule, "y")
    capsule.remove(force=True)
    age(project, upkeep.KEEP_BASES_S + 60)
    reaper.collect(project.session, bases=True)
    assert fork.run(["cat", "new", "app.py", "deps/large"]).exit_code == 0
    fork.remove(force=True)
    reaper.collect(project.session, bases=True)
    assert pool_of(project).all() == []


def test_what_killed_builders_left_is_reported(project):
    project.new("x").remove()
    left = pool_of(project).layers / ".new-0123456789ab"
    (left / "tree").mkdir(parents=True)
    done = cli("gc", cwd=project.root)
    said = done.stdout + done.stderr
    assert ".new-0123456789ab" in said
    assert "nothing to remove" not in said
    assert not left.exists()


def test_disk_use_counts_what_is_shared_once(project, repo):
    base_before = disk_use.of_base(project.session, project.record).bytes
    assert base_before == 0
    capsule = project.new("x")
    other = project.new("y")
    session, record = project.session, project.record
    base = disk_use.of_base(session, record)
    assert MEGABYTE <= base.bytes < 3 * MEGABYTE
    assert capsule.run(["sh", "-c", "head -c 2097152 /dev/urandom >mine"]).exit_code == 0
    own = disk_use.of_capsule(session, capsule.record)
    assert own.is_complete
    assert 2 * MEGABYTE <= own.bytes < 3 * MEGABYTE
    assert disk_use.of_capsule(session, other.record).bytes < MEGABYTE
    whole = disk_use.of_home(session).bytes
    # With the reserve for full disks, and the database.
    assert base.bytes + own.bytes <= whole < base.bytes + own.bytes + 8 * MEGABYTE
    # A frozen layer is measured once.
    sizes = list(pool_of(project).layers.glob("*/allocated"))
    assert sizes
    for path in sizes:
        path.write_text("1")
    assert disk_use.of_base(session, record).bytes < MEGABYTE
    shown = json.loads(cli("ls", "--json", cwd=repo).stdout)
    assert {row["name"] for row in shown["data"] if row["disk_bytes"] >= 2 * MEGABYTE} == {"x"}
