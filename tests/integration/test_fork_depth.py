"""Forks of forks: a mount names only so many layers, so deep stacks are flattened on the way."""

from __future__ import annotations

import pytest

import atoll
from atoll.engine.enclosure import views
from atoll.engine.history import upkeep
from atoll.host import locks
from present import present


@pytest.fixture
def project(repo, atoll_home, monkeypatch):
    del atoll_home
    monkeypatch.setenv("ATOLL_LEVEL", "clone")
    made = atoll.open_project(repo)
    made.session.background = False
    yield made
    for capsule in made.capsules():
        capsule.stop(grace_s=0)
        views.end_view(made.session, capsule.record)
    made.session.forkserver.close()
    made.session.store.close()


def sh(capsule, script):
    result = capsule.run(["sh", "-euc", script])
    assert result.exit_code == 0, result.stderr.decode(errors="replace")
    return result.stdout.decode()


def depth(capsule) -> int:
    return len(present(upkeep.find_layered_plan(capsule.session, capsule.record)).own_layers)


def fork_chain(project, count):
    capsule = project.new("f0")
    deepest = 0
    for number in range(count):
        sh(capsule, f"echo {number} > state; mkdir -p many; echo {number} > many/{number}")
        capsule = project.fork(capsule, f"f{number + 1}")
        deepest = max(deepest, depth(capsule))
    return capsule, deepest


def test_forks_of_forks_stay_shallow(project, monkeypatch):
    """The views of all ancestors are held: that does not prevent flattening."""
    if project.new("probe").workspace_driver != "overlay":
        pytest.skip("no overlays here: nothing to flatten")
    monkeypatch.setattr(upkeep, "TOO_DEEP", 4)
    monkeypatch.setattr(upkeep, "DEEP", 2)
    # What the background would do is left out: the fork itself has to see to it.
    monkeypatch.setattr(upkeep, "start", lambda _: None)
    last, deepest = fork_chain(project, 12)
    assert deepest <= 6
    assert sh(last, "cat state; ls many | wc -l").split() == ["11", "12"]


def test_flattening_under_a_held_view(project, monkeypatch):
    """The view goes on with the layers it has, which stay; the next one is opened on few."""
    capsule = project.new("x")
    if capsule.workspace_driver != "overlay":
        pytest.skip("no overlays here: nothing to flatten")
    monkeypatch.setattr(upkeep, "start", lambda _: None)
    for number in range(5):
        sh(capsule, f"echo {number} > state; echo {number} > n{number}")
        # A keeper that has not ended yet makes a point a copy, which is no layer of the capsule.
        views.end_view(capsule.session, capsule.record)
        capsule.snapshot(str(number))
    sh(capsule, "true")
    before = present(upkeep.find_layered_plan(capsule.session, capsule.record))
    monkeypatch.setattr(upkeep, "DEEP", 2)
    assert locks.is_locked(capsule.session.view_lock(capsule.record).path)
    assert upkeep.flatten(capsule.session, capsule.record)
    assert depth(capsule) == 1
    assert set(before.layers) <= upkeep.layers_of(capsule.session, capsule.record)
    upkeep.work(capsule.session)
    assert sh(capsule, "cat state n0 n4; echo later > state").split() == ["4", "0", "4"]
    views.end_view(capsule.session, capsule.record)
    assert sh(capsule, "cat state n0 n4").split() == ["later", "0", "4"]
    views.end_view(capsule.session, capsule.record)
    upkeep.work(capsule.session)
    assert not (upkeep.Path(capsule.record.directory) / "held-layers").exists()


@pytest.mark.soak
def test_a_fork_of_a_fork_500_deep(project):
    if project.new("probe").workspace_driver != "overlay":
        pytest.skip("no overlays here: nothing to flatten")
    last, deepest = fork_chain(project, 500)
    assert deepest <= upkeep.TOO_DEEP + 2
    assert sh(last, "cat state; ls many | wc -l").split() == ["499", "500"]
